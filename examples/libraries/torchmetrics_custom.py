"""A metric of one's own with torchmetrics: states of every reduction, and when they are synced.

    torchrun --nproc-per-node 2 examples/libraries/torchmetrics_custom.py
    phalanx run -n 2 examples/libraries/torchmetrics_custom.py

`Words` keeps sums, extremes, a list that is concatenated and a pair that a function reduces;
rank 0 has no words at all. The states are synced by hand, in a context, within a subgroup, and
saved and loaded.
"""

from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torchmetrics import Metric
from torchmetrics.wrappers import MinMaxMetric, Running


class Words(Metric):
    """Lengths of words: how many, the longest, the shortest, each of them, and the spread."""

    full_state_update = False

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        self.add_state("count", torch.tensor(0), dist_reduce_fx="sum")
        self.add_state("mean", torch.tensor(0.0), dist_reduce_fx="mean")
        self.add_state("longest", torch.tensor(0), dist_reduce_fx="max")
        self.add_state("shortest", torch.tensor(99), dist_reduce_fx="min")
        self.add_state("lengths", [], dist_reduce_fx="cat")
        self.add_state("pairs", torch.zeros(2), dist_reduce_fx=lambda stacked: stacked.prod(0))
        self.add_state("per_rank", torch.tensor(0), dist_reduce_fx=None)

    def update(self, words: str) -> None:
        lengths = torch.tensor([len(word) for word in words.split()], dtype=torch.long)
        self.count += lengths.numel()
        if lengths.numel():
            self.mean = lengths.double().mean().float()
            self.longest = torch.maximum(self.longest, lengths.max())
            self.shortest = torch.minimum(self.shortest, lengths.min())
        self.lengths.append(lengths)
        self.pairs = torch.tensor([float(lengths.numel() + 1), 2.0])
        self.per_rank = lengths.sum()

    def compute(self) -> dict[str, Any]:
        lengths = torch.cat(self.lengths) if isinstance(self.lengths, list) else self.lengths
        return {
            "count": self.count.item(),
            "mean": round(self.mean.item(), 4),
            "range": (self.shortest.item(), self.longest.item()),
            "lengths": lengths.tolist(),
            "pairs": self.pairs.tolist(),
            "per rank": self.per_rank.tolist(),
        }


def show(label: str, value: object) -> None:
    print(f"rank {dist.get_rank()} {label}: {value}")


def text_of(rank: int) -> str:
    words = "a phalanx is a column of ranks that move as one and hold their shields together"
    return " ".join(words.split()[: 3 * rank])


def contexts(metric: Words) -> None:
    show("unsynced", {"count": metric.count.item()})
    with metric.sync_context():
        show("in the context", {"count": metric.count.item()})
    show("after it", {"count": metric.count.item()})
    metric.sync()
    show("synced by hand", metric.per_rank.tolist())
    metric.unsync()
    show("unsynced again", metric.per_rank.tolist())


def saved_and_loaded(metric: Words) -> None:
    metric.persistent(True)
    state = metric.state_dict()
    show("saved", sorted(state))
    other = Words()
    other.persistent(True)
    other.load_state_dict(state)
    other.update("more words")
    show("loaded", other.compute()["count"])


def in_a_subgroup() -> None:
    """Even and odd ranks keep metrics of their own."""
    world = dist.get_world_size()
    halves = [dist.new_group(list(range(start, world, 2))) for start in (0, 1)]
    metric = Words(process_group=halves[dist.get_rank() % 2])
    metric.update(text_of(dist.get_rank() + 1))
    show("in its half", metric.compute()["count"])


def wrapped() -> None:
    tracked = MinMaxMetric(Longest())
    running = Running(Longest(), window=2)
    for step in range(3):
        words = text_of(dist.get_rank() + step)
        values = tracked(words)
        running(words)
    show("min and max", {name: float(value) for name, value in values.items()})
    show("running", float(running.compute()))


class Longest(Metric):
    """The longest word alone, as a scalar that wrappers take."""

    full_state_update = False

    def __init__(self) -> None:
        super().__init__()
        self.add_state("longest", torch.tensor(0.0), dist_reduce_fx="max")

    def update(self, words: str) -> None:
        longest = max((len(word) for word in words.split()), default=0)
        self.longest = torch.maximum(self.longest, torch.tensor(float(longest)))

    def compute(self) -> Tensor:
        return self.longest


def main() -> None:
    dist.init_process_group("gloo")
    metric = Words()
    metric.update(text_of(dist.get_rank()))
    contexts(metric)
    show("all", metric.compute())
    saved_and_loaded(metric)
    in_a_subgroup()
    wrapped()
    each = Words(dist_sync_on_step=True)
    show("a step", each(text_of(1))["count"])
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
