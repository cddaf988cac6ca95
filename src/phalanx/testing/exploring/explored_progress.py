"""How far an exploration is, behind the test's name or dots on pytest's terminal.

It is written where the cursor is and wiped out before pytest goes on, so that what pytest
prints is the same with and without it. Elsewhere than on a terminal nothing is shown.
"""

from __future__ import annotations

import time
from typing import Any

from phalanx.cli.exploring.explore_progress import BETWEEN_BARS, render_counts, render_progress
from phalanx.explore.explore_options import ExploreOptions
from phalanx.explore.explorer import ExploreProgress
from phalanx.testing.pytest_compat.pytest_private_terminal import CursorLine, cursor_line

FEWEST_COLUMNS = 20
COLUMNS_OF_BAR = 70


class ItemProgress:
    """In a `with` statement around the exploration, called after each run."""

    def __init__(self, config: Any, asked: ExploreOptions) -> None:
        self._asked = asked
        self._line: CursorLine | None = None
        if asked.replay is None:
            self._line = cursor_line(config)
        self._next = 0.0

    def __call__(self, progress: ExploreProgress) -> None:
        now = time.monotonic()
        if self._line is None or now < self._next:
            return
        self._next = now + BETWEEN_BARS
        room = self._line.room
        if room >= COLUMNS_OF_BAR:
            self._line.show(render_progress(progress, self._asked.seconds, room))
        elif room >= FEWEST_COLUMNS:
            self._line.show(render_counts(progress)[:room])

    def __enter__(self) -> ItemProgress:
        return self

    def __exit__(self, *about: object) -> None:
        if self._line is not None:
            self._line.show("")
