"""Reading a journal: all events in order of time, or those of a rank, a group or a kind.

`World.journal` gives one to the program; checks and reports use the same. Reading copies what
is there at that moment and resolves nothing: `event.site` does, for the events somebody wants.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import islice
from operator import itemgetter
from typing import Any, NamedTuple

from phalanx.journal.events import (
    KINDS,
    VERSION,
    CallId,
    Event,
    GroupRecord,
    Noted,
    Place,
    Posted,
    StoreRead,
    StoreWritten,
)
from phalanx.journal.ring import Ring

_time: Callable[[Any], float] = itemgetter(0)


class ClockOffset(NamedTuple):
    """How the clock of a rank's machine differs from the referee's. `seconds` were added to the
    rank's times; they are right to within `error`."""

    seconds: float
    error: float


class Journal:
    """What happened, oldest first, as far as it is kept.

    >>> from phalanx.journal.events import GroupRecord, Posted
    >>> ring, world = Ring(4), GroupRecord(0, "world", (0,))
    >>> ring.calls.append(Posted(1.0, 0, 0, None, world, "barrier", serial=0, member=0))
    >>> journal = Journal([ring], {0: world})
    >>> [event.name for event in journal.filter(kind="posted", group="world")]
    ['barrier']
    """

    version = VERSION

    def __init__(
        self,
        rings: Sequence[Ring],
        groups: Mapping[int, GroupRecord],
        *,
        in_order: bool = True,
        clocks: Mapping[int, ClockOffset] | None = None,
        chosen: tuple[_Choice, ...] = (),
        of_rank: int | None = None,
    ) -> None:
        self._rings = rings
        self._groups = groups
        self.in_order = in_order
        """Whether times say what happened before what. Clocks of ranks in processes of their
        own may differ, so theirs do not."""
        self.clocks = clocks or {}
        """What was added to the times of ranks on other machines."""
        self._chosen = chosen
        self._rank = of_rank

    def __reduce__(self) -> tuple[Any, ...]:
        """A journal travels with its marks resolved: code stays in its process."""
        rings, groups = [ring.resolved() for ring in self._rings], dict(self._groups)
        make = partial(
            Journal,
            in_order=self.in_order,
            clocks=dict(self.clocks),
            chosen=self._chosen,
            of_rank=self._rank,
        )
        return make, (rings, groups)

    def __iter__(self) -> Iterator[Event]:
        rings = self._rings if self._rank is None else self._rings[self._rank : self._rank + 1]
        lanes = [list(lane) for ring in rings for lane in ring.lanes]
        if not self.in_order:
            for lane in lanes:
                lane.sort(key=_time)
        events: Iterator[Event] = heapq.merge(*filter(None, lanes), key=_time)
        for choice in self._chosen:
            events = filter(choice.has, events)
        return events

    def __len__(self) -> int:
        return sum(1 for _ in self)

    def __repr__(self) -> str:
        return f"<journal of {self.ranks} ranks, {len(self)} events, {self.dropped} dropped>"

    @property
    def ranks(self) -> int:
        return len(self._rings)

    @property
    def groups(self) -> tuple[GroupRecord, ...]:
        """Those that ranks still had."""
        return tuple(self._groups.values())

    @property
    def dropped(self) -> int:
        """How many events were forgotten because the rings are bounded."""
        return sum(ring.dropped for ring in self._rings)

    def filter(
        self,
        *,
        rank: int | None = None,
        group: str | int | GroupRecord | None = None,
        kind: str | Iterable[str] | None = None,
    ) -> Journal:
        """The events of one rank, of one group (its name, its number or its record) and of one
        kind or several, as far as given. Events without a group belong to none."""
        chosen = self._chosen
        if rank is not None and not 0 <= rank < self.ranks:
            raise ValueError(f"rank={rank}: this journal has ranks 0 to {self.ranks - 1}")
        if group is not None:
            chosen += (_Choice(group=group),)
        if kind is not None:
            classes = _classes({kind} if isinstance(kind, str) else set(kind))
            chosen += (_Choice(classes=classes),)
        return Journal(
            self._rings,
            self._groups,
            in_order=self.in_order,
            clocks=self.clocks,
            chosen=chosen,
            of_rank=self._rank if rank is None else rank,
        )

    # -- for checks and reports, which ask the same again and again -------------------------

    def calls(self, rank: int) -> list[Posted]:
        """All calls of a rank that are kept."""
        return list(self._rings[rank].calls)

    def call(self, call: CallId) -> Posted | None:
        """The event of a call, if it is kept."""
        rank, serial = call
        found: Posted | None = self._rings[rank].call(serial)
        return found

    def with_marks(self, marks: Mapping[CallId, Place]) -> Journal:
        """A copy in which these calls have another mark."""
        rings = [ring.with_marks(rank, marks) for rank, ring in enumerate(self._rings)]
        return Journal(rings, self._groups, in_order=self.in_order, clocks=self.clocks)

    def last_calls(self, rank: int, most: int) -> list[Posted]:
        """The newest of them, oldest first."""
        return list(islice(reversed(self._rings[rank].calls), most))[::-1]

    def earlier(self, rank: int, group: GroupRecord, number: int, most: int) -> list[Posted]:
        """The last collectives of a rank on a group before slot `number`, oldest first."""
        found = (
            call
            for call in reversed(self.calls(rank))
            if call.group is group and call.number is not None and call.number < number
        )
        return list(islice(found, most))[::-1]

    def has_all_calls(self) -> bool:
        """Whether no rank's calls were cut off."""
        return all(ring.has_all_calls for ring in self._rings)

    def store_uses(self) -> list[StoreRead | StoreWritten] | None:
        """What the program did with stores, rank by rank; None if some of it may have been cut
        off."""
        found = [
            event
            for ring in self._rings
            for event in list(ring.flow)
            if type(event) is StoreRead or type(event) is StoreWritten
        ]
        whole = all(ring.flowed == len(ring.flow) for ring in self._rings)
        return found if whole or not found else None

    def rare(self, kind: type[Any]) -> list[Any]:
        """Events of one kind that is neither a call nor what became of one, rank by rank."""
        lanes = [list(ring.rare) for ring in self._rings]  # ranks may write meanwhile
        return [event for lane in lanes for event in lane if type(event) is kind]

    def noted(self, about: str) -> list[Noted]:
        """What ranks noted for a check, rank by rank."""
        lanes = [(*ring.notes, *ring.rare) for ring in self._rings]
        return [
            event
            for lane in lanes
            for event in lane
            if type(event) is Noted and event.about == about
        ]


@dataclass(frozen=True)
class _Choice:
    """Which events are wanted: those of a group, or of some kinds."""

    group: str | int | GroupRecord | None = None
    classes: frozenset[type[Any]] = frozenset()

    def has(self, event: Any) -> bool:
        if self.group is not None:
            return _is_of(event, self.group)
        return type(event) in self.classes


def _is_of(event: Any, group: str | int | GroupRecord) -> bool:
    record: GroupRecord | None = getattr(event, "group", None)
    if record is None:
        return False
    return record is group or record.name == group or record.number == group


def _classes(kinds: set[str]) -> frozenset[type[Any]]:
    unknown = kinds - set(KINDS)
    if unknown:
        raise ValueError(f"kind={sorted(unknown)[0]!r}: choose among {', '.join(KINDS)}")
    return frozenset(KINDS[kind] for kind in kinds)
