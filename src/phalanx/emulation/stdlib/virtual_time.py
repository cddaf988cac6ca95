"""The time that ranks read while sleeps take none: `--clock virtual`.

A sleep moves the run's clock and not the system's, so what reads the system's clock would see
no time pass. In ranks, and in threads that ranks have started, these functions add what the
run's clock is ahead. A loop that polls until a moment comes to its end: time that really passes
counts, and where it does not, polling takes a little. `datetime.today` and `date.today` ask
`time.time`. In place only while a run has a virtual clock; threads that belong to no rank read
the system's.
"""

from __future__ import annotations

import datetime
import time
from collections.abc import Iterator
from contextlib import ExitStack
from typing import Any

from phalanx.core.clock import VirtualClock
from phalanx.core.computing import let_polling_pass, owed
from phalanx.core.strand import Strand, here
from phalanx.emulation.patch_installer import Held, Patch, put_in
from phalanx.emulation.patch_table import VIRTUAL_CLOCK
from phalanx.emulation.stdlib.virtual_waits import wait_patches

CLOCKS = ("time", "monotonic", "perf_counter")


def _skipped_by(strand: Strand | None) -> float:
    """The seconds that sleeps have skipped, on a clock that moves besides."""
    if strand is None or not strand.baton.clock.jumps:
        return 0.0
    return strand.baton.clock.now()


def _standing() -> VirtualClock | None:
    """The clock of the calling thread if it moves with the run alone."""
    strand = here.strand
    if strand is None or not strand.baton.clock.jumps:
        return None
    let_polling_pass(strand)
    clock = strand.baton.clock
    return clock if clock.rate is not None else None  # type: ignore[return-value]


def time_patches() -> Iterator[Patch]:
    for name in CLOCKS:
        yield time, name, _later(getattr(time, name), name, 1)
        yield time, f"{name}_ns", _later(getattr(time, f"{name}_ns"), name, 10**9)
    for name in ("now", "utcnow"):
        yield datetime.datetime, name, classmethod(_date(vars(datetime.datetime)[name]))


def _later(original: Any, name: str, unit: int) -> Any:
    def read() -> Any:
        clock = _standing()
        if clock is not None:
            shown = clock.origins[name] + clock.now() + owed(here.strand)
            return shown if unit == 1 else round(shown * unit)
        moved = _skipped_by(here.strand) * unit
        return original() + (moved if unit == 1 else round(moved))

    read.__name__ = read.__qualname__ = original.__name__
    return read


def _date(original: Any) -> Any:
    """For subclasses, too, which add nothing to these."""

    def ask(kind: Any, *args: Any, **kwargs: Any) -> Any:
        found = original.__get__(None, kind)(*args, **kwargs)
        if _standing() is None and not _skipped_by(here.strand):
            return found
        if found.tzinfo is None and original.__name__ == "utcnow":
            return kind.fromtimestamp(time.time(), datetime.timezone.utc).replace(tzinfo=None)
        return kind.fromtimestamp(time.time(), found.tzinfo)  # on the other side of a change?

    ask.__name__, ask.__qualname__ = original.__name__, original.__qualname__
    return ask


def _begin(stack: ExitStack) -> None:
    patches = list(time_patches())
    (monotonic,) = (clock for _, name, clock in patches if name == "monotonic")
    patches += wait_patches(monotonic)
    stack.callback(put_in(VIRTUAL_CLOCK, patches))


virtual_time = Held(_begin).held
"""While a run lasts whose clock is virtual."""
