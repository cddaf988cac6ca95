"""The time that ranks read while sleeps take none: `--clock virtual`.

A sleep moves the run's clock and not the system's, so what reads the system's clock would see
no time pass. In ranks, and in threads that ranks have started, these functions add what sleeps
have skipped. Time that really passes counts as well: a loop that polls until a moment comes to
its end. `datetime.today` and `date.today` ask `time.time`. In place only while a run has a
virtual clock; threads that belong to no rank read the system's.
"""

from __future__ import annotations

import datetime
import time
from collections.abc import Iterator
from typing import Any

from phalanx.core.strand import here
from phalanx.emulation.patch_installer import Held, Patch, put_in
from phalanx.emulation.patch_table import VIRTUAL_CLOCK

CLOCKS = ("time", "monotonic", "perf_counter")


def skipped() -> float:
    """The seconds that sleeps have skipped, for the calling thread."""
    strand = here.strand
    if strand is None or not strand.baton.clock.jumps:
        return 0.0
    return strand.baton.clock.now()


def time_patches() -> Iterator[Patch]:
    for name in CLOCKS:
        yield time, name, _later(getattr(time, name), 1)
        yield time, f"{name}_ns", _later(getattr(time, f"{name}_ns"), 10**9)
    for name in ("now", "utcnow"):
        yield datetime.datetime, name, classmethod(_date(vars(datetime.datetime)[name]))


def _later(original: Any, unit: int) -> Any:
    def read() -> Any:
        moved = skipped() * unit
        return original() + (moved if unit == 1 else round(moved))

    read.__name__ = read.__qualname__ = original.__name__
    return read


def _date(original: Any) -> Any:
    """For subclasses, too, which add nothing to these."""

    def ask(kind: Any, *args: Any, **kwargs: Any) -> Any:
        found = original.__get__(None, kind)(*args, **kwargs)
        moved = skipped()
        if not moved:
            return found
        if found.tzinfo is None and original.__name__ == "utcnow":
            return found + datetime.timedelta(seconds=moved)
        return kind.fromtimestamp(time.time(), found.tzinfo)  # on the other side of a change?

    ask.__name__, ask.__qualname__ = original.__name__, original.__qualname__
    return ask


virtual_time = Held(lambda stack: stack.callback(put_in(VIRTUAL_CLOCK, time_patches()))).held
"""While a run lasts whose clock is virtual."""
