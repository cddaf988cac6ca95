"""Training with pytorch-ignite: engines, metrics over all ranks, checkpoints.

    torchrun --nproc-per-node 2 examples/libraries/ignite_train.py
    phalanx run -n 2 examples/libraries/ignite_train.py

`auto_model`, `auto_optim` and `auto_dataloader` make a plain program data-parallel; the metrics
of the evaluator count every rank's batches; rank 0 saves, all ranks load, and training goes on.
"""

import tempfile
from pathlib import Path

import ignite.distributed as idist
import torch
from ignite.engine import Engine, Events, create_supervised_evaluator, create_supervised_trainer
from ignite.handlers import Checkpoint, DiskSaver, EarlyStopping, global_step_from_engine
from ignite.metrics import (
    Accuracy,
    ConfusionMatrix,
    EpochMetric,
    Loss,
    Precision,
    Recall,
    RunningAverage,
)
from ignite.utils import manual_seed
from torch import nn
from torch.utils.data import TensorDataset


def make_data(samples: int) -> TensorDataset:
    generator = torch.Generator().manual_seed(3)
    x = torch.randn(samples, 4, generator=generator)
    y = (x @ torch.tensor([1.0, -1.0, 0.5, 0.0]) > 0).long() + (x[:, 3] > 1).long()
    return TensorDataset(x, y)


def spread(outputs: torch.Tensor, targets: torch.Tensor) -> float:
    """Over all samples of all ranks at once: from the smallest logit to the largest."""
    return float((outputs.max() - outputs.min()) / len(targets))


def make_evaluator(model: nn.Module) -> Engine:
    accuracy = Accuracy()
    metrics = {
        "accuracy": accuracy,
        "error": 1.0 - accuracy,
        "loss": Loss(nn.CrossEntropyLoss()),
        "precision": Precision(average=False),
        "recall": Recall(average=True),
        "confusion": ConfusionMatrix(3),
        "spread": EpochMetric(spread, check_compute_fn=False),
    }
    return create_supervised_evaluator(model, metrics=metrics, device=idist.device())


def plain(value: object) -> object:
    return torch.as_tensor(value).double().mul(1e4).round().div(1e4).tolist()


def train(local_rank: int, folder: Path) -> None:
    manual_seed(10 + idist.get_rank())
    data = make_data(96)
    loader = idist.auto_dataloader(data, batch_size=16, shuffle=True)
    # Not a multiple of the number of ranks times the batch: some batches are smaller.
    test_loader = idist.auto_dataloader(make_data(40), batch_size=16, shuffle=False)
    model = idist.auto_model(nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 3)))
    optimizer = idist.auto_optim(torch.optim.SGD(model.parameters(), lr=0.2))
    trainer = create_supervised_trainer(model, optimizer, nn.CrossEntropyLoss())
    RunningAverage(output_transform=lambda loss: loss).attach(trainer, "running")
    evaluator = make_evaluator(model)

    @trainer.on(Events.EPOCH_STARTED)
    def reshuffle(engine: Engine) -> None:
        loader.sampler.set_epoch(engine.state.epoch)

    @trainer.on(Events.EPOCH_COMPLETED)
    def evaluate(engine: Engine) -> None:
        evaluator.run(test_loader)
        if idist.get_rank() == 0:
            running = plain(engine.state.metrics["running"])
            print(f"epoch {engine.state.epoch} running loss {running}")
            for name, value in sorted(evaluator.state.metrics.items()):
                print(f"epoch {engine.state.epoch} {name}: {plain(value)}")

    checkpoint = Checkpoint(
        {"model": model, "optimizer": optimizer, "trainer": trainer},
        DiskSaver(str(folder), create_dir=True, require_empty=False),
        score_name="accuracy",
        score_function=lambda engine: engine.state.metrics["accuracy"],
        n_saved=2,
        global_step_transform=global_step_from_engine(trainer),
    )
    evaluator.add_event_handler(Events.COMPLETED, checkpoint)
    stopping = EarlyStopping(2, lambda engine: -engine.state.metrics["loss"], trainer)
    evaluator.add_event_handler(Events.COMPLETED, stopping)
    trainer.run(loader, max_epochs=3)
    idist.barrier()
    print(f"rank {idist.get_rank()} files: {sorted(path.name for path in folder.iterdir())}")

    for parameter in model.parameters():
        parameter.data.zero_()
    saved = torch.load(folder / checkpoint.last_checkpoint, weights_only=True)
    Checkpoint.load_objects({"model": model, "optimizer": optimizer, "trainer": trainer}, saved)
    print(f"rank {idist.get_rank()} goes on after epoch {trainer.state.epoch}")
    trainer.run(loader, max_epochs=4)
    weights = sum(p.detach().double().abs().sum() for p in model.parameters())
    print(f"rank {idist.get_rank()} of {idist.get_world_size()} weights {float(weights):.4f}")
    print(f"rank {local_rank} draws {torch.rand(()).item():.4f}")


def main() -> None:
    with idist.Parallel(backend="gloo") as parallel, tempfile.TemporaryDirectory() as own:
        folder = Path(idist.broadcast(own, src=0))
        parallel.run(train, folder)
        idist.barrier()


if __name__ == "__main__":
    main()
