"""A progress bar for a terminal, written with nothing but carriage returns.

Used by commands that do many small things. It draws at most ten times a second, and never
on anything that is not a terminal.
"""

from __future__ import annotations

import shutil
import time
from collections.abc import Callable
from typing import TextIO

BETWEEN = 0.1


class ProgressBar:
    """Call `step` after each thing done, and `close` to erase the bar."""

    def __init__(
        self,
        total: int,
        *,
        sink: TextIO,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._total = total
        self._sink = sink
        self._clock = clock
        self._done = 0
        self._drawn = -BETWEEN
        self._width = 0
        self._shown = sink.isatty()

    def step(self, note: str = "") -> None:
        self._done += 1
        if self._shown and self._clock() - self._drawn >= BETWEEN:
            self._drawn = self._clock()
            self._draw(render_bar(self._done, self._total, note, self._columns()))

    def close(self) -> None:
        self._draw("")

    def _columns(self) -> int:
        return shutil.get_terminal_size().columns

    def _draw(self, text: str) -> None:
        if self._shown:
            self._sink.write(f"\r{text.ljust(self._width)}\r{text}")
            self._sink.flush()
            self._width = len(text)


def render_bar(done: int, total: int, note: str, columns: int) -> str:
    """`[#####.....] 1,020/3,644 note`, no wider than the terminal.

    >>> render_bar(5, 10, "all_reduce", 60)
    '[###############...............]  5/10 all_reduce'
    """
    room = min(30, max(5, columns - 40))
    filled = room * done // max(total, 1)
    counted = f"{done:,}".rjust(len(f"{total:,}"))
    text = f"[{'#' * filled}{'.' * (room - filled)}] {counted}/{total:,} {note}"
    return text[: columns - 1]
