"""Nodes with GPUs: links within a node, links between nodes, and collectives as NCCL has them.

Rank 0 is the first GPU of the first node, and so on, as launchers number ranks. Which algorithm
and protocol a collective takes, and how long, says `nccl_tuning.py`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache

from phalanx.costs.flat_network import AlphaBeta, alpha_beta
from phalanx.costs.nccl_tables import GENERATIONS, REFERENCE_INTER, REFERENCE_INTRA
from phalanx.costs.nccl_tuning import GATHER, REDUCE, ROOT, CollectivePlan, Shape, best_plan
from phalanx.costs.network import (
    EXCHANGES,
    FANS,
    GATHERS,
    REDUCES,
    ROOTED,
    SCATTERS,
    MessageCost,
    number_text,
)
from phalanx.errors import UsageError

TOKEN = 4
"""Bytes that a barrier reduces."""


@dataclass(frozen=True, repr=False)
class Cluster:
    """`intra` links the GPUs of a node: what each of them sends at most; `inter` is one network
    card, of which a node has `nics`. Their `latency` is that of a step in NCCL's Simple
    protocol; those of the other protocols are in proportion."""

    nodes: int
    gpus: int
    intra: AlphaBeta
    inter: AlphaBeta
    nics: int
    gpu: str

    def __post_init__(self) -> None:
        for name in ("nodes", "gpus", "nics"):
            given = getattr(self, name)
            if not isinstance(given, int) or isinstance(given, bool) or given < 1:
                raise UsageError(
                    f"cluster: {name}={given!r}: give a whole number from 1, e.g. {name}=8"
                )
        for name in ("intra", "inter"):
            given = getattr(self, name)
            if not isinstance(given, AlphaBeta):
                raise UsageError(
                    f"cluster: {name}={given!r}: give a link, e.g. "
                    f"{name}=alpha_beta(latency=4e-6, bandwidth=200e9)"
                )
        if self.gpu not in GENERATIONS:
            listed = ", ".join(map(repr, GENERATIONS))
            raise UsageError(f"cluster: gpu={self.gpu!r}: choose one of {listed}")

    def __repr__(self) -> str:
        numbers = (f"{name}={number_text(getattr(self, name))}" for name in ("nodes", "gpus"))
        links = f"intra={self.intra!r}, inter={self.inter!r}"
        return f"cluster({', '.join(numbers)}, {links}, nics={self.nics}, gpu={self.gpu!r})"

    def check_ranks(self, ranks: int) -> None:
        if ranks > self.nodes * self.gpus:
            raise UsageError(
                f"ranks={ranks}: the network has {self.nodes * self.gpus} GPUs (nodes="
                f"{self.nodes}, gpus={self.gpus}); give it more nodes, or run fewer ranks"
            )

    def collective(self, operation: str, size: int, ranks: Sequence[int]) -> float:
        members = tuple(ranks)
        if len(members) < 2:
            return 0.0
        if operation in EXCHANGES or operation in FANS:
            return self._messages(size, members, spread=operation in EXCHANGES)
        return self.plan(operation, size, members).seconds

    def plan(self, operation: str, size: int, ranks: Sequence[int]) -> CollectivePlan:
        """Which algorithm and protocol NCCL takes, and how long it lasts."""
        shape = _shape(self, tuple(ranks))
        if operation in GATHERS or operation in SCATTERS:
            return best_plan(GATHER, size, shape)
        if operation in ROOTED:
            return best_plan(ROOT, size, shape)
        return best_plan(REDUCE, size if operation in REDUCES else TOKEN, shape)

    def message(self, size: int, source: int, target: int) -> MessageCost:
        here, there = source // self.gpus, target // self.gpus
        if here == there:
            ports = (("out", source), ("in", target))
            return MessageCost(size / self.intra.bandwidth, self.intra.latency, ports)
        cards = (("sends", here, self._card(source)), ("receives", there, self._card(target)))
        return MessageCost(size / self.inter.bandwidth, self.inter.latency, cards)

    def _card(self, rank: int) -> int:
        return rank % self.gpus * self.nics // self.gpus

    def _messages(self, size: int, ranks: tuple[int, ...], *, spread: bool) -> float:
        """Every rank, or the root alone, sends an equal part to each of the others: those of
        its node go beside those that leave it."""
        shape = _shape(self, ranks)
        part, near = size / shape.ranks, shape.per_node - 1
        seconds = self.intra.latency + near * part / self.intra.bandwidth
        if shape.nodes > 1:
            leaving = (shape.ranks - shape.per_node) * part * (shape.per_node if spread else 1)
            outside = self.inter.latency + leaving / shape.inter
            seconds = max(seconds, outside)
        return seconds


@lru_cache(maxsize=4096)
def _shape(network: Cluster, ranks: tuple[int, ...]) -> Shape:
    nodes = len({rank // network.gpus for rank in ranks})
    per_node = -(-len(ranks) // nodes)
    cards = min(network.nics, max(1, per_node * network.nics // network.gpus))
    return Shape(
        ranks=len(ranks),
        nodes=nodes,
        intra=network.intra.bandwidth,
        inter=cards * network.inter.bandwidth,
        near=network.intra.latency / REFERENCE_INTRA,
        far=network.inter.latency / REFERENCE_INTER,
        generation=GENERATIONS[network.gpu],
    )


def cluster(
    *,
    nodes: int,
    gpus: int,
    intra: AlphaBeta,
    inter: AlphaBeta,
    nics: int | None = None,
    gpu: str = "a100",
) -> Cluster:
    """Nodes with GPUs, and NCCL on them. `nics`: network cards of a node, one for each GPU
    unless it is said; `gpu`: whose tables NCCL takes, "a100" or "h100". Raises `UsageError`
    for what cannot be.

    >>> nvlink = alpha_beta(latency=3.4e-6, bandwidth=235e9)
    >>> cluster(nodes=2, gpus=8, intra=nvlink, inter=alpha_beta(latency=14e-6, bandwidth=24e9))
    ... # doctest: +NORMALIZE_WHITESPACE
    cluster(nodes=2, gpus=8, intra=alpha_beta(latency=3.4e-6, bandwidth=235e9),
            inter=alpha_beta(latency=14e-6, bandwidth=24e9), nics=8, gpu='a100')
    """
    return Cluster(nodes, gpus, intra, inter, gpus if nics is None else nics, gpu)


def dgx_a100(*, nodes: int = 1) -> Cluster:
    """8 A100 with NVLink 3, and 8 cards of 200 Gb/s InfiniBand."""
    intra = alpha_beta(latency=REFERENCE_INTRA, bandwidth=235e9)
    inter = alpha_beta(latency=REFERENCE_INTER, bandwidth=24e9)
    return cluster(nodes=nodes, gpus=8, intra=intra, inter=inter, gpu="a100")


def dgx_h100(*, nodes: int = 1) -> Cluster:
    """8 H100 with NVLink 4, and 8 cards of 400 Gb/s InfiniBand."""
    intra = alpha_beta(latency=REFERENCE_INTRA, bandwidth=370e9)
    inter = alpha_beta(latency=REFERENCE_INTER, bandwidth=48e9)
    return cluster(nodes=nodes, gpus=8, intra=intra, inter=inter, gpu="h100")
