"""Lightning starts the ranks itself: strategies "ddp_spawn" and "ddp_fork".

    python examples/libraries/lightning_spawn.py
    phalanx run examples/libraries/lightning_spawn.py

The processes that torch.multiprocessing would start become ranks; what they computed comes back
to the program: a value from Fabric, weights and metrics from the Trainer.
"""

import sys

import lightning as L
import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader


class Regression(L.LightningModule):
    """A line through points."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(2, 1)

    def training_step(self, batch: Tensor, index: int) -> Tensor:
        loss = (self.layer(batch) - batch.sum(1, keepdim=True)).square().mean()
        self.log("loss", loss, sync_dist=True)
        return loss

    def test_step(self, batch: Tensor, index: int) -> None:
        self.log("error", (self.layer(batch) - batch.sum(1, keepdim=True)).abs().max())

    def on_train_end(self) -> None:
        print(f"rank {self.global_rank} of {self.trainer.world_size} has trained")

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.SGD(self.parameters(), lr=0.1)


def points() -> DataLoader[Tensor]:
    generator = torch.Generator().manual_seed(8)
    return DataLoader(torch.randn(32, 2, generator=generator), batch_size=4)


def with_trainer(strategy: str, ranks: int) -> None:
    L.seed_everything(6, verbose=False)
    trainer = L.Trainer(
        accelerator="cpu",
        strategy=strategy,
        devices=ranks,
        max_epochs=2,
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
    )
    model = Regression()
    trainer.fit(model, points())
    loss = float(trainer.callback_metrics["loss"])
    weights = [round(float(weight), 4) for weight in model.layer.weight.flatten()]
    print(f"{strategy} back in the program: loss {loss:.4f}, weights {weights}")
    (tested,) = trainer.test(model, points(), verbose=False)
    print(f"{strategy} tested: {tested['error']:.4f}")


def work(fabric: L.Fabric, factor: int) -> dict[str, float]:
    fabric.seed_everything(fabric.global_rank, verbose=False)
    model, optimizer = fabric.setup(
        net := nn.Linear(2, 1), torch.optim.SGD(net.parameters(), 0.1)
    )
    for batch in fabric.setup_dataloaders(points()):
        loss = (model(batch) - batch.sum(1, keepdim=True)).square().mean()
        optimizer.zero_grad()
        fabric.backward(loss)
        optimizer.step()
    total = fabric.all_reduce(torch.tensor(float(fabric.global_rank + 1)), reduce_op="sum")
    print(f"rank {fabric.global_rank} of {fabric.world_size} ends with {total.item()}")
    return {"total": total.item() * factor, "loss": round(float(fabric.all_reduce(loss)), 4)}


def with_fabric(strategy: str, ranks: int) -> None:
    fabric = L.Fabric(accelerator="cpu", strategy=strategy, devices=ranks)
    print(f"{strategy} returned {fabric.launch(work, 10)}")


def main() -> None:
    ranks = int(sys.argv[1]) if len(sys.argv) > 1 else 2
    with_fabric("ddp_spawn", ranks)
    with_trainer("ddp_spawn", ranks)
    with_fabric("ddp_fork", ranks)
    with_trainer("ddp_fork", ranks)


if __name__ == "__main__":
    main()
