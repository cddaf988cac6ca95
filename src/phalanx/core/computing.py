"""What computing costs on a virtual clock: charged before others notice what a strand does.

Where the clock has a `rate`, it stands still while a strand computes. Before the strand does
what others may see, `charge` lets the time pass that it has computed, so that ranks compute
side by side although one runs at a time. A strand that polls computes for ever and would never
see the clock move: `let_polling_pass` lets it.
"""

from __future__ import annotations

from phalanx.core.strand import RUNNING, Strand
from phalanx.system import monotonic

COMPUTING = "computing"
FREE_POLLS = 100
"""How often in a row a strand may ask at one moment before it is taken to poll."""
SHORTEST, GROWTH = 1e-6, 0.01
"""Seconds that a poll takes at least, and what part of the time since polling began: half an
hour of polling takes two thousand polls, and ends a hundredth too late at most."""


def owed(strand: Strand | None) -> float:
    """The seconds that it has computed since it got the baton, by the clock."""
    rate = None if strand is None else strand.baton.clock.rate
    if strand is None or not rate or strand.state is not RUNNING:
        return 0.0
    return (monotonic() - strand.began) * rate


def charge(strand: Strand) -> None:
    """Block until the clock has gone on by what the strand has computed; others run."""
    if strand.baton.clock.rate:
        seconds = owed(strand)
        if seconds > 0.0:
            strand.baton.sleep(strand, seconds, COMPUTING)


def forgive(strand: Strand) -> None:
    """What it has done until now was done for others, as moving the data of all."""
    strand.began = monotonic()


def let_polling_pass(strand: Strand) -> None:
    """The strand, which holds the baton, has asked for something that has not happened. After
    many times at one moment it sleeps a little, on a clock that jumps."""
    baton = strand.baton
    if not baton.clock.jumps or strand.state is not RUNNING:
        return
    now = baton.clock.now()
    began, last, count = strand.polls or (now, now, 0)
    if last != now:
        began, count = now, 0
    if count >= FREE_POLLS:
        baton.sleep(strand, max(SHORTEST, (now - began) * GROWTH), COMPUTING)
        now = baton.clock.now()
    strand.polls = (began, now, count + 1)
