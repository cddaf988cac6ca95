"""A flat network: every rank has a link of its own to a switch, both ways at once.

The time of a step is `latency` and the bytes over `bandwidth`. Collectives go as Gloo has them:
rings for what all ranks get a part of, a binomial tree for a broadcast, messages to or from the
root for gather and scatter, dissemination for a barrier. Gloo's processes of one machine are
such a network, and so are machines with one rank each. Where ranks share cores, which carry the
data, more ranks than cores take turns in every step.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import ceil, log2

from phalanx.costs.network import (
    EXCHANGES,
    FANS,
    GATHERS,
    REDUCES,
    ROOTED,
    SCATTERS,
    MessageCost,
    check_positive,
    number_text,
)


@dataclass(frozen=True, repr=False)
class AlphaBeta:
    """`latency` is in seconds, `bandwidth` in bytes per second."""

    latency: float
    bandwidth: float
    cores: int | None = None

    def __post_init__(self) -> None:
        check_positive("alpha_beta", "latency", self.latency, "5e-6")
        check_positive("alpha_beta", "bandwidth", self.bandwidth, "12e9")
        if self.cores is not None:
            check_positive("alpha_beta", "cores", self.cores, "2")

    def __repr__(self) -> str:
        latency, bandwidth = number_text(self.latency), number_text(self.bandwidth)
        cores = "" if self.cores is None else f", cores={self.cores}"
        return f"alpha_beta(latency={latency}, bandwidth={bandwidth}{cores})"

    def step(self, size: float) -> float:
        """Seconds until so many bytes are at a neighbour."""
        return self.latency + size / self.bandwidth

    def collective(self, operation: str, size: int, ranks: Sequence[int]) -> float:
        count = len(ranks)
        if count < 2:
            return 0.0
        turns = 1.0 if self.cores is None else max(1.0, count / self.cores)
        return turns * self._alone(operation, size, count)

    def _alone(self, operation: str, size: int, count: int) -> float:
        part = size / count
        if operation in REDUCES:
            return 2 * (count - 1) * self.step(part)
        if operation in GATHERS or operation in SCATTERS or operation in EXCHANGES:
            return (count - 1) * self.step(part)
        if operation in ROOTED:
            return ceil(log2(count)) * self.step(size)
        if operation in FANS:
            return self.latency + (count - 1) * part / self.bandwidth
        return ceil(log2(count)) * self.step(0)

    def message(self, size: int, source: int, target: int) -> MessageCost:
        ports = (("out", source), ("in", target))
        return MessageCost(size / self.bandwidth, self.latency, ports)

    def check_ranks(self, ranks: int) -> None:
        """Any number has a place."""


def alpha_beta(*, latency: float, bandwidth: float, cores: int | None = None) -> AlphaBeta:
    """A network, or a kind of link in one, by two constants: seconds that a step takes at
    least, and bytes per second. `cores`: how many all ranks share that carry the data, as
    Gloo's processes of one machine do. Raises `UsageError` for what is no number above 0.

    >>> alpha_beta(latency=5e-6, bandwidth=12e9)
    alpha_beta(latency=5e-6, bandwidth=12e9)
    """
    return AlphaBeta(latency, bandwidth, cores)
