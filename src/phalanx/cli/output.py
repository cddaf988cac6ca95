"""Folds what the ranks print: lines that several ranks print alike are shown once.

`phalanx run` sends the standard output of every rank through one `FoldingPrinter`, which
writes `[0-3] epoch 1 loss 0.42` where four ranks printed that line. A complete line waits a
moment as an *entry* for the other ranks to print the same; it is shown when all have, when
it is older than `hold`, or when the ranks it waits for have finished.

The printer must never reorder the lines of one rank, lose one, or split one on the sink. It
starts no thread: whoever owns it calls `tick` now and then. It knows nothing of torch.
"""

from __future__ import annotations

import threading
import time
from bisect import bisect_right
from collections import deque
from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass
from functools import partial
from typing import TextIO


class FoldingPrinter:
    r"""Writes the ranks' lines to `sink`, each with the ranks that printed it.

    `only` names the ranks to show; the lines of all others are dropped and nobody waits for
    them. Errors of the sink (`BrokenPipeError`) reach whoever made the call that printed;
    what that call brought may be lost then, and the printer can be used further.

    >>> import sys
    >>> printer = FoldingPrinter(2, sink=sys.stdout)
    >>> for rank in range(2):
    ...     _ = printer.write(rank, f"hello\nI am {rank}\n")
    [0-1] hello
    >>> printer.close()
    [0]   I am 0
    [1]   I am 1
    """

    def __init__(
        self,
        ranks: int,
        *,
        sink: TextIO,
        hold: float = 0.1,
        only: frozenset[int] | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        everyone = frozenset(range(ranks))
        shown = everyone if only is None else only
        if not shown <= everyone:
            raise ValueError(
                f"only={sorted(shown)} names ranks that do not exist: "
                f"there are {ranks}, numbered from 0"
            )
        self._ranks = ranks
        self._shown = shown
        self._sink = sink
        self._hold = hold
        self._clock = clock
        self._width = len(_label(shown))
        self._partial = {rank: _PartialLine() for rank in shown}
        self._pending = _Pending(shown)
        # Reentrant, because while we print a finalizer or a signal handler may print too,
        # in this very thread. Such a call only leaves its action here; the outer one does
        # it as soon as its own is complete.
        self._lock = threading.RLock()
        self._actions: deque[Callable[[], None]] = deque()
        self._busy = False

    def write(self, rank: int, text: str) -> int:
        """Take any piece of text from a rank; the lines it completes are folded or shown."""
        assert 0 <= rank < self._ranks, f"rank {rank} of {self._ranks}"
        if rank in self._shown:
            self._perform(partial(self._accept, rank, text))
        return len(text)

    def tick(self) -> None:
        """Show the entries that have waited for `hold` or longer."""
        self._perform(self._show_old)

    def finish(self, rank: int) -> None:
        """Say that a rank will print no more: nobody waits for it from now on."""
        if rank in self._shown:
            self._perform(partial(self._leave, (rank,)))

    def close(self) -> None:
        """Show everything that is left, partial lines too, and wait for nobody any more."""
        self._perform(partial(self._leave, tuple(sorted(self._shown))))

    def _perform(self, action: Callable[[], None]) -> None:
        with self._lock:
            self._actions.append(action)
            if self._busy:
                return
            try:
                self._busy = True
                while self._actions:
                    self._actions.popleft()()
            finally:
                self._busy = False

    def _accept(self, rank: int, text: str) -> None:
        for line in self._partial[rank].feed(text):
            self._add(rank, line)

    def _show_old(self) -> None:
        self._show(self._pending.take_since(self._clock() - self._hold))

    def _leave(self, ranks: tuple[int, ...]) -> None:
        for rank in ranks:
            # A blank rest is what a progress bar leaves when it wipes itself out.
            if (line := self._partial[rank].take()).strip():
                self._add(rank, line)
        self._show(self._pending.leave(ranks))

    def _add(self, rank: int, line: str) -> None:
        self._show(self._pending.add(rank, line, now=self._clock()))

    def _show(self, entries: list[_Entry]) -> None:
        if entries:
            self._sink.write("".join(map(self._format, entries)))
            self._sink.flush()

    def _format(self, entry: _Entry) -> str:
        label = _label(entry.ranks)
        return f"{label:{self._width}} {entry.text}\n" if entry.text else f"{label}\n"


class _PartialLine:
    """The text of one rank since its last newline.

    A carriage return restarts the line, so that a progress bar is printed once, with its
    last state; the one before a newline or at the very end restarts nothing yet.
    """

    def __init__(self) -> None:
        # Pieces, not one string: `print(".", end="")` a million times must stay linear.
        self._pieces: list[str] = []

    def feed(self, text: str) -> Iterator[str]:
        """Add text; yield the lines that are complete now."""
        *complete, rest = text.split("\n")
        for piece in complete:
            self._pieces.append(piece)
            yield self.take()
        if rest:
            self._pieces.append(rest)
        if "\r" in rest:
            self._pieces = [_last_state(self.take(raw=True))]

    def take(self, *, raw: bool = False) -> str:
        """Hand out the line and start anew."""
        line = "".join(self._pieces)
        self._pieces.clear()
        return line if raw else _last_state(line).rstrip("\r")


@dataclass
class _Entry:
    """A line that waits: who printed it, since when, and how many may still print it."""

    text: str
    ranks: set[int]
    since: float
    missing: int


class _Pending:
    """The entries not shown yet, numbered in the order they will be shown in.

    Entries leave from the front only. Each `add` costs a binary search, however many wait:
    a rank may print thousands of lines before another one prints its first.
    """

    def __init__(self, ranks: Collection[int]) -> None:
        self._running = set(ranks)
        self._entries: dict[int, _Entry] = {}
        self._first = 0
        self._next = 0
        self._last_of: dict[int, int] = {}
        self._numbers: dict[str, _Numbers] = {}

    def add(self, rank: int, text: str, *, now: float) -> list[_Entry]:
        """Join the entry this line belongs to, or make one; return what is to be shown."""
        same = self._numbers.get(text)
        number = same.first_after(self._last_of.get(rank, -1)) if same else None
        if number is None:
            number = self._append(_Entry(text, set(), now, len(self._running)))
        entry = self._entries[number]
        entry.ranks.add(rank)
        entry.missing -= rank in self._running
        self._last_of[rank] = number
        return [] if entry.missing else self._take(number + 1)

    def leave(self, ranks: Collection[int]) -> list[_Entry]:
        """Wait for these ranks no longer; return what is to be shown."""
        gone = self._running.intersection(ranks)
        self._running -= gone
        end = self._first
        for number, entry in self._entries.items():
            entry.missing -= len(gone - entry.ranks)
            if not entry.missing:
                end = number + 1
        return self._take(end)

    def take_since(self, since: float) -> list[_Entry]:
        """Take the entries that began to wait at this time or before."""
        end = self._first
        while end < self._next and self._entries[end].since <= since:
            end += 1
        return self._take(end)

    def _append(self, entry: _Entry) -> int:
        number = self._next
        self._next += 1
        self._entries[number] = entry
        self._numbers.setdefault(entry.text, _Numbers()).append(number)
        return number

    def _take(self, end: int) -> list[_Entry]:
        taken = []
        while self._first < end:
            entry = self._entries.pop(self._first)
            self._first += 1
            taken.append(entry)
            if not self._numbers[entry.text].drop_first():
                del self._numbers[entry.text]
        return taken


class _Numbers:
    """The numbers of the pending entries with one text, ascending."""

    def __init__(self) -> None:
        self._all: list[int] = []
        self._dropped = 0

    def append(self, number: int) -> None:
        self._all.append(number)

    def first_after(self, number: int) -> int | None:
        index = bisect_right(self._all, number, lo=self._dropped)
        return self._all[index] if index < len(self._all) else None

    def drop_first(self) -> bool:
        """Drop the lowest number; say whether any is left."""
        self._dropped += 1
        # Cutting the list at every call would move its whole rest every time.
        if 2 * self._dropped >= len(self._all):
            del self._all[: self._dropped]
            self._dropped = 0
        return bool(self._all)


def _last_state(line: str) -> str:
    """What the last carriage return before the end left of a line, with those at its end."""
    body = line.rstrip("\r")
    ending = "\r" if len(body) < len(line) else ""
    return body[body.rfind("\r") + 1 :] + ending


def _label(ranks: Collection[int]) -> str:
    """`[0, 2-3]`: shorter than the rank lists of reports, and never cut."""
    runs: list[list[int]] = []
    for rank in sorted(ranks):
        if runs and rank == runs[-1][-1] + 1:
            runs[-1][1:] = [rank]
        else:
            runs.append([rank])
    return f"[{', '.join('-'.join(map(str, run)) for run in runs)}]"
