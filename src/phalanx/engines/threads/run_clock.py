"""The clock of a run, and what is kept per strand where computing has a cost.

Made by the threads engine from the options `clock`, `compute` and `network`.
"""

from __future__ import annotations

from phalanx.core.clock import Clock, RealClock, VirtualClock
from phalanx.core.strand import Strand
from phalanx.emulation.state.switcher import RankSwitcher
from phalanx.options import Options
from phalanx.system import monotonic


def make_clock(options: Options) -> Clock:
    """With costs, ranks compute side by side."""
    if options.clock != "virtual":
        return RealClock()
    rates = {"free": 0.0, "real": None if options.network is None else 1.0}
    how = options.compute
    return VirtualClock(rates[how] if isinstance(how, str) else float(how))


def make_switcher(clock: Clock) -> RankSwitcher:
    return MeasuringSwitcher() if clock.rate else RankSwitcher()


class MeasuringSwitcher(RankSwitcher):
    """Notes when each strand has got the baton."""

    def enter(self, strand: Strand) -> None:
        super().enter(strand)
        strand.began = monotonic()
