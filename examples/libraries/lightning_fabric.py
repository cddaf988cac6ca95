"""Data-parallel training with Lightning Fabric.

    torchrun --nproc-per-node 2 examples/libraries/lightning_fabric.py
    phalanx run -n 2 examples/libraries/lightning_fabric.py

A training loop of one's own; Fabric wraps the model in DDP, gives each rank its part of the
data, accumulates gradients, reduces, gathers, saves and loads.
"""

import os
import random
import tempfile
from pathlib import Path

import numpy as np
import torch
from lightning.fabric import Fabric
from lightning.fabric.loggers import CSVLogger
from lightning.fabric.utilities import rank_zero_only
from torch import nn
from torch.utils.data import DataLoader, TensorDataset


def make_data(samples: int) -> TensorDataset:
    generator = torch.Generator().manual_seed(1)
    x = torch.randn(samples, 6, generator=generator)
    return TensorDataset(x, torch.sin(x.sum(1, keepdim=True)))


@rank_zero_only
def announce(text: str) -> None:
    print(f"rank 0 announces {text}")


def train(fabric: Fabric, model: nn.Module, optimizer: torch.optim.Optimizer) -> None:
    loader = fabric.setup_dataloaders(DataLoader(make_data(64), batch_size=8, shuffle=True))
    for epoch in range(3):
        loader.sampler.set_epoch(epoch)
        total = torch.zeros(())
        for step, (x, y) in enumerate(loader):
            accumulating = step % 2 == 0
            with fabric.no_backward_sync(model, enabled=accumulating):
                loss = nn.functional.mse_loss(model(x), y)
                fabric.backward(loss)
            if not accumulating:
                fabric.clip_gradients(model, optimizer, max_norm=1.0)
                optimizer.step()
                optimizer.zero_grad()
            total += loss.detach()
        mean = fabric.all_reduce(total / len(loader), reduce_op="mean")
        fabric.log("loss", mean, step=epoch)
        fabric.print(f"epoch {epoch} loss {mean.item():.5f}")


def talk(fabric: Fabric) -> None:
    rank = fabric.global_rank
    gathered = fabric.all_gather({"rank": torch.tensor(rank), "pair": torch.full((2,), rank)})
    fabric.print("gathered", {name: value.tolist() for name, value in gathered.items()})
    print(
        f"rank {rank} sum {fabric.all_reduce(torch.tensor(rank + 1.0), reduce_op='sum').item()}"
    )
    said = fabric.broadcast(f"said by {rank}", src=fabric.world_size - 1)
    print(f"rank {rank} broadcast {said}")
    with fabric.rank_zero_first():
        pass
    fabric.barrier()
    announce(f"{fabric.world_size} ranks")


def save_and_load(
    fabric: Fabric, model: nn.Module, optimizer: torch.optim.Optimizer, folder: Path
) -> None:
    weights = [parameter.detach().clone() for parameter in model.parameters()]
    fabric.save(folder / "state.ckpt", {"model": model, "optimizer": optimizer, "epoch": 3})
    for parameter in model.parameters():
        parameter.data.zero_()
    state = {"model": model, "optimizer": optimizer, "epoch": 0}
    fabric.load(folder / "state.ckpt", state)
    same = all(map(torch.equal, weights, model.parameters()))
    print(f"rank {fabric.global_rank} loaded epoch {state['epoch']}, the same weights: {same}")


def main() -> None:
    with tempfile.TemporaryDirectory() as own:
        logger = CSVLogger(own, name="log", version=0)
        devices = int(os.environ.get("WORLD_SIZE", 2))
        fabric = Fabric(accelerator="cpu", strategy="ddp", devices=devices, loggers=logger)
        fabric.launch()
        fabric.seed_everything(20 + fabric.global_rank, workers=True, verbose=False)
        drawn = (torch.rand(()).item(), random.random(), float(np.random.rand()))
        print(f"rank {fabric.global_rank} draws", *(f"{value:.5f}" for value in drawn))
        print(f"rank {fabric.global_rank} seed {os.environ['PL_GLOBAL_SEED']}")

        net = nn.Sequential(nn.Linear(6, 16), nn.Tanh(), nn.Dropout(0.1), nn.Linear(16, 1))
        model, optimizer = fabric.setup(net, torch.optim.Adam(net.parameters(), lr=0.01))
        train(fabric, model, optimizer)
        talk(fabric)
        folder = Path(fabric.broadcast(own))
        save_and_load(fabric, model, optimizer, folder)
        logger.finalize("success")
        fabric.barrier()
        announce(str(sorted(path.name for path in folder.rglob("*"))))
        fabric.barrier()


if __name__ == "__main__":
    main()
