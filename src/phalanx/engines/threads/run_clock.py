"""The clock of a run, and what is kept per strand where computing has a cost.

Made by the threads engine from the options `clock`, `compute` and `network`.
"""

from __future__ import annotations

from phalanx.core.clock import SAME_ORIGINS, Clock, RealClock, VirtualClock
from phalanx.core.strand import Strand
from phalanx.emulation.state.switcher import RankSwitcher
from phalanx.options import Options
from phalanx.system import monotonic


def make_clock(options: Options, *, explored: bool = False) -> Clock:
    """With costs, ranks compute side by side. Runs that are explored begin at one time, or the
    time of day would be another source of chance."""
    if options.clock != "virtual":
        return RealClock()
    rates = {"free": 0.0, "real": None if options.network is None else 1.0}
    how = options.compute
    rate = rates[how] if isinstance(how, str) else float(how)
    return VirtualClock(rate, SAME_ORIGINS if explored else None)


def make_switcher(clock: Clock) -> RankSwitcher:
    return MeasuringSwitcher() if clock.rate else RankSwitcher()


class MeasuringSwitcher(RankSwitcher):
    """Notes when each strand has got the baton."""

    def enter(self, strand: Strand) -> None:
        super().enter(strand)
        strand.began = monotonic()
