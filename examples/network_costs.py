"""64 ranks that train with overlapped gradients on eight DGX H100, one of which is slow.

phalanx run -n 64 --clock virtual --compute free --network 'dgx_h100(nodes=8)' \\
    --record run.jsonl.gz examples/network_costs.py
phalanx report run.jsonl.gz --html run.html
phalanx run -n 4 examples/network_costs.py    (on the real clock, without costs)

Computing is a sleep on the virtual clock; each bucket is reduced while the rest of backward
goes on. The report says how much of a step each rank computes, communicates meanwhile, only
communicates, and waits for the straggler. Tensors are on the meta device: no data moves.
"""

import time

import torch
import torch.distributed as dist

STEPS, BUCKETS = 5, 8
FORWARD, BACKWARD = 0.030, 0.060
"""Seconds of one step."""
BUCKET = 128 * 2**20 // 4
"""128 MiB of gradients each: a model of 268 million parameters."""
STRAGGLER, SLOWER = 13, 1.1


def step(speed: float, gradients: list[torch.Tensor]) -> None:
    time.sleep(FORWARD * speed)
    works = []
    for bucket in gradients:
        time.sleep(BACKWARD / BUCKETS * speed)
        works.append(dist.all_reduce(bucket, async_op=True))
    for work in works:
        work.wait()


def main() -> None:
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    gradients = [torch.empty(BUCKET, device="meta") for _ in range(BUCKETS)]
    began = time.monotonic()
    for _ in range(STEPS):
        step(SLOWER if rank == STRAGGLER else 1.0, gradients)
    if rank == 0:
        print(f"{(time.monotonic() - began) / STEPS * 1e3:.1f} ms for a step")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
