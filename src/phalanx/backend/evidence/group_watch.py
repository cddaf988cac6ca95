"""What a rank sees of its groups for the check `leak`: how many of one line are alive at once,
and whether the program can still reach them.

`GroupWatch.made` is called where a group is made, `take` when a run has ended: only then is it
known how many there were, and the journal gets one note for each line. Deciding is done in
`checks/leak.py`.
"""

from __future__ import annotations

import gc
import os
import sys
import weakref
from collections import Counter
from collections.abc import Callable, Iterable
from types import FrameType, MethodType
from typing import Any

from phalanx import callsite
from phalanx.checks.leak import FEW, KIND, MANY
from phalanx.journal.events import Noted
from phalanx.system import monotonic

SEARCHES = 4
"""How often in a run it is found out what refers to a group, which takes 30 ms."""
_DEPTH = 12
_ASKING = 4
_MAKERS = ("distributed_c10d.py", "c10d_logger.py")
"""Torch's files through which a program's own call to `new_group` goes."""


class _Entry:
    """Groups of one set of ranks that were made by one way through the program."""

    __slots__ = ("alive", "backend", "by_name", "lost", "made", "place")

    def __init__(self, place: callsite.Mark | None, by_name: bool, backend: str) -> None:
        self.place = place
        self.backend = backend
        self.by_name = by_name
        self.alive = _Alive()
        self.made = 0
        self.lost = False


class _Line:
    """All groups that one line made, by whatever way it was reached."""

    __slots__ = ("alive", "made")

    def __init__(self) -> None:
        self.made: Counter[tuple[int, ...]] = Counter()
        """How many, by ranks."""
        self.alive: dict[tuple[int, ...], _Alive] = {}

    def add(self, ranks: tuple[int, ...], end: Any, is_closed: Callable[[Any], bool]) -> None:
        self.made[ranks] += 1
        alive = self.alive.get(ranks)
        if alive is None:
            alive = self.alive[ranks] = _Alive()
        alive.add(end, is_closed)

    def counts(self, ranks: tuple[int, ...]) -> tuple[int, int, int]:
        """Of these ranks how many, and how many at once; and how many in all."""
        return self.made[ranks], self.alive[ranks].most, self.made.total()


class _Alive:
    """Groups that have not been closed; `most` were alive at once."""

    __slots__ = ("ends", "most")

    def __init__(self) -> None:
        self.ends: list[weakref.ref[Any]] = []
        self.most = 0

    def add(self, end: Any, is_closed: Callable[[Any], bool]) -> list[weakref.ref[Any]]:
        """Returns those before it."""
        alive = [ref for ref in self.ends if (one := ref()) is not None and not is_closed(one)]
        self.ends = [*alive, weakref.ref(end)]
        self.most = max(self.most, len(self.ends))
        return alive


class GroupWatch:
    """The groups that the ranks of this process have made in a run."""

    def __init__(self) -> None:
        self.forget()

    def forget(self) -> None:
        self._entries: dict[tuple[tuple[callsite.Mark, ...], tuple[int, ...]], _Entry] = {}
        """By the way through the program, and by ranks."""
        self._lines: dict[callsite.Mark | None, _Line] = {}
        self._searches = 0

    def made(
        self,
        end: Any,
        ranks: tuple[int, ...],
        backend: str,
        frame: FrameType,
        *,
        is_closed: Callable[[Any], bool],
        tables: Callable[[Any], Iterable[Any]],
    ) -> None:
        """The first member of a group has made it at this frame; `end` is what the program has
        of it. `tables` are what refers to a group in any case: torch's and ours."""
        way, by_name = _way_here(frame)
        place = way[0] if way else None
        entry = self._entries.get((way, ranks))
        if entry is None:
            entry = self._entries[way, ranks] = _Entry(place, by_name, backend)
            self._lines.setdefault(place, _Line())
        self._lines[place].add(ranks, end, is_closed)
        alive = entry.alive.add(end, is_closed)
        entry.made += 1
        if not by_name and not entry.lost and len(alive) + 1 in (FEW, MANY):
            entry.lost = self._is_lost(alive[0], tables)

    def take(self, now: Callable[[], float] = monotonic) -> list[Noted]:
        """What there is to note, once: of lines that made several groups."""
        found = [
            Noted(
                now(),
                ranks[0],
                0,
                entry.place,
                KIND,
                (
                    ranks,
                    entry.made,
                    entry.alive.most,
                    entry.lost,
                    entry.by_name,
                    entry.backend,
                    self._lines[entry.place].counts(ranks),
                ),
            )
            for (_, ranks), entry in self._entries.items()
            if entry.alive.most >= FEW
        ]
        self.forget()
        return found

    def _is_lost(self, ref: weakref.ref[Any], tables: Callable[[Any], Iterable[Any]]) -> bool:
        """Whether nothing but tables refers to the group. Frames of whoever asks hold it for a
        moment."""
        end = ref()
        if end is None or self._searches >= SEARCHES:
            return False
        self._searches += 1
        asking = [sys._getframe(depth) for depth in range(_ASKING)]
        known = {id(each) for each in (*tables(end), *asking)}  # `==` may be the program's
        refer = gc.get_referrers(end)
        return all(id(each) in known or type(each) is MethodType for each in refer)


def _way_here(frame: FrameType | None) -> tuple[tuple[callsite.Mark, ...], bool]:
    """The user's frames, and whether torch itself made the group, as for a mesh."""
    marks: list[callsite.Mark] = []
    by_name = False
    while frame is not None and len(marks) < _DEPTH:
        file = frame.f_code.co_filename
        if not callsite.is_library(file):
            marks.append((frame.f_code, frame.f_lasti))
        elif not marks and not callsite.is_own_file(file) and not file.endswith(_MAKERS):
            by_name |= f"{os.sep}torch{os.sep}" in file
        frame = frame.f_back
    return tuple(marks), by_name
