"""Callbacks and odd corners of Lightning's Trainer with DDP.

    torchrun --nproc-per-node 2 examples/libraries/lightning_callbacks.py
    phalanx run -n 2 examples/libraries/lightning_callbacks.py

Two optimizers stepped by hand, data loaders with workers that are seeded for each rank,
averaged weights, checkpoints written by a thread, a stream without a length, predictions that
each rank writes, a step that fails on all ranks, and the order of hooks.
"""

import os
import random
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import lightning as L
import numpy as np
import torch
from lightning.pytorch.callbacks import (
    BasePredictionWriter,
    Callback,
    LearningRateMonitor,
    ModelCheckpoint,
    OnExceptionCheckpoint,
    StochasticWeightAveraging,
)
from lightning.pytorch.loggers import CSVLogger
from lightning.pytorch.plugins.io import AsyncCheckpointIO
from lightning.pytorch.utilities import rank_zero_info, rank_zero_only
from torch import Tensor, nn
from torch.utils.data import DataLoader, Dataset, IterableDataset, get_worker_info


class Noise(Dataset[Tensor]):
    """Each item is drawn anew, by the worker that makes it."""

    def __len__(self) -> int:
        return 32

    def __getitem__(self, index: int) -> Tensor:
        drawn = random.random() + float(np.random.rand())
        return torch.rand(4) + drawn + index


class Stream(IterableDataset[Tensor]):
    """Without a length; divided among ranks and workers by itself."""

    def __init__(self, rank: int, world: int) -> None:
        self.rank, self.world = rank, world

    def __iter__(self) -> Any:
        info = get_worker_info()
        share, shares = (info.id, info.num_workers) if info else (0, 1)
        for number in range(24):
            if number % (self.world * shares) == self.rank * shares + share:
                yield torch.full((4,), float(number))


class Pair(L.LightningModule):
    """Two networks and two optimizers, stepped in turn."""

    def __init__(self) -> None:
        super().__init__()
        self.automatic_optimization = False
        self.first = nn.Sequential(
            nn.Linear(4, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Linear(8, 4)
        )
        self.second = nn.Linear(4, 1)

    def training_step(self, batch: Tensor, index: int) -> None:
        for turn, optimizer in enumerate(self.optimizers()):
            self.toggle_optimizer(optimizer)
            loss = self.second(self.first(batch)).square().mean()
            optimizer.zero_grad()
            self.manual_backward(loss)
            optimizer.step()
            self.untoggle_optimizer(optimizer)
            self.log(f"loss_{turn}", loss, sync_dist=True, on_epoch=True, on_step=False)

    def configure_optimizers(self) -> list[torch.optim.Optimizer]:
        return [
            torch.optim.SGD(part.parameters(), lr=1e-4) for part in (self.first, self.second)
        ]


class Plain(L.LightningModule):
    """One layer; fails at a step if told to."""

    def __init__(self, fails_at: int = -1) -> None:
        super().__init__()
        self.layer = nn.Linear(4, 1)
        self.fails_at = fails_at

    def training_step(self, batch: Tensor, index: int) -> Tensor:
        if self.global_step == self.fails_at:
            raise ArithmeticError(f"step {self.global_step} fails")
        loss = self.layer(batch / 10).square().mean()
        self.log("loss", loss, sync_dist=True)
        return loss

    def predict_step(self, batch: Tensor, index: int) -> Tensor:
        return self.layer(batch / 10)

    def configure_optimizers(self) -> Any:
        optimizer = torch.optim.SGD(self.parameters(), lr=0.05)
        return [optimizer], [torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.5)]


class Order(Callback):
    """Notes which hooks were called, in order, each once."""

    def __init__(self) -> None:
        self.called: list[str] = []

    def __getattribute__(self, name: str) -> Any:
        if name.startswith("on_"):
            called = super().__getattribute__("called")
            if name not in called:
                called.append(name)
        return super().__getattribute__(name)


class Writer(BasePredictionWriter):
    """Each rank writes its predictions to a file of its own."""

    def __init__(self, folder: Path) -> None:
        super().__init__("epoch")
        self.folder = folder

    def write_on_epoch_end(
        self,
        trainer: L.Trainer,
        pl_module: L.LightningModule,
        predictions: Sequence[Any],
        batch_indices: Sequence[Any],
    ) -> None:
        torch.save(list(predictions), self.folder / f"predictions_{trainer.global_rank}.pt")


def make_trainer(folder: Path, **options: Any) -> L.Trainer:
    return L.Trainer(
        accelerator="cpu",
        devices=int(os.environ.get("WORLD_SIZE", 2)),
        default_root_dir=folder,
        enable_progress_bar=False,
        enable_model_summary=False,
        **({"strategy": "ddp", "logger": False, "enable_checkpointing": False} | options),
    )


def size(model: nn.Module) -> str:
    return f"{float(sum(p.detach().double().abs().sum() for p in model.parameters())):.5f}"


def by_hand(folder: Path) -> None:
    L.seed_everything(1, workers=True, verbose=False)
    trainer = make_trainer(folder, max_epochs=2, strategy="ddp_find_unused_parameters_true")
    model = Pair()
    loader = DataLoader(Noise(), batch_size=4, num_workers=2, persistent_workers=True)
    trainer.fit(model, loader)
    losses = {name: round(float(v), 4) for name, v in sorted(trainer.callback_metrics.items())}
    print(f"rank {trainer.global_rank} by hand: {losses} {size(model)}")
    running = model.first[1].running_mean.double().sum()
    print(f"rank {trainer.global_rank} running mean {float(running):.4f}")


def averaged(folder: Path) -> None:
    L.seed_everything(2, verbose=False)
    order = Order()
    checkpoint = ModelCheckpoint(every_n_epochs=1, save_top_k=-1, filename="{epoch}")
    trainer = make_trainer(
        folder,
        max_epochs=4,
        enable_checkpointing=True,
        logger=CSVLogger(folder, name="averaged", version=0),
        log_every_n_steps=1,
        plugins=[AsyncCheckpointIO()],
        callbacks=[
            order,
            checkpoint,
            LearningRateMonitor(),
            StochasticWeightAveraging(swa_lrs=0.01, swa_epoch_start=2),
        ],
    )
    model = Plain()
    trainer.fit(model, DataLoader(torch.arange(64.0).reshape(16, 4), batch_size=2))
    rank = trainer.global_rank
    print(f"rank {rank} averaged: {size(model)}")
    print(f"rank {rank} hooks: {len(order.called)} {' '.join(order.called[-6:])}")
    trainer.strategy.barrier()
    if trainer.is_global_zero:
        lines = (folder / "averaged/version_0/metrics.csv").read_text().splitlines()
        print(f"columns {lines[0]}, {len(lines)} lines")
        files = sorted(path.name for path in folder.rglob("*.ckpt"))
        print(f"checkpoints {files}")


def predicted(folder: Path) -> None:
    L.seed_everything(3, verbose=False)
    trainer = make_trainer(folder, callbacks=[Writer(folder)])
    world = int(os.environ.get("WORLD_SIZE", 2))
    rank = int(os.environ.get("RANK", 0))
    stream = DataLoader(Stream(rank, world), batch_size=2, num_workers=1)
    trainer.predict(Plain(), stream, return_predictions=False)
    saved = torch.load(folder / f"predictions_{trainer.global_rank}.pt", weights_only=True)
    print(f"rank {trainer.global_rank} predicted {[round(float(p.sum()), 4) for p in saved]}")


def failed(folder: Path) -> None:
    L.seed_everything(4, verbose=False)
    callbacks = [OnExceptionCheckpoint(folder, filename="failed")]
    trainer = make_trainer(folder, max_epochs=2, enable_checkpointing=True, callbacks=callbacks)
    try:
        trainer.fit(Plain(fails_at=3), DataLoader(torch.ones(16, 4), batch_size=2))
    except ArithmeticError as error:
        exists = (folder / "failed.ckpt").exists()
        print(f"rank {trainer.global_rank} {error}, {trainer.state.status}, saved {exists}")


@rank_zero_only
def farewell() -> None:
    print("only rank 0 says this")


def main() -> None:
    with tempfile.TemporaryDirectory() as own:
        folder = Path(own)
        by_hand(folder)
        averaged(folder)
        predicted(folder)
        failed(folder)
        rank_zero_info("told on rank 0")
        farewell()


if __name__ == "__main__":
    main()
