"""torch's CUDA generators: each rank has its own, once CUDA is initialised.

Each rank has generator states of its own. When it gets the baton, the process's generators
switch to them, which copies nothing. Seeds that a rank sets before CUDA is initialised are kept
for it. Used by `switcher.py` and `run_patches.py`.
"""

from __future__ import annotations

from functools import cache
from typing import Any

import torch

from phalanx.backend.session import RankContext
from phalanx.backend.torch_private import private_generators as private
from phalanx.core.strand import here

Patch = tuple[Any, str, Any]
OWN = "cuda generators"
LATER = "cuda seeds"


class CudaGenerators:
    """The generators of one run, from the initialisation of CUDA on."""

    def __init__(self) -> None:
        self._live = private.cuda_generators()
        self._outer = [private.share_state(each) for each in self._live]

    def load(self, context: RankContext) -> None:
        own = context.saved.get(OWN)
        is_new = own is None
        if own is None:
            own = context.saved[OWN] = [private.copy_of(each) for each in self._outer]
        for live, state in zip(self._live, own, strict=True):
            private.take_state(live, state)
        if is_new:
            for seed in context.saved.pop(LATER, ()):
                seed()

    def restore(self) -> None:
        for live, state in zip(self._live, self._outer, strict=True):
            private.take_state(live, state)


def cuda_patches() -> list[Patch]:
    """The patches; empty if CUDA is initialised already."""
    if private.cuda_generators():
        return []
    owner, name, later = private.later_place()

    def for_this_rank(call: Any, **kinds: Any) -> None:
        strand = here.strand
        if strand is None or private.cuda_generators():
            later(call, **kinds)
            return
        kept = strand.local.saved.setdefault(LATER, [])
        if kinds.get("seed_all"):
            kept.clear()
        kept.append(call)

    found: list[Patch] = [(owner, name, for_this_rank)]
    if torch.version.cuda is not None:
        found += [
            (owner, name, _then_own(original))
            for owner, name, original in private.init_places()
        ]
    return found


def absent_patches() -> list[Patch]:
    """Drop a rank's seed for an accelerator that cannot exist here: it must not stay with the
    process."""
    return [
        (owner, name, _outside_ranks(getattr(owner, name)))
        for owner, name in private.absent_later_places()
    ]


@cache
def _outside_ranks(later: Any) -> Any:
    def put_off(call: Any, **kinds: Any) -> Any:
        return later(call, **kinds) if here.strand is None else None

    return put_off


def _then_own(original: Any) -> Any:
    """After a rank has initialised CUDA: the present generators are the caller's."""

    def initialise() -> None:
        strand = here.strand
        if strand is None or private.cuda_generators():
            original()
            return
        original()
        switcher: Any = strand.baton.switcher
        switcher.note_cuda(strand.local)

    return initialise
