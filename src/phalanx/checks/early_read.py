"""Message race, the part about store reads that come too early: the program goes on with a
value that another rank may still change.

| seen                                                        | verdict                      |
|-------------------------------------------------------------|------------------------------|
| a rank reads a counter that another one adds to, with       | race: part of the sum may be |
| nothing between the two, and uses what it read; it reads it | missing                      |
| once, or has added to it itself                             |                              |
| a rank reads a key once that another one sets again and     | race: any of the values      |
| again, with nothing between, and uses what it read          |                              |
| the same, but what it made of the value is only shown; it   | race: whoever reports alike  |
| wrote by the same line before, and never again              | takes the others to be done  |
| the same, where it shows the value and calls it a total     | race: part may be missing    |
| the value is dropped, shown as it is, or a branch asks      | legal: somebody watches      |
| a loop asks again until the value is what it waits for      | legal: it waits              |
| one of the two has made a group in between                  | legal: that may wait for all |
| several ranks set the key                                   | see `store_race.py`          |

`Reuse` has the rule of a key that is set and read equally often, which `store_race.py` lists.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, replace

from phalanx.matching.happens_before import Known, knows
from phalanx.model import CallBlock, Finding, Op

LastWrite = Callable[[int, Op], int]
"""The number of the last event at which a rank wrote by the line of a call; 0 if it never
did."""


@dataclass(frozen=True)
class Change:
    """A rank gave the key another value; `number` is that of the event on its rank, and `made`
    says how many groups the rank had made."""

    op: Op
    number: int
    made: int = 0


@dataclass(frozen=True)
class Read:
    """A rank read the key; `use` is `computed` or `used`."""

    op: Op
    number: int
    use: str
    made: int = 0


class EarlyReads:
    """Reads of one key whose value goes on, and changes of it that nothing orders to them. A
    backend may make a group only when all members have come to it, so a group that one rank has
    made and the other has not orders them. Whoever adds as the others do and is the only one
    to read is at fault."""

    def __init__(self) -> None:
        self._changes: dict[int, Change] = {}
        self._reads: dict[int, list[Read]] = {}
        self._raced: dict[tuple[int, int], tuple[Read, Change]] = {}
        """By who reads and who changes it."""

    def change(self, change: Change, known: Known) -> None:
        """`known` is what the rank knew before."""
        self._changes[change.op.rank] = change
        for rank, reads in self._reads.items():
            if reads[-1].made != change.made:
                continue
            if rank != change.op.rank and not knows(known, rank, reads[-1].number):
                self._raced.setdefault((rank, change.op.rank), (reads[-1], change))

    def read(self, read: Read, known: Known) -> None:
        """`known` is what the rank knew before, and what any value proves to it."""
        if read.use not in ("computed", "used"):
            return
        reader = read.op.rank
        self._reads.setdefault(reader, []).append(read)
        for rank, change in self._changes.items():
            if read.made != change.made:
                continue
            if rank != reader and not knows(known, rank, change.number):
                self._raced.setdefault((reader, rank), (read, change))

    def finding(self, last_write: LastWrite) -> Finding | None:
        """Once nothing more will happen."""
        for (reader, _), (read, change) in sorted(self._raced.items(), key=_who):
            is_count = change.op.name == "add"
            if not is_count and len(self._changes) > 1:
                continue
            own = self._changes.get(reader)
            last = max(last_write(reader, change.op), 0 if own is None else own.number)
            once = len(self._reads[reader]) == 1
            if read.use == "used":
                matters = once or (is_count and last > 0)
            else:
                matters = once and 0 < last < read.number
            if matters:
                found = read_too_early(read.op, change.op)
                alone = is_count and own is not None and len(self._reads) == 1
                return replace(found, ranks=(reader,)) if alone else found
        return None


def _who(raced: tuple[tuple[int, int], object]) -> tuple[int, int]:
    return raced[0]


def read_too_early(read: Op, change: Op) -> Finding:
    """The finding about a read that may come before the change, or after it."""
    does = "adds to it" if change.name == "add" else "sets it again"
    effect = "adds to the sum" if change.name == "add" else "replaces what was there"
    return Finding(
        kind="message-race",
        severity="warning",
        ranks=tuple(sorted((change.rank, read.rank))),
        headline=(
            f'rank {read.rank} may read "{read.key}" ({read.site}) before rank {change.rank} '
            f"{does} ({change.site}): nothing orders the two"
        ),
        blocks=(
            CallBlock((change.rank,), change, (effect,)),
            CallBlock((read.rank,), read, ("goes on with what is there by then",)),
        ),
        hint=(
            f"put a barrier between {change.site} and {read.site}, or wait there until all "
            f"ranks have {'added' if change.name == 'add' else 'written'}"
        ),
    )


@dataclass(frozen=True)
class Write:
    """One rank set a key; `value` is equal for equal values, `number` that of the event on its
    rank."""

    op: Op
    value: int
    number: int


@dataclass(frozen=True)
class Look:
    """A rank looked whether a key is there; `number` is that of the event on its rank."""

    op: Op
    number: int
    found: bool


class Reuse:
    """One rank sets a key again and again, and others read it as often: each time they mean the
    new value. Whoever reads it at other times, as to watch progress, may get any."""

    def __init__(self) -> None:
        self._last: Write | None = None
        self._replaced: int | None = None
        """The value that the last write replaced."""
        self._writes: Counter[int] = Counter()
        self._reads: dict[tuple[int, str], tuple[int, Look]] = {}
        """By reader and call: how often, and the last of them."""
        self._raced: dict[tuple[int, str], tuple[Look, Write]] = {}
        """The read, and the write that could have come before or after it."""

    def write(self, write: Write, known: Known) -> None:
        """`known` is what the rank knew before."""
        last, self._last = self._last, write
        self._writes[write.op.rank] += 1
        if last is None:
            return
        self._replaced = last.value
        for who, (_, read) in self._reads.items():
            if self._matters(who, write) and not knows(known, who[0], read.number):
                self._raced.setdefault(who, (read, write))

    def read(self, read: Look, known: Known) -> None:
        who = read.op.rank, read.op.name
        self._reads[who] = self._reads.get(who, (0, read))[0] + 1, read
        last = self._last
        if last is None or self._replaced is None or not self._matters(who, last):
            return
        if not knows(known, last.op.rank, last.number):
            self._raced.setdefault(who, (read, last))

    def _matters(self, who: tuple[int, str], write: Write) -> bool:
        """Whether it makes a difference if the reader's last read comes before this write or
        after it: it gives another value, or waits for what had come before."""
        rank, name = who
        if rank == write.op.rank:
            return False
        return self._reads[who][0] > 1 if name == "wait" else self._replaced != write.value

    def finding(self) -> Finding | None:
        for who, (read, write) in sorted(self._raced.items(), key=lambda each: each[0]):
            if list(self._writes.values()) == [self._reads[who][0]]:
                return _reused(read.op, write.op)
        return None


def _reused(read: Op, write: Op) -> Finding:
    return Finding(
        kind="message-race",
        severity="warning",
        ranks=(write.rank, read.rank),
        headline=(
            f'rank {read.rank} may read "{read.key}" ({read.site}) before rank {write.rank} '
            f"sets it again ({write.site}): nothing orders the two"
        ),
        blocks=(
            CallBlock((write.rank,), write, ("replaces what was there",)),
            CallBlock((read.rank,), read, ("takes the old value as well as the new one",)),
        ),
        hint=(
            "use a key of its own for each round, delete it and wait for all before it is set "
            "again, or put a barrier between them"
        ),
    )
