"""A pipeline: every rank is one stage, micro-batches flow through all of them.

torchrun --nproc-per-node 4 examples/pipeline.py
phalanx run -n 4 examples/pipeline.py
"""

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.pipelining import PipelineStage, Schedule1F1B


def main() -> None:
    dist.init_process_group("gloo")
    rank, size = dist.get_rank(), dist.get_world_size()
    torch.manual_seed(0)
    layers = [nn.Sequential(nn.Linear(16, 16), nn.Tanh()) for _ in range(size)]
    stage = PipelineStage(layers[rank], rank, size, torch.device("cpu"))
    schedule = Schedule1F1B(stage, n_microbatches=2 * size, loss_fn=nn.functional.mse_loss)
    optimizer = torch.optim.SGD(layers[rank].parameters(), lr=0.5)

    x = torch.randn(32 * size, 16, generator=torch.Generator().manual_seed(1))
    target = x.tanh()
    for step in range(1, 4):
        optimizer.zero_grad()
        losses: list[torch.Tensor] = []
        if rank == 0:
            schedule.step(x) if size > 1 else schedule.step(x, target=target, losses=losses)
        elif rank == size - 1:
            schedule.step(target=target, losses=losses)
        else:
            schedule.step()
        optimizer.step()
        if losses:
            print(f"step {step} loss {torch.stack(losses).mean().item():.4f}")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
