"""`phalanx run --live`: a table of what ranks do, below what the program prints.

The table stands at the bottom of the terminal. Before anything is printed it is wiped out, and
it is drawn again below; so the output scrolls above it and stays whole. The engine's tick
draws: there is no thread. Must never show anything where standard error is no terminal, nor
disturb a rank that asks the user for something.
"""

from __future__ import annotations

import io
import os
import re
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import (
    ExitStack,
    contextmanager,
    redirect_stderr,
    redirect_stdout,
    suppress,
)
from typing import Any, TextIO

from phalanx.engines.look.look_door import RunWatch
from phalanx.report.live.live_rows import LiveRow, RunState, rows_of
from phalanx.report.live.live_table import has_rich, seconds_text, table_lines
from phalanx.system import getpid, monotonic

BETWEEN = 0.2
"""Seconds between two looks at the ranks."""
SHARE = 0.05
"""The part of the time that looking and drawing may take; with many ranks they come less
often."""
LONGEST = 2.0
"""Seconds that a look waits at most, however long the one before took."""
SETTLED = 0.05
"""Seconds after output until the table is there again."""
LEAST_LINES = 8
_STYLE = re.compile(r"\x1b\[[\d;]*m")


class LiveDisplay:
    """`terminal` shows the table; `above` writes to it, or to another stream that leads to the
    same terminal."""

    def __init__(self, terminal: TextIO, *, clock: Callable[[], float] = monotonic) -> None:
        self._terminal = terminal
        self._clock = clock
        self._watch: RunWatch | None = None
        self._began = self._look_at = self._wrote_at = clock()
        self._lines: list[str] = []
        self._drawn: list[int] = []
        """How wide the lines are that stand at the terminal."""
        self._unfinished = False
        """Whether the cursor stands behind a question of a rank."""
        self._asking = False
        self._lock = threading.RLock()
        self.process = getpid()
        self._closed = False
        has_rich()  # to load it takes a while: not when ranks run

    def watch(self, run: RunWatch) -> None:
        """A run begins."""
        self._watch = run
        self._began = self._clock()

    def tick(self) -> None:
        """Called many times a second, while ranks run."""
        now = self._clock()
        if self._watch is None or self._closed:
            return
        if now >= self._look_at:
            first = not self._lines
            self._look(self._watch)
            # The first look loads what later ones have: its time says nothing about theirs.
            spent = 0.0 if first else self._clock() - now
            self._look_at = now + min(max(BETWEEN, spent / SHARE), LONGEST)
        elif not self._drawn and now - self._wrote_at >= SETTLED:
            self._draw()

    def above(self, stream: TextIO, text: str) -> None:
        """Write to the stream, above the table."""
        if getpid() != self.process:  # a forked child: the table is its parent's
            stream.write(text)
            return
        with self._lock:
            self._wipe()
            stream.write(text)
            stream.flush()
            if text:
                self._unfinished = not text.endswith("\n")
                self._wrote_at = self._clock()

    def make_room(self) -> None:
        """Somebody is about to write to the terminal around us, such as `input` for its
        prompt. The table is not drawn again before a look has found out whether it asks."""
        with self._lock:
            self._wipe()
            self._wrote_at = self._clock()
            self._look_at = self._wrote_at + SETTLED

    def close(self) -> None:
        """Wipe the table out for good. The terminal may be gone."""
        with self._lock:
            with suppress(OSError):
                self._wipe()
            self._closed = True
            self._watch = None

    def _look(self, watch: RunWatch) -> None:
        try:
            watch.ask()
            state = watch.state(stacks=False)
            lines = None if state is None else self._picture(state)
        except Exception:  # a look may fail, the run may not
            return
        if state is None or lines is None:
            return
        self._lines = lines
        self._asking = state.asking
        self._draw()

    def _picture(self, state: RunState) -> list[str]:
        size = self._size()
        most = max(1, max(LEAST_LINES, size.lines // 2) - 2)
        rows: list[LiveRow] = rows_of(state, most=most)
        calls = f"{sum(state.steps):,} calls"
        since = seconds_text(self._clock() - self._began)
        title = f"phalanx: {len(state.snapshot.ranks)} ranks, {since}, {calls}"
        return table_lines(rows, title, width=size.columns - 1, most=most, colours=True)

    def _draw(self) -> None:
        with self._lock:
            if self._unfinished or self._asking or self._closed or not self._lines:
                self._wipe()
                return
            text = "".join(f"{line}\n" for line in self._lines)
            self._put(
                f"{self._wiping()}{text}", [len(_STYLE.sub("", each)) for each in self._lines]
            )

    def _wipe(self) -> None:
        if self._drawn:
            self._put(self._wiping(), [])

    def _wiping(self) -> str:
        """To the first line of the table, and clear all below. On a terminal that has become
        narrower meanwhile its lines take more rows."""
        if not self._drawn:
            return ""
        columns = max(1, self._size().columns)
        rows = sum(max(1, -(-width // columns)) for width in self._drawn)
        return f"\x1b[{rows}F\x1b[J"

    def _size(self) -> os.terminal_size:
        """Of the terminal that has the table; standard output may be a file."""
        try:
            return os.get_terminal_size(self._terminal.fileno())
        except (OSError, ValueError):
            return os.terminal_size((80, 24))

    def _put(self, text: str, drawn: list[int]) -> None:
        """Whoever sees the table may press Ctrl-C at once: what stands there is noted even
        when this is interrupted. What was written is in the stream by then, flushed or not."""
        try:
            self._terminal.write(text)
            self._terminal.flush()
        except (OSError, ValueError):  # the terminal is gone
            self._closed = True
        finally:
            self._drawn = drawn


class AboveTable(io.TextIOBase):
    """A stream whose text goes above the table; all else is the original's."""

    def __init__(self, display: LiveDisplay, original: TextIO) -> None:
        self._display = display
        self._original = original

    def write(self, text: str) -> int:
        self._display.above(self._original, text)
        return len(text)

    def flush(self) -> None:
        self._original.flush()

    def fileno(self) -> int:
        """Whoever asks for it writes without this object."""
        if getpid() == self._display.process:
            self._display.make_room()
        return self._original.fileno()

    def isatty(self) -> bool:
        return self._original.isatty()

    def writable(self) -> bool:
        return True

    def close(self) -> None:
        """Does nothing: the stream is the program's."""

    @property
    def buffer(self) -> Any:
        return self._original.buffer

    @property
    def encoding(self) -> str:  # type: ignore[override]
        return self._original.encoding

    @property
    def errors(self) -> str | None:  # type: ignore[override]
        return self._original.errors


@contextmanager
def live_display() -> Iterator[LiveDisplay | None]:
    """The display, if standard error is a terminal. Within the block what is
    printed to a terminal goes above the table."""
    if not _is_terminal(sys.stderr) or os.environ.get("TERM") == "dumb":
        yield None
        return
    out, err = sys.stdout, sys.stderr
    display = LiveDisplay(err)
    with ExitStack() as stack:
        stack.callback(display.close)
        stack.enter_context(redirect_stderr(AboveTable(display, err)))
        if _is_terminal(out):
            stack.enter_context(redirect_stdout(AboveTable(display, out)))
        yield display


def _is_terminal(stream: TextIO | None) -> bool:
    try:
        return stream is not None and stream.isatty()
    except ValueError:  # closed
        return False
