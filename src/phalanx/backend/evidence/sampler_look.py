"""Which `DistributedSampler` a training loop uses, found in the program's frames.

`find_samplers` is called at the first steps of an optimizer (`replica_watch.py`): it looks
through the names of the frames that called it for samplers and for loaders that have one.
`facts_of` reads the public attributes that all ranks must have alike. Nothing is kept alive:
samplers are kept by weak references, and frames keep no copy of their names.
"""

from __future__ import annotations

import sys
import weakref
from collections.abc import Iterator, Mapping
from itertools import islice
from types import FrameType
from typing import Any

from torch.utils.data import BatchSampler, DataLoader
from torch.utils.data.distributed import DistributedSampler

from phalanx import callsite
from phalanx.checks.replicas.replica_samples import SamplerFacts

MOST_FRAMES = 6
MOST_NAMES = 128
"""How many frames of the program, and names in each, are looked through."""

_HELD_BY_US = 3
"""References to a frame's snapshot that are not the program's: of the frame, ours, a call's."""
_OPTIMIZED = 1  # inspect.CO_OPTIMIZED: the frame's names are slots, and no dict

Found = tuple[str, "weakref.ref[DistributedSampler[Any]]"]


def find_samplers(frame: FrameType | None) -> list[Found]:
    """Those that the program's frames from here outwards know, by what they call them."""
    found: dict[str, DistributedSampler[Any]] = {}
    seen = 0
    while frame is not None and seen < MOST_FRAMES:
        if not callsite.is_library(frame.f_code.co_filename):
            seen += 1
            _look_at(frame, found)
        frame = frame.f_back
    return [(name, weakref.ref(sampler)) for name, sampler in found.items()]


def facts_of(found: list[Found]) -> Iterator[SamplerFacts]:
    """Of those that are still there."""
    for name, ref in found:
        sampler = ref()
        if sampler is not None:
            yield SamplerFacts(
                name,
                sampler.rank,
                sampler.num_replicas,
                bool(sampler.shuffle),
                sampler.seed,
                sampler.epoch,
                bool(sampler.drop_last),
                sampler.total_size,
                _length_of(sampler),
                type(sampler).__name__,
            )


def _length_of(sampler: DistributedSampler[Any]) -> int | None:
    """The sampler itself asks its dataset for it in each epoch. A dataset that has grown or
    shrunk since the sampler was made says nothing."""
    try:
        length = len(sampler.dataset)  # type: ignore[arg-type]
    except Exception:  # whatever the program's dataset does
        return None
    parts, total = sampler.num_replicas, sampler.total_size
    is_current = total - parts < length <= total
    if sampler.drop_last and length % parts:
        is_current = total < length < total + parts
    return length if is_current else None


def _look_at(frame: FrameType, found: dict[str, DistributedSampler[Any]]) -> None:
    known: Any = frame.f_locals
    code = frame.f_code
    is_function = bool(code.co_flags & _OPTIMIZED)
    if not isinstance(known, Mapping):  # whatever a metaclass has prepared
        return
    for name, value in islice(list(known.items()), MOST_NAMES):
        _add(name, value, found)
        if name == "self" and hasattr(value, "__dict__"):
            for inner, own in islice(list(vars(value).items()), MOST_NAMES):
                _add(f"self.{inner}", own, found)
    if is_function:
        for name in code.co_names[:MOST_NAMES]:
            _add(name, frame.f_globals.get(name), found)
        if type(known) is dict and sys.getrefcount(known) <= _HELD_BY_US:
            known.clear()  # or the frame would keep alive what the program drops


def _add(name: str, value: Any, found: dict[str, DistributedSampler[Any]]) -> None:
    """By its type alone: `isinstance` would ask any object for its class."""
    for _ in range(3):  # a loader, its batch sampler, its sampler
        kinds = type(value).__mro__
        if DistributedSampler in kinds:
            found.setdefault(name, value)
            return
        if DataLoader in kinds:
            own = vars(value)
            value = own.get("sampler")
            if DistributedSampler not in type(value).__mro__:
                value = own.get("batch_sampler")
        elif BatchSampler in kinds:
            value = vars(value).get("sampler")
        else:
            return
