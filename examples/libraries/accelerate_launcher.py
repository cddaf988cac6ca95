"""Ranks started from inside a program, by accelerate's launcher for notebooks.

    python examples/libraries/accelerate_launcher.py
    phalanx run examples/libraries/accelerate_launcher.py

No torchrun: the program itself asks for two processes, which are ranks of one process here.
"""

import torch
from accelerate import Accelerator, notebook_launcher
from accelerate.utils import gather_object, set_seed
from torch import nn


def train(steps: int) -> None:
    accelerator = Accelerator(cpu=True)
    set_seed(accelerator.process_index)
    x = torch.randn(8, 3)
    torch.manual_seed(0)
    model = nn.Linear(3, 1)
    model, optimizer = accelerator.prepare(model, torch.optim.SGD(model.parameters(), 0.1))
    for _ in range(steps):
        loss = nn.functional.mse_loss(model(x), x.sum(dim=1, keepdim=True))
        accelerator.backward(loss)
        optimizer.step()
        optimizer.zero_grad()
    losses = gather_object([round(loss.item(), 5)])
    print(f"process {accelerator.process_index} of {accelerator.num_processes}: {losses}")
    accelerator.end_training()


def main() -> None:
    notebook_launcher(train, (5,), num_processes=2)
    print("all processes have ended")


if __name__ == "__main__":
    main()
