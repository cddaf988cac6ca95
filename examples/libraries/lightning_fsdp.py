"""Fully sharded training with Lightning, on CPUs: Fabric first, then the Trainer.

    torchrun --nproc-per-node 2 examples/libraries/lightning_fsdp.py
    phalanx run -n 2 examples/libraries/lightning_fsdp.py

Lightning offers its FSDP strategies for GPUs, but it asks for the exact class: a subclass may
run on CPUs. There FSDP has to be told the device, so the model is wrapped by hand. Checkpoints
are sharded: torch crashes when it gathers full ones from parameters on the CPU.
"""

import os
import tempfile
from pathlib import Path

import lightning as L
import torch
from lightning.fabric.strategies import FSDPStrategy as FabricFSDP
from lightning.pytorch.strategies import FSDPStrategy as TrainerFSDP
from torch import Tensor, nn
from torch.distributed.fsdp import FullyShardedDataParallel
from torch.distributed.fsdp.wrap import ModuleWrapPolicy
from torch.utils.data import DataLoader, TensorDataset


class Block(nn.Module):
    """A residual layer: the unit that is sharded."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(width, width), nn.GELU(), nn.Linear(width, width))

    def forward(self, x: Tensor) -> Tensor:
        return x + self.layers(x)


class CPUFabricFSDP(FabricFSDP):
    """Fabric's strategy, allowed on CPUs."""


class CPUTrainerFSDP(TrainerFSDP):
    """The Trainer's strategy, allowed on CPUs."""


def make_loader() -> DataLoader[tuple[Tensor, ...]]:
    generator = torch.Generator().manual_seed(2)
    x = torch.randn(64, 8, generator=generator)
    return DataLoader(TensorDataset(x, x.cumsum(1).tanh()), batch_size=8)


def make_net() -> nn.Module:
    net = nn.Sequential(Block(8), Block(8), nn.Linear(8, 8))
    return FullyShardedDataParallel(
        net,
        auto_wrap_policy=ModuleWrapPolicy({Block}),
        device_id=torch.device("cpu"),
        use_orig_params=True,
    )


def full_norm(model: nn.Module) -> float:
    with FullyShardedDataParallel.summon_full_params(model):
        return float(sum(p.detach().double().square().sum() for p in model.parameters()))


def with_fabric(folder: Path) -> None:
    strategy = CPUFabricFSDP(state_dict_type="sharded")
    devices = int(os.environ.get("WORLD_SIZE", 2))
    fabric = L.Fabric(accelerator="cpu", strategy=strategy, devices=devices)
    fabric.launch()
    fabric.seed_everything(4, verbose=False)
    model = fabric.setup_module(make_net())
    optimizer = fabric.setup_optimizers(torch.optim.Adam(model.parameters(), lr=0.01))
    loader = fabric.setup_dataloaders(make_loader())
    for epoch in range(2):
        total = torch.zeros(())
        for x, y in loader:
            loss = nn.functional.mse_loss(model(x), y)
            fabric.backward(loss)
            fabric.clip_gradients(model, optimizer, max_norm=1.0)
            optimizer.step()
            optimizer.zero_grad()
            total += loss.detach()
        fabric.print(f"fabric epoch {epoch} loss {fabric.all_reduce(total).item():.5f}")
    local = sum(p.numel() for p in model.parameters())
    print(f"rank {fabric.global_rank} keeps {local} parameters")
    path = Path(fabric.broadcast(str(folder))) / "fabric.ckpt"
    fabric.save(path, {"model": model, "optimizer": optimizer})
    before = full_norm(model._forward_module)
    for parameter in model.parameters():
        parameter.data.zero_()
    fabric.load(path, {"model": model, "optimizer": optimizer})
    after = full_norm(model._forward_module)
    print(f"rank {fabric.global_rank} norm {before:.5f}, loaded {after:.5f}")


class Regression(L.LightningModule):
    """The same model for the Trainer."""

    def configure_model(self) -> None:
        if not hasattr(self, "net"):
            self.net = make_net()

    def training_step(self, batch: tuple[Tensor, Tensor], index: int) -> Tensor:
        loss = nn.functional.mse_loss(self.net(batch[0]), batch[1])
        self.log("loss", loss, on_epoch=True, on_step=False, sync_dist=True)
        return loss

    def validation_step(self, batch: tuple[Tensor, Tensor], index: int) -> None:
        loss = nn.functional.mse_loss(self.net(batch[0]), batch[1])
        self.log("val_loss", loss, sync_dist=True)

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.Adam(self.parameters(), lr=0.01)


def with_trainer(folder: Path) -> None:
    L.seed_everything(4, verbose=False)
    trainer = L.Trainer(
        accelerator="cpu",
        strategy=CPUTrainerFSDP(state_dict_type="sharded"),
        devices=int(os.environ.get("WORLD_SIZE", 2)),
        max_epochs=2,
        default_root_dir=folder,
        logger=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        enable_checkpointing=False,
    )
    model = Regression()
    trainer.fit(model, make_loader(), make_loader())
    metrics = {name: round(float(value), 5) for name, value in trainer.callback_metrics.items()}
    print(f"rank {trainer.global_rank} trainer {dict(sorted(metrics.items()))}")
    path = Path(trainer.strategy.broadcast(str(folder))) / "trainer.ckpt"
    trainer.save_checkpoint(path)
    (result,) = trainer.validate(Regression(), make_loader(), ckpt_path=path, verbose=False)
    print(f"rank {trainer.global_rank} loaded {result['val_loss']:.5f}")
    trainer.strategy.barrier()


def main() -> None:
    with tempfile.TemporaryDirectory() as own:
        with_fabric(Path(own))
        with_trainer(Path(own))


if __name__ == "__main__":
    main()
