"""Lightning's Trainer with DDP: fit, validate, test, predict, callbacks, checkpoints.

    torchrun --nproc-per-node 2 examples/libraries/lightning_trainer.py
    phalanx run -n 2 examples/libraries/lightning_trainer.py

A classifier with metrics of torchmetrics; what it logs is reduced over all ranks. Training
stops early, the best weights are loaded for the test, and a second trainer goes on from there.
"""

import os
import tempfile
from pathlib import Path
from typing import Any

import lightning as L
import torch
from lightning.pytorch.callbacks import Callback, EarlyStopping, ModelCheckpoint
from lightning.pytorch.loggers import CSVLogger
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset
from torchmetrics.classification import BinaryAUROC, MulticlassAccuracy


class Data(L.LightningDataModule):
    """Points in the plane, labelled by which side of a curve they are on."""

    def prepare_data(self) -> None:
        print(f"rank {self.trainer.global_rank} prepares data")

    def setup(self, stage: str) -> None:
        generator = torch.Generator().manual_seed(5)
        x = torch.randn(200, 2, generator=generator)
        y = (x[:, 1] > torch.sin(2 * x[:, 0])).long()
        self.parts = TensorDataset(x[:120], y[:120]), TensorDataset(x[120:170], y[120:170])
        self.held_out = TensorDataset(x[170:], y[170:])

    def train_dataloader(self) -> DataLoader[Any]:
        return DataLoader(self.parts[0], batch_size=10, shuffle=True)

    def val_dataloader(self) -> DataLoader[Any]:
        return DataLoader(self.parts[1], batch_size=10)

    def test_dataloader(self) -> DataLoader[Any]:
        return DataLoader(self.held_out, batch_size=10)

    predict_dataloader = test_dataloader


class Classifier(L.LightningModule):
    """A small network with dropout; logs by step, by epoch, and reduced over ranks."""

    def __init__(self, width: int, lr: float) -> None:
        super().__init__()
        self.save_hyperparameters()
        layers = nn.Linear(2, width), nn.ReLU(), nn.Dropout(0.1), nn.Linear(width, 2)
        self.net = nn.Sequential(*layers)
        self.accuracy = MulticlassAccuracy(2)
        self.auroc = BinaryAUROC()

    def forward(self, x: Tensor) -> Tensor:
        return self.net(x)

    def training_step(self, batch: tuple[Tensor, Tensor], index: int) -> Tensor:
        x, y = batch
        loss = nn.functional.cross_entropy(self(x), y)
        self.log("train_loss", loss, on_step=False, on_epoch=True, sync_dist=True)
        return loss

    def validation_step(self, batch: tuple[Tensor, Tensor], index: int) -> None:
        self.evaluate(batch, "val")

    def test_step(self, batch: tuple[Tensor, Tensor], index: int) -> None:
        self.evaluate(batch, "test")

    def evaluate(self, batch: tuple[Tensor, Tensor], stage: str) -> None:
        x, y = batch
        logits = self(x)
        self.accuracy(logits, y)
        self.auroc(logits.softmax(1)[:, 1], y)
        loss = nn.functional.cross_entropy(logits, y)
        self.log(f"{stage}_loss", loss, sync_dist=True)
        self.log(f"{stage}_max", loss, sync_dist=True, reduce_fx="max")
        self.log(f"{stage}_accuracy", self.accuracy)
        self.log(f"{stage}_auroc", self.auroc)

    def predict_step(self, batch: tuple[Tensor, Tensor], index: int) -> Tensor:
        return self(batch[0]).argmax(1)

    def configure_optimizers(self) -> dict[str, Any]:
        optimizer = torch.optim.AdamW(self.parameters(), lr=self.hparams["lr"])
        return {
            "optimizer": optimizer,
            "lr_scheduler": torch.optim.lr_scheduler.StepLR(optimizer, 2, 0.5),
        }


class Diary(Callback):
    """Prints, on rank 0, what every epoch ended with."""

    def on_validation_epoch_end(self, trainer: L.Trainer, module: L.LightningModule) -> None:
        if trainer.is_global_zero and not trainer.sanity_checking:
            values = {name: round(float(v), 4) for name, v in trainer.callback_metrics.items()}
            print(f"epoch {trainer.current_epoch} {dict(sorted(values.items()))}")


def make_trainer(folder: Path, epochs: int, *callbacks: Callback) -> L.Trainer:
    return L.Trainer(
        accelerator="cpu",
        strategy="ddp",
        devices=int(os.environ.get("WORLD_SIZE", 2)),
        max_epochs=epochs,
        callbacks=[Diary(), *callbacks],
        logger=CSVLogger(folder, name="log", version=0),
        log_every_n_steps=2,
        accumulate_grad_batches=2,
        gradient_clip_val=1.0,
        deterministic=True,
        enable_progress_bar=False,
        enable_model_summary=False,
    )


def main() -> None:
    L.seed_everything(11, workers=True)
    with tempfile.TemporaryDirectory() as own:
        checkpoint = ModelCheckpoint(
            dirpath=None, filename="{epoch}-{val_loss:.3f}", monitor="val_loss", save_last=True
        )
        stopping = EarlyStopping("val_loss", patience=1, min_delta=0.04)
        trainer = make_trainer(Path(own), 5, checkpoint, stopping)
        data, model = Data(), Classifier(width=16, lr=0.02)
        trainer.fit(model, data)
        rank = trainer.global_rank
        print(f"rank {rank} stopped: epoch {trainer.current_epoch}, step {trainer.global_step}")
        weights = sum(p.detach().double().abs().sum() for p in model.parameters())
        print(f"rank {rank} weights {float(weights):.4f}")
        best = Path(checkpoint.best_model_path)
        print(f"rank {rank} best {best.name}, last {Path(checkpoint.last_model_path).name}")

        (tested,) = trainer.test(model, data, ckpt_path="best", verbose=False)
        print(f"rank {rank} tested", {name: round(v, 4) for name, v in sorted(tested.items())})
        predicted = trainer.predict(model, data)
        print(f"rank {rank} predicts {[batch.tolist() for batch in predicted]}")

        again = Classifier.load_from_checkpoint(best)
        trainer = make_trainer(Path(own), 7)
        trainer.fit(again, data, ckpt_path=best)
        print(f"rank {rank} went on: epoch {trainer.current_epoch}, step {trainer.global_step}")
        trainer.strategy.barrier()


if __name__ == "__main__":
    main()
