"""FSDP2: every rank holds a shard of each parameter, and a quarter of the batch.

torchrun --nproc-per-node 4 examples/fsdp_train.py
phalanx run -n 4 examples/fsdp_train.py
"""

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard


def main() -> None:
    dist.init_process_group("gloo")
    mesh = init_device_mesh("cpu", (dist.get_world_size(),))
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(16, 64), nn.GELU(), nn.Linear(64, 64), nn.Linear(64, 1))
    for layer in model:
        fully_shard(layer, mesh=mesh)
    fully_shard(model, mesh=mesh)
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)

    generator = torch.Generator().manual_seed(dist.get_rank())
    x = torch.randn(32, 16, generator=generator)
    y = x.sum(dim=1, keepdim=True).tanh()
    for step in range(1, 31):
        optimizer.zero_grad()
        loss = nn.functional.mse_loss(model(x), y)
        loss.backward()
        optimizer.step()
        if step % 10 == 0:
            mean = loss.detach().clone()
            dist.all_reduce(mean, op=dist.ReduceOp.SUM)
            print(f"step {step} loss {mean.item() / dist.get_world_size():.4f}")
    shard = model[0].weight.to_local()
    print(
        f"rank {dist.get_rank()} holds {tuple(shard.shape)} of {tuple(model[0].weight.shape)}"
    )
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
