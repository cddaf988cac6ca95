"""Where what a rank's child processes print goes.

A child inherits descriptors 1 and 2 of the process, which ranks share. Whoever shows what ranks
print says here how to take what their children print as well: `for_children(rank, place)` is a
descriptor to give to the child in place of 1 or 2. Used by `calls.py`; set by the command line.
"""

from __future__ import annotations

import os
from collections.abc import Callable

from phalanx.core.baton import Strand
from phalanx.running.isolation.descriptors import KEPT, originals

for_children: list[Callable[[int, int], int]] = []
"""The innermost last; empty where nobody wants it."""

PLACES = {"stdout": 1, "stderr": 2}


def child_streams(strand: Strand, given: dict[str, object]) -> dict[str, int]:
    """What to add to the arguments of `subprocess.Popen`: nothing that the program has given,
    nor where the rank has put a file of its own."""
    if not for_children:
        return {}
    return {
        name: for_children[-1](strand.rank, place)
        for name, place in PLACES.items()
        if given.get(name) is None and not is_own(strand, place)
    }


def is_own(strand: Strand, place: int) -> bool:
    """Whether the rank has put a file of its own in place of this descriptor."""
    original = originals.get(place)
    if original is None:
        return False
    if place in strand.local.saved.get(KEPT, {}):
        return True
    return not os.path.sameopenfile(place, original)
