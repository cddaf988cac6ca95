# ranks: 2
# decides: time
# kind: mismatch|deadlock|rank-failed
# lines: 18,24,36
# minimum: 0
# report: https://github.com/rwth-i6/returnn/issues/318
# what: each rank saves when its own clock says so; writing the index makes the clock of
#     rank 0 late, and it saves in another step
import time

import torch
import torch.distributed as dist

PERIOD = 0.017


def is_due(last):
    due = time.monotonic() - last >= PERIOD
    return due


def save(rank, step):
    parts = torch.full((2,), float(step))
    dist.all_reduce(parts, op=dist.ReduceOp.MAX)
    if rank == 0:
        time.sleep(0.003)


def main():
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    last = time.monotonic()
    for step in range(8):
        time.sleep(0.005)
        gradient = torch.ones(4)
        dist.all_reduce(gradient)
        assert gradient.tolist() == [2.0] * 4, f"step {step}: {gradient.tolist()}"
        if is_due(last):
            save(rank, step)
            last = time.monotonic()
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
