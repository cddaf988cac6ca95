"""Folds what the ranks print: lines that several ranks print alike are shown once.

`phalanx run` sends the standard output of every rank through one `FoldingPrinter`, which
writes `[0-3] epoch 1 loss 0.42` where four ranks printed that line. A complete line waits a
moment as an *entry* for the other ranks to print the same; it is shown when all have, when
it is older than `hold`, or when the ranks it waits for have finished. Ranks often run one
after the other, each printing many lines in a row, so what a rank alone has printed moves in
front of an earlier entry where that lets its next line join the entry.

The printer must never reorder the lines of one rank, lose one, or split one on the sink. It
starts no thread: its owner calls `tick` now and then. It knows nothing of torch.
"""

from __future__ import annotations

import threading
import time
from bisect import bisect_left
from collections import deque
from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass, field
from functools import partial
from heapq import heappop, heappush
from math import inf
from typing import TextIO

PROMPTS = (") ", "> ", ": ", "? ")
"""Ends of an unfinished line that asks the user: `(Pdb) `, `>>> `, `Continue? `."""


class FoldingPrinter:
    r"""Writes the ranks' lines to `sink`, each with the ranks that printed it.

    `only` names the ranks to show; the lines of all others are dropped, and no entry waits for
    them. Errors of the sink (`BrokenPipeError`) are raised by the call that printed. The text
    of that call may be lost then, and the printer can still be used.

    >>> import sys
    >>> printer = FoldingPrinter(2, sink=sys.stdout)
    >>> for rank in range(2):
    ...     _ = printer.write(rank, f"I am {rank}\nready\n")
    [0]   I am 0
    [1]   I am 1
    [0-1] ready
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
        """A rank prints no more: no entry waits for it from now on."""
        if rank in self._shown:
            self._perform(partial(self._leave, (rank,)))

    def prompt(self, rank: int) -> None:
        """A rank has flushed: if its unfinished line asks for input, show it as it is."""
        if rank in self._shown:
            self._perform(partial(self._ask, rank))

    def make_room(self, rank: int) -> None:
        """A rank is about to write to the terminal by itself: show what waits, first."""
        if rank in self._shown:
            self._perform(lambda: self._show(self._pending.take_since(float("inf"))))

    def close(self) -> None:
        """Show everything that is left, partial lines too."""
        self._perform(partial(self._leave, tuple(sorted(self._shown))))

    def begin_anew(self, ranks: int) -> None:
        """All ranks have ended, and others print from now on, not more than there were: show
        everything that is left."""
        self._perform(partial(self._begin, ranks))

    def _begin(self, ranks: int) -> None:
        self._leave(tuple(sorted(self._shown)))
        here = frozenset(rank for rank in self._shown if rank < ranks)
        self._partial = {rank: _PartialLine() for rank in self._shown}
        self._pending = _Pending(here)

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

    def _ask(self, rank: int) -> None:
        question = self._partial[rank].peek()
        if question.endswith(PROMPTS):
            self._partial[rank].take()
            self._show(self._pending.take_since(float("inf")))
            self._sink.write(f"{_label((rank,)):{self._width}} {question}")
            self._sink.flush()

    def _add(self, rank: int, line: str) -> None:
        self._show(self._pending.add(rank, line, now=self._clock()))

    def _show(self, entries: list[_WaitingLine]) -> None:
        if entries:
            self._sink.write("".join(map(self._format, entries)))
            self._sink.flush()

    def _format(self, entry: _WaitingLine) -> str:
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

    def peek(self) -> str:
        return "".join(self._pieces)

    def take(self, *, raw: bool = False) -> str:
        """Hand out the line and start anew."""
        line = "".join(self._pieces)
        self._pieces.clear()
        return line if raw else _last_state(line).rstrip("\r")


# Where an entry stands among the pending ones; compared as tuples are. An entry at (3, inf)
# has those that moved in front of it at (3, 1, inf), (3, 2, inf) and so on, after (2, inf).
# No tuple is longer than the number of ranks and two: a rank that moves something in front
# of an entry joins it, and may from then on join nothing before it.
_Position = tuple[float, ...]


@dataclass(eq=False, slots=True)
class _WaitingLine:
    """A line that waits: since when, how many may still print it, who did, and its place."""

    text: str
    since: float
    missing: int
    ranks: set[int] = field(default_factory=set)
    position: _Position = (inf,)
    moved_here: int = 0


class _Pending:
    """The entries not shown yet, in the order they will be shown in.

    They leave from the front only. A rank may join an entry if behind it stand only entries
    that this rank alone has printed: those move right in front of it, which changes the
    order of no other rank's lines. An entry of two ranks or more never moves again, so what
    a rank may join begins behind the last such entry it is in, its *floor*, and every entry
    moves once at most.

    Each `add` costs a few binary searches, however many wait: a rank may print thousands of
    lines before another one prints its first.
    """

    def __init__(self, ranks: Collection[int]) -> None:
        self._running = set(ranks)
        self._floor: dict[int, _Position] = dict.fromkeys(ranks, ())
        # What each rank alone has printed behind its floor, in order.
        self._alone: dict[int, deque[_WaitingLine]] = {rank: deque() for rank in ranks}
        self._same: dict[str, _SameText] = {}
        self._end = _WaitingLine("", inf, 0)
        # A heap. An entry that moved is in it twice; its former position counts no more.
        self._queue: list[tuple[_Position, _WaitingLine]] = []

    def add(self, rank: int, text: str, *, now: float) -> list[_WaitingLine]:
        """Join the entry this line belongs to, or make one; return what is to be shown."""
        same = self._same.get(text)
        entry = same.first_open(rank, self._floor[rank]) if same else None
        if entry is None:
            entry = self._append(_WaitingLine(text, now, len(self._running)))
            self._alone[rank].append(entry)
        else:
            self._join(rank, entry)
        entry.ranks.add(rank)
        entry.missing -= rank in self._running
        return [] if entry.missing else self._take(entry.position)

    def leave(self, ranks: Collection[int]) -> list[_WaitingLine]:
        """Wait for these ranks no longer; return what is to be shown."""
        gone = self._running.intersection(ranks)
        self._running -= gone
        end: _Position = ()
        for position, entry in self._queue:
            if position == entry.position:
                entry.missing -= len(gone - entry.ranks)
                if not entry.missing:
                    end = max(end, position)
        return self._take(end)

    def take_since(self, since: float) -> list[_WaitingLine]:
        """Take the entries that began to wait at this time or before."""
        taken = []
        while self._queue and self._queue[0][1].since <= since:
            taken += self._take(self._queue[0][0])
        return taken

    def _append(self, entry: _WaitingLine) -> _WaitingLine:
        self._place(entry, before=self._end)
        self._same.setdefault(entry.text, _SameText()).append(entry)
        return entry

    def _join(self, rank: int, entry: _WaitingLine) -> None:
        for own in self._alone[rank]:
            if own.position > entry.position:
                self._place(own, before=entry)
                # It must not keep the entry waiting, and goes when that one goes.
                own.since = entry.since
        self._settle(rank, entry.position)
        self._settle_alone(entry)

    def _place(self, entry: _WaitingLine, *, before: _WaitingLine) -> None:
        before.moved_here += 1
        entry.position = (*before.position[:-1], before.moved_here, inf)
        heappush(self._queue, (entry.position, entry))

    def _settle(self, rank: int, position: _Position) -> None:
        """Let the rank's entries up to this position stand where they are for good."""
        self._floor[rank] = max(self._floor[rank], position)
        alone = self._alone[rank]
        while alone and alone[0].position <= position:
            alone.popleft()

    def _settle_alone(self, entry: _WaitingLine) -> None:
        """Do so for the rank of an entry that only one is in; others have settled there."""
        if len(entry.ranks) == 1:
            (rank,) = entry.ranks
            self._settle(rank, entry.position)

    def _take(self, end: _Position) -> list[_WaitingLine]:
        taken = []
        while self._queue and self._queue[0][0] <= end:
            position, entry = heappop(self._queue)
            if position != entry.position:
                continue
            taken.append(entry)
            if not self._same[entry.text].drop_first():
                del self._same[entry.text]
            self._settle_alone(entry)
        return taken


class _SameText:
    """The pending entries with one text, in their order, which no move changes.

    A move could only change it if an entry jumped over one with its text and without its
    rank. But a rank makes an entry only where it finds none to join behind its floor, so
    the others that appear there later stand behind it, and stay there: they are made, and
    land when they move, behind the floors of their own ranks, which made them pass it by.
    """

    def __init__(self) -> None:
        self._all: list[_WaitingLine] = []
        self._dropped = 0

    def append(self, entry: _WaitingLine) -> None:
        self._all.append(entry)

    def first_open(self, rank: int, floor: _Position) -> _WaitingLine | None:
        """The first entry behind this floor that the rank is not in yet.

        A binary search, as by the above the rank's own entries there precede all others.
        """

        def is_open(entry: _WaitingLine) -> bool:
            return entry.position > floor and rank not in entry.ranks

        # No search while a rank repeats itself and the others have yet to run.
        if not is_open(self._all[-1]):
            return None
        return self._all[bisect_left(self._all, True, lo=self._dropped, key=is_open)]

    def drop_first(self) -> bool:
        """Drop the first entry; say whether any is left."""
        self._dropped += 1
        # Cutting the list at every call would move its whole rest every time.
        if 2 * self._dropped >= len(self._all):
            del self._all[: self._dropped]
            self._dropped = 0
        return bool(self._all)


def _last_state(line: str) -> str:
    """The text after the last carriage return inside the line; trailing ones stay."""
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
