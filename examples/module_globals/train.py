"""Tensor and data parallel training whose groups are globals of a module of its own.

torchrun --nproc-per-node 4 examples/module_globals/train.py
phalanx run -n 4 examples/module_globals/train.py
"""

import torch
import torch.distributed as dist
from parallel import layers, report, state
from torch import nn

STEPS = 5


def make_model() -> nn.Module:
    torch.manual_seed(0)
    first, second = torch.randn(32, 8) / 8, torch.randn(8, 32) / 8
    return nn.Sequential(layers.ColumnLinear(first), nn.Tanh(), layers.RowLinear(second))


def average_gradients(model: nn.Module) -> None:
    group = state.data_group()
    for parameter in model.parameters():
        dist.all_reduce(parameter.grad, group=group)
        parameter.grad /= dist.get_world_size(group)


def main() -> None:
    dist.init_process_group("gloo")
    state.initialize(tensor_size=2)
    model = make_model()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
    generator = torch.Generator().manual_seed(state.data_rank())
    x = torch.randn(16, 8, generator=generator)
    for number in range(STEPS):
        loss = nn.functional.mse_loss(model(x), x.flip(1))
        optimizer.zero_grad()
        loss.backward()
        average_gradients(model)
        optimizer.step()
        steps = report.gather(number, loss.item())
        mean = sum(step.loss for step in steps) / len(steps)
        print(f"step {number}: loss {mean:.6f}")
    rank = f"tensor rank {state.tensor_rank()}, data rank {state.data_rank()}"
    print(f"rank {dist.get_rank()}: {rank}, own loss {loss.item():.6f}")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
