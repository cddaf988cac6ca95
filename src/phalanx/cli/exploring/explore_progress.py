"""What `phalanx explore` shows while it goes on: a bar on a terminal, else a line now and then.

Called after each run of the program, so it may not take long, and draws only now and then.
"""

from __future__ import annotations

import shutil
import sys
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, TextIO

from phalanx.explore.explore_options import SHRINKING
from phalanx.report.layout import count

if TYPE_CHECKING:
    from phalanx.explore.explorer import ExploreProgress

BETWEEN_BARS = 0.1
BETWEEN_LINES = 10.0
"""Seconds. A log is read later: a line in ten seconds says that it goes on."""
WIDEST_BAR, NARROWEST_BAR = 24, 5


class ProgressLine:
    """Call it with each `ExploreProgress`, and `close` it, which erases the bar."""

    def __init__(
        self,
        sink: TextIO | None = None,
        *,
        seconds: float | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """`seconds`: how long it goes on, where that decides."""
        self._sink = sys.stderr if sink is None else sink
        self._seconds = seconds
        self._clock = clock
        self._is_terminal = self._sink.isatty()
        self._next = clock() + (0.0 if self._is_terminal else BETWEEN_LINES)
        self._width = 0

    def __call__(self, progress: ExploreProgress) -> None:
        now = self._clock()
        if now < self._next:
            return
        self._next = now + (BETWEEN_BARS if self._is_terminal else BETWEEN_LINES)
        if self._is_terminal:
            self._draw(render_progress(progress, self._seconds, self._columns()))
        else:
            self._sink.write(f"phalanx: {render_counts(progress)}\n")
            self._sink.flush()

    def close(self) -> None:
        if self._width:
            self._sink.write(f"\r{' ' * self._width}\r")
            self._sink.flush()
            self._width = 0

    def _columns(self) -> int:
        return shutil.get_terminal_size().columns

    def _draw(self, text: str) -> None:
        self._sink.write(f"\r{text.ljust(self._width)}")
        self._sink.flush()
        self._width = max(self._width, len(text))


def render_progress(progress: ExploreProgress, seconds: float | None, columns: int) -> str:
    """The bar, by whichever limit is nearer, and the counts; no wider than the terminal."""
    counts = render_counts(progress)
    room = min(WIDEST_BAR, columns - 1 - len(counts) - len("[] "))
    if room < NARROWEST_BAR:
        return counts[: columns - 1]
    filled = int(room * _part(progress, seconds))
    return f"[{'#' * filled}{'.' * (room - filled)}] {counts}"


def render_counts(progress: ExploreProgress) -> str:
    """
    >>> from phalanx.explore.explorer import ExploreProgress
    >>> render_counts(ExploreProgress(120, 500, 17, 1, 2.0))
    '120/500 schedules, 60 a second, 17 behaviours, 1 finding'
    """
    of = "" if progress.of is None else f"/{progress.of:,}"
    rate = progress.schedules / progress.seconds if progress.seconds > 0 else 0.0
    counts = (
        f"{progress.schedules:,}{of} schedules, {rate:,.0f} a second, "
        f"{count(progress.behaviours, 'behaviour')}, {count(progress.failures, 'finding')}"
    )
    if progress.stage == SHRINKING:
        return f"{counts.partition(' a second')[0].rpartition(', ')[0]}, making findings small"
    return counts


def _part(progress: ExploreProgress, seconds: float | None) -> float:
    """How much of what was asked for is done, from 0 to 1."""
    parts = [0.0]
    if progress.of:
        parts.append(progress.schedules / progress.of)
    if seconds:
        parts.append(progress.seconds / seconds)
    return min(1.0, max(parts))
