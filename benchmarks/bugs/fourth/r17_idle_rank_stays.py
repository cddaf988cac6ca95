# ranks: 4
# kind: none
# faulty: any
# lines:
# profile: gloo
# what: correct: rank 3 has no pipeline stage and makes no sends, but it takes part in the broadcast of the loss in the world group
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
    loss = run_pipeline(rank) if rank < STAGES else torch.zeros(1)
    dist.broadcast(loss, src=STAGES - 1)
    assert loss.item() == 64.0, loss
    dist.destroy_process_group()


main()
