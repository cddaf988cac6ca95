"""What ranks note of their replicas, as values, and how ranks are told apart by them. Pure.

Made by `backend/evidence/replica_watch.py`, read by the rules of this folder.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Literal, NamedTuple

from phalanx.journal.events import Place

KIND: Literal["replica-drift"] = "replica-drift"

Key = tuple[int, int, bool]
"""A moment: collectives called on the group, steps since the last of them, before or after."""

Settings = tuple[tuple[str, str], ...]


class SamplerFacts(NamedTuple):
    """A `DistributedSampler`, by what the program calls it. `length` is that of its dataset;
    None if it is not known, or not the one that the sampler was made for."""

    name: str
    rank: int
    num_replicas: int
    shuffle: bool
    seed: int
    epoch: int
    drop_last: bool
    total_size: int
    length: int | None = None
    made_by: str = "DistributedSampler"
    """The name of its class."""


class Sample(NamedTuple):
    """One rank at one moment. `step` counts the rank's steps from 1; `gradients`, `settings`,
    `samplers` and `synced` are there before a step only. Checksums are in the order of
    `Replica.names`. `synced` says whether the backward of the model's last forward averages
    gradients; None where that is not known."""

    calls: int
    turn: int
    after: bool
    step: int
    time: float
    mark: Place
    parameters: tuple[Any, ...]
    gradients: tuple[Any, ...] = ()
    settings: Settings = ()
    samplers: tuple[SamplerFacts, ...] = ()
    synced: bool | None = None

    @property
    def key(self) -> Key:
        return self.calls, self.turn, self.after


class Replica(NamedTuple):
    """The parameters of one model that one optimizer of a rank steps. `ranks` have the
    replicas, `number` tells models of the same ranks apart. Replicas of another `machine`
    (host, device, threads) are not compared. `order` is how the optimizer has them; `wrapped`
    are checksums of when DDP had wrapped the model, empty if that is not known, and
    `wrapped_at` says where."""

    ranks: tuple[int, ...]
    number: int
    title: str
    machine: str
    optimizer: str
    names: tuple[str, ...]
    shapes: tuple[tuple[int, ...], ...]
    order: tuple[str, ...]
    samples: tuple[Sample, ...]
    wrapped: tuple[Any, ...] = ()
    wrapped_at: Place = None


def odd_ranks(classes: Sequence[tuple[int, ...]]) -> tuple[int, ...]:
    """The ranks that most others do not agree with; nobody if there is no majority."""
    if len(classes[0]) == len(classes[1]):
        return ()
    return tuple(sorted(rank for ranks in classes[1:] for rank in ranks))


def by_value(values: Mapping[int, Any]) -> list[tuple[Any, tuple[int, ...]]]:
    """The values, with the ranks that have them; the most frequent one first."""
    ranks: dict[Any, list[int]] = {}
    for rank, value in sorted(values.items()):
        ranks.setdefault(value, []).append(rank)
    found = [(value, tuple(who)) for value, who in ranks.items()]
    return sorted(found, key=lambda each: (-len(each[1]), each[1]))
