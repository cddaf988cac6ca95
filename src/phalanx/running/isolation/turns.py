"""Touch what is swapped with the baton, from a thread that may not hold it.

A thread that a rank started, or a rank that was overtaken while it blocked, finds the state of
the rank that runs. Before it changes anything it waits for its own rank's turn. Used by the
modules whose state is swapped.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from phalanx.core.baton import RUNNING, Strand


def is_in_place(strand: Strand) -> bool:
    """Whether what the process has now is what the strand's rank has."""
    return strand.state is RUNNING or getattr(strand.baton.switcher, "owner", None) is (
        strand.local
    )


@contextmanager
def in_turn(strand: Strand) -> Iterator[None]:
    """A rank's main thread comes back to stay; a thread it started, for as long as this."""
    if is_in_place(strand):
        yield
    elif not strand.helper:
        strand.baton.rejoin(strand)
        yield
    else:
        strand.baton.rejoin(strand)
        try:
            yield
        finally:
            strand.baton.leave(strand)
