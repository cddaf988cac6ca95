"""How long NCCL's algorithms take, and which one it takes: the quickest by its own tables.

`plans` gives the time of each algorithm and protocol for one collective on a `Shape`, and
`best_plan` the quickest. Times follow NCCL's model: a base, the steps that have to follow each
other, and the bytes over the bandwidth that the protocol reaches.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache
from math import log2

from phalanx.costs.nccl_tables import (
    BASE,
    INTER,
    INTRA,
    LL,
    LL128,
    MANY_NODES,
    NVLS,
    NVLS_CHUNK,
    NVLS_CHUNKS,
    NVLS_LATENCY,
    NVLS_STEP,
    NVLS_TREE,
    NVLS_TREE_CHUNK_OF_MANY,
    NVLS_TREE_CHUNKS,
    PLATEAU,
    POSTING,
    PROTOCOLS,
    RING,
    SIMPLE,
    TREE,
    TREE_CORRECTION,
    Generation,
)

MICRO, GIGA = 1e-6, 1e9
EFFICIENCY = (0.5, 0.92, 1.0)
"""What part of a ring's bandwidth carries data, by protocol."""
TREE_LL = 1 / 3.8
TREE_LL128 = (7 / 9, 120 / 128)
"""In one node, and over several."""


@dataclass(frozen=True)
class Shape:
    """Where the ranks of a group are. `intra` is the bandwidth of a GPU within a node, `inter`
    that with which the group leaves a node, in bytes per second. `near` and `far` are by how
    much a step takes longer than in NCCL's tables."""

    ranks: int
    nodes: int
    intra: float
    inter: float
    near: float
    far: float
    generation: Generation

    @property
    def per_node(self) -> float:
        return self.ranks / self.nodes

    @property
    def scale(self) -> int:
        """The place in tables by number of nodes."""
        return min(self.nodes, 3) - 1

    @property
    def bandwidth(self) -> float:
        """Of a ring through all ranks, in GB/s."""
        slowest = self.intra if self.nodes == 1 else self.inter
        if 1 < self.nodes < self.ranks:
            slowest = min(self.intra, self.inter)
        return slowest / GIGA


@dataclass(frozen=True)
class CollectivePlan:
    """One way to carry out a collective."""

    algorithm: str
    protocol: str
    seconds: float


REDUCE, GATHER, ROOT = "all_reduce", "all_gather", "broadcast"
"""Kinds of collectives: those that go round twice, once, and from or to a root."""


@lru_cache(maxsize=65536)
def best_plan(kind: str, size: int, shape: Shape) -> CollectivePlan:
    """The quickest; of equal ones the first."""
    return min(plans(kind, size, shape), key=lambda plan: plan.seconds)


def plans(kind: str, size: int, shape: Shape) -> Iterator[CollectivePlan]:
    for protocol in (LL, LL128, SIMPLE):
        yield _ring(kind, size, shape, protocol)
        if kind == REDUCE:
            yield _tree(size, shape, protocol)
    if kind == REDUCE and shape.per_node > 4 and shape.generation.nvls:
        yield _in_switch(size, shape)


def _ring(kind: str, size: int, shape: Shape, protocol: int) -> CollectivePlan:
    bandwidth = _ring_bandwidth(kind, shape, protocol)
    steps = {REDUCE: 2 * (shape.ranks - 1), GATHER: shape.ranks - 1}.get(kind, shape.ranks)
    latency = BASE[RING][protocol]
    near = INTRA[RING][protocol] * shape.near
    far = INTER[RING][protocol] * shape.far
    if kind == ROOT:
        latency += near if shape.nodes == 1 else far
    else:
        crossings = (2 if kind == REDUCE else 1) * (shape.nodes - 1)
        if shape.nodes > 1:
            near = max(near, POSTING * (3 if protocol == SIMPLE else 1))
        latency += max(0, steps - crossings) * near + crossings * far
    chunk = size / (shape.generation.channels * shape.ranks)
    if protocol == SIMPLE and shape.nodes > 1 and kind == REDUCE and chunk >= 64:
        latency *= PLATEAU
    seconds = latency * MICRO + size * steps / shape.ranks / (bandwidth * GIGA)
    return CollectivePlan(RING, PROTOCOLS[protocol], seconds)


def _ring_bandwidth(kind: str, shape: Shape, protocol: int) -> float:
    generation = shape.generation
    found = shape.bandwidth * EFFICIENCY[protocol]
    if protocol == LL:
        return min(found, generation.ll[shape.scale])
    if protocol == LL128:
        if shape.per_node < 2:
            found = shape.bandwidth * 0.7
        return min(found, generation.channels * generation.ring_ll128[shape.scale])
    return found


def _tree(size: int, shape: Shape, protocol: int) -> CollectivePlan:
    """Up a chain in each node and a tree of nodes, and down again: a link carries the data once
    each way. Of two nodes each sends half up and half down."""
    inside = shape.intra / 2 if shape.per_node > 1 else float("inf")
    outside = float("inf")
    if shape.nodes > 1:
        outside = shape.inter / (1 if shape.nodes == 2 else 2)
    generation, scale = shape.generation, shape.scale
    most = generation.channels * generation.tree[scale] / 2
    bandwidth = min(min(inside, outside) / GIGA * 0.92, most)
    if protocol == LL:
        bandwidth = min(bandwidth * TREE_LL, generation.ll[scale] / 2)
    elif protocol == LL128:
        most = generation.channels * generation.tree_ll128[scale] / 2
        bandwidth = min(bandwidth * TREE_LL128[shape.nodes > 1], most)
    place = int(log2(max(64, size))) - 6
    if place < len(TREE_CORRECTION[protocol]):
        bandwidth *= TREE_CORRECTION[protocol][place]
    up = (shape.per_node - 1) * INTRA[TREE][protocol] * shape.near
    up += int(log2(shape.nodes)) * INTER[TREE][protocol] * shape.far
    seconds = (BASE[TREE][protocol] + 2 * up) * MICRO + size / (bandwidth * GIGA)
    return CollectivePlan(TREE, PROTOCOLS[protocol], seconds)


def _in_switch(size: int, shape: Shape) -> CollectivePlan:
    """The switches of NVLink add within nodes, a tree between them. The data goes through in
    rounds of chunks, and the first round has to be through all levels before results come."""
    bandwidth, latency = shape.intra * shape.generation.nvls, NVLS_LATENCY * shape.near
    rules: tuple[tuple[int, int], ...] = NVLS_CHUNKS
    chunk, levels = NVLS_CHUNK, int(log2(shape.nodes))
    if shape.nodes > 1:
        bandwidth = min(bandwidth, shape.inter / (1 if shape.nodes == 2 else 2))
        latency += 2 * levels * NVLS_STEP * shape.far
        chunk = NVLS_TREE_CHUNK_OF_MANY if shape.nodes >= MANY_NODES else chunk
        rules = NVLS_TREE_CHUNKS
    at_once = shape.generation.channels * int(shape.per_node)
    for rounds, smaller in rules:
        if size < rounds * at_once * chunk and chunk > smaller:
            chunk = smaller
    first = min(size, at_once * chunk) * max(1, levels)
    seconds = latency * MICRO + (size + first) / bandwidth
    return CollectivePlan(NVLS if shape.nodes == 1 else NVLS_TREE, PROTOCOLS[SIMPLE], seconds)
