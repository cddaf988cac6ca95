"""File descriptors 1 and 2 of ranks that replace them (`os.dup2`).

Programs do so to catch what C code or a child process writes. From the first time that a rank
does, these descriptors are swapped with the baton. Used by `switcher.py` and `run_patches.py`.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from contextlib import suppress
from typing import Any

from phalanx.backend.session import RankContext
from phalanx.core.strand import here
from phalanx.emulation.state.borrowed_state import in_turn

STANDARD = (1, 2)
KEPT = "descriptors"

Patch = tuple[Any, str, Any]
_dup2: Callable[..., int] = os.dup2
originals: dict[int, int] = {}
"""Copies of descriptors 1 and 2 from before the first rank replaced one. We keep them open."""


def descriptor_patches() -> list[Patch]:
    return [(os, "dup2", _noting)]


def _noting(fd: int, fd2: int, inheritable: bool = True) -> int:
    strand = here.strand
    if strand is None or fd2 not in STANDARD:
        return _dup2(fd, fd2, inheritable)
    with in_turn(strand):
        if fd2 not in originals:
            with suppress(OSError):  # it may be closed
                originals[fd2] = os.dup(fd2)
        return _dup2(fd, fd2, inheritable)


def save(context: RankContext) -> None:
    """Move the rank's files to other descriptors and put the process's back."""
    own = context.saved.setdefault(KEPT, {})
    for place, original in originals.items():
        with suppress(OSError):
            if os.path.sameopenfile(place, original):
                if place in own:
                    os.close(own.pop(place))
                continue
            if place in own:
                _dup2(place, own[place], False)
            else:
                own[place] = os.dup(place)
            _dup2(original, place)


def load(context: RankContext) -> None:
    for place, kept in context.saved.get(KEPT, {}).items():
        _dup2(kept, place)


def end(context: RankContext) -> None:
    """Close what the rank has left at these descriptors."""
    for place, original in originals.items():
        with suppress(OSError):
            _dup2(original, place)
    for kept in context.saved.pop(KEPT, {}).values():
        with suppress(OSError):
            os.close(kept)


def restore() -> None:
    """Put the process's own descriptors back after a run."""
    for place, original in originals.items():
        with suppress(OSError):
            _dup2(original, place)


def forget() -> None:
    """Close the copies after the last world."""
    while originals:
        os.close(originals.popitem()[1])
