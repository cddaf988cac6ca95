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
"""What 1 and 2 were before a rank put something there: copies, which we keep open."""


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
    """Keep the rank's files open elsewhere and put the process's back."""
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
    """The rank ends: what it has left there goes with it."""
    for place, original in originals.items():
        with suppress(OSError):
            _dup2(original, place)
    for kept in context.saved.pop(KEPT, {}).values():
        with suppress(OSError):
            os.close(kept)


def restore() -> None:
    """The run is over."""
    for place, original in originals.items():
        with suppress(OSError):
            _dup2(original, place)


def forget() -> None:
    """The last world is closed."""
    while originals:
        os.close(originals.popitem()[1])
