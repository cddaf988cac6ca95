"""Touch state that is swapped with the baton, from a thread that may not hold it.

A thread that a rank started, or a rank that was overtaken while it blocked, finds the state of
the rank that runs. If that is its own rank, it may touch the state, and no hand-over happens
meanwhile. Otherwise it waits for its own rank's turn. Used by the modules whose state is
swapped.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from phalanx.core.strand import RUNNING, Strand


class Visits:
    """Lets threads without the baton touch swapped state while no hand-over happens. A base of
    switchers."""

    def __init__(self) -> None:
        self.owner: Any = None
        """The rank whose state is loaded now."""
        self.visits: Any = None
        """Taken by hand-overs and by those threads; None until there is such a thread."""

    def expect_visits(self) -> Any:
        if self.visits is None:
            self.visits = threading.RLock()
        return self.visits


@contextmanager
def visiting(strand: Strand) -> Iterator[bool]:
    """No hand-over happens inside the block. Yields whether the state of this rank is
    loaded."""
    switcher: Any = strand.baton.switcher
    with switcher.expect_visits():
        yield switcher.owner is strand.local


@contextmanager
def in_turn(strand: Strand) -> Iterator[None]:
    """Hold the baton inside the block; may block. A rank's main thread keeps it afterwards, a
    thread that the rank started gives it back."""
    if strand.state is RUNNING:
        yield
        return
    if strand.helper:
        with visiting(strand) as is_in_place:
            if is_in_place:
                yield
                return
    strand.baton.rejoin(strand)
    try:
        yield
    finally:
        if strand.helper:
            strand.baton.leave(strand)
