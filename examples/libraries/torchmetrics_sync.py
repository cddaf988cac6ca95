"""Metrics of torchmetrics over the batches of all ranks.

    torchrun --nproc-per-node 2 examples/libraries/torchmetrics_sync.py
    phalanx run -n 2 examples/libraries/torchmetrics_sync.py

Each rank updates its metrics with its own part of one data set, parts of different sizes;
`compute` gives every rank the value over all of it.
"""

import torch
import torch.distributed as dist
from torchmetrics import MeanMetric, MetricCollection, SumMetric
from torchmetrics.aggregation import CatMetric, MaxMetric
from torchmetrics.classification import (
    BinaryAUROC,
    MulticlassAccuracy,
    MulticlassConfusionMatrix,
    MulticlassF1Score,
)
from torchmetrics.regression import MeanSquaredError, PearsonCorrCoef, SpearmanCorrCoef


def say(label: str, value: object) -> None:
    """Print what all ranks agree on, and fail where they do not."""
    text = str(value)
    texts: list[str] = [""] * dist.get_world_size()
    dist.all_gather_object(texts, text)
    assert all(other == text for other in texts), (label, texts)
    if dist.get_rank() == 0:
        print(f"{label}: {text}")


def rounded(value: torch.Tensor) -> object:
    return (value.double() * 1e4).round().div(1e4).tolist()


def my_part(samples: int) -> slice:
    """Rank r takes r + 1 shares: no two ranks have the same number of samples."""
    rank, world = dist.get_rank(), dist.get_world_size()
    share = samples // (world * (world + 1) // 2)
    start = share * rank * (rank + 1) // 2
    return slice(start, samples if rank == world - 1 else start + share * (rank + 1))


def classification(generator: torch.Generator) -> None:
    logits = torch.randn(120, 5, generator=generator)
    target = torch.randint(5, (120,), generator=generator)
    part = my_part(120)
    metrics = MetricCollection(
        {
            "accuracy": MulticlassAccuracy(5),
            "f1": MulticlassF1Score(5, average="none"),
            "confusion": MulticlassConfusionMatrix(5),
        }
    )
    for rows in torch.arange(120)[part].split(7):
        metrics.update(logits[rows], target[rows])
    for name, value in metrics.compute().items():
        say(name, rounded(value))
    scores = torch.rand(120, generator=generator)
    labels = torch.randint(2, (120,), generator=generator)
    for thresholds in (None, 20):
        auroc = BinaryAUROC(thresholds=thresholds)
        auroc.update(scores[part], labels[part])
        say(f"auroc with thresholds={thresholds}", rounded(auroc.compute()))


def regression(generator: torch.Generator) -> None:
    x = torch.randn(90, generator=generator)
    y = x * 0.5 + torch.randn(90, generator=generator) * 0.3
    part = my_part(90)
    for metric in (MeanSquaredError(), PearsonCorrCoef(), SpearmanCorrCoef()):
        metric.update(x[part], y[part])
        say(type(metric).__name__, rounded(metric.compute()))


def aggregation() -> None:
    rank = dist.get_rank()
    values = torch.arange(rank + 2, dtype=torch.float32) + rank * 10
    for metric in (MeanMetric(), SumMetric(), MaxMetric(), CatMetric()):
        metric.update(values)
        say(type(metric).__name__, rounded(metric.compute()))
    alone = MeanMetric(sync_on_compute=False)
    alone.update(values)
    print(f"rank {rank} alone: {alone.compute().item():.4f}")
    step = MeanMetric(dist_sync_on_step=True)
    say("mean of a step", rounded(step(values)))
    say("mean of the next", rounded(step(values + 1)))
    say("mean of both", rounded(step.compute()))


def main() -> None:
    dist.init_process_group("gloo")
    generator = torch.Generator().manual_seed(7)
    classification(generator)
    regression(generator)
    aggregation()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
