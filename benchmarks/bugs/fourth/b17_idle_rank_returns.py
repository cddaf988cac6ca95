# ranks: 4
# kind: deadlock|mismatch
# faulty: 3
# lines: 40,38
# profile: gloo
# what: rank 3 has no pipeline stage of its own (three stages on four ranks) and returns, but the final loss is broadcast in the world group
import torch
import torch.distributed as dist

STAGES = 3


def stage_forward(stage, x):
    return x * (stage + 1) + stage


def run_pipeline(rank, steps=2):
    loss = torch.zeros(1)
    for step in range(steps):
        if rank == 0:
            h = torch.full((2, 2), float(step))
        else:
            h = torch.empty(2, 2)
            dist.recv(h, src=rank - 1)
        h = stage_forward(rank, h)
        if rank < STAGES - 1:
            dist.send(h, dst=rank + 1)
        else:
            loss += h.sum()
    return loss


def main():
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    if rank >= STAGES:
        print(f"rank {rank} is idle")
        return
    loss = run_pipeline(rank)
    dist.broadcast(loss, src=STAGES - 1)
    if rank == 0:
        print("loss", loss.item())
    dist.destroy_process_group()


main()
