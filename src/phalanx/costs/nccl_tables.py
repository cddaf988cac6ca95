"""The figures by which NCCL tunes itself: latencies, and what a protocol reaches.

Facts from `src/graph/tuning.cc` and `src/enqueue.cc` of github.com/NVIDIA/nccl, as of 2.26.
Microseconds and GB/s there, and here. A protocol is LL (each 8 bytes carry a flag), LL128 (each
128 bytes do) or Simple (flags beside the data): the sooner a receiver knows of its data, the
fewer bytes a link carries.
"""

from __future__ import annotations

from dataclasses import dataclass

LL, LL128, SIMPLE = range(3)
PROTOCOLS = ("LL", "LL128", "Simple")
RING, TREE, NVLS, NVLS_TREE = "ring", "tree", "nvls", "nvls tree"

BASE = {RING: (6.6, 14.0, 8.4), TREE: (6.8, 14.0, 8.4)}
"""Microseconds of every collective, by protocol."""
INTRA = {RING: (0.6, 1.9, 3.4), TREE: (0.6, 1.25, 4.0)}
"""Of each step over NVLink."""
INTER = {RING: (2.7, 4.0, 14.0), TREE: (5.0, 8.5, 14.0)}
"""Of each step over the network."""
NVLS_LATENCY, NVLS_STEP = 25.0, 20.9
"""Of an addition in the switches of NVLink, and of each step between nodes then."""
NVLS_CHUNKS = ((64, 65536), (8, 32768), (2, 16384))
NVLS_TREE_CHUNKS = ((4, 65536), (1, 32768))
"""How NCCL cuts small sizes: below so many rounds of the present chunk, take this one. A round
is one chunk for each channel and each GPU of a node."""
NVLS_CHUNK, NVLS_TREE_CHUNK_OF_MANY = 131072, 65536
"""Bytes of the largest chunk, and of the largest from four nodes on."""
MANY_NODES = 4
POSTING = 1.0
"""Of each step of a ring that leaves a node: the network is told; three times for Simple."""
PLATEAU = 1.4
"""By how much a long ring over nodes is slower in Simple than its steps say."""

REFERENCE_INTRA, REFERENCE_INTER = 3.4e-6, 14e-6
"""Seconds of a step of a ring in Simple: what the `latency` of a link is measured by."""

TREE_CORRECTION = (
    (*[1.0] * 4, 0.9, 0.8, *[0.7] * 4, 0.6, 0.5, 0.4, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9),
    (*[1.0] * 5, 0.9, *[0.8] * 3, 0.7, *[0.6] * 6, 0.8, *[0.9] * 4),
    (*[0.9] * 7, 0.8, 0.7, 0.6, 0.6, *[0.5] * 4, 0.6, 0.7, 0.8, 0.7, 0.7, 0.8, 0.9, 0.9),
)
"""What part of its bandwidth a tree reaches, by protocol and by the power of two of the size,
from 64 bytes on; all of it beyond."""


@dataclass(frozen=True)
class Generation:
    """A generation of GPUs: GB/s by the number of nodes (one, two, more). `ll` is for all
    channels together, the others for each."""

    name: str
    channels: int
    ll: tuple[float, float, float]
    ring_ll128: tuple[float, float, float]
    tree_ll128: tuple[float, float, float]
    tree: tuple[float, float, float]
    nvls: float
    """What part of a link's bandwidth an all-reduce in the switch of one node reaches; 0: the
    switch cannot add."""


A100 = Generation(
    "a100",
    24,
    (87.7, 22.5, 19.0),
    (20.0, 20.0, 20.0),
    (20.0, 20.0, 20.0),
    (24.0, 23.6, 17.8),
    0.0,
)
H100 = Generation(
    "h100",
    16,
    (141.0, 45.0, 35.0),
    (36.7, 36.7, 36.7),
    (36.7, 36.7, 29.0),
    (38.7, 41.4, 36.0),
    0.74,
)
GENERATIONS = {each.name: each for each in (A100, H100)}
