"""Events as lines of a recording: many events of one rank and one kind are one JSON object.

A line has a column for each field: a list with a value for each event, or the value itself if
all events of the line share it (as `{"all": value}` where that is a list); a field that has its
default in all of them is left out.
Lines, files, groups and tensors are written once and referred to by number. Columns cost an
event a tenth of what an object of its own would, on disk and in time. `docs/journal.md`
describes every line; `decoder.py` reads them.
"""

from __future__ import annotations

import json
import linecache
from collections.abc import Callable, Sequence
from itertools import pairwise
from operator import countOf, itemgetter
from typing import Any

from phalanx.journal.events import KINDS, Event, GroupRecord, site_of, specs_in
from phalanx.model import Site

SOURCE_LINES = 3
"""Before and after the line of a call: what a reader of the recording is shown."""
LONGEST_LINE = 200
"""Characters of a line of source that are kept."""

_dump = json.JSONEncoder(separators=(",", ":"), ensure_ascii=False, default=str).encode


_COUNTED = ("serial", "number", "call")
"""Columns that often count up by one."""
_SERIALS = ("serial", "call", "calls")
"""Fields that name calls."""


class _Layout:
    """The fields of one kind of events, and what reads them. `fields` are those that usually
    all events of a line share; `rest` gives them as a tuple."""

    def __init__(self, name: str, kind: Any) -> None:
        self.name = name
        self.defaults = {**kind._field_defaults, "thread": 0, "mark": None}
        places = {field: place for place, field in enumerate(kind._fields)}
        counted = [field for field in _COUNTED if field in places]
        self.fields = [field for field in places if field not in ("time", "rank", *counted)]
        self.counted = [(field, itemgetter(places[field])) for field in counted]
        self.others = [(field, itemgetter(places[field])) for field in self.fields]
        self.rest: Callable[[Any], Any] = itemgetter(*(places[field] for field in self.fields))


LAYOUTS: dict[Any, _Layout] = {kind: _Layout(name, kind) for name, kind in KINDS.items()}


class Encoder:
    """Numbers what events refer to, and turns events into lines of text without line ends.

    Every number is defined by a line before the first line that uses it. `definitions` gives
    them all again, for a file that keeps only the newest lines.
    """

    def __init__(self, start: float) -> None:
        self.start = start
        """The time that is 0 in the recording."""
        self._sites: dict[Any, int] = {}
        self._site_lines: list[list[Any]] = []
        self._marks: list[Any] = []  # keeps code alive, whose address is a key
        self._signatures: dict[Any, int] = {}
        self._signature_lines: list[Any] = []
        self._stores: dict[Any, int] = {}
        self._groups: dict[int, list[Any]] = {}
        self._group_numbers: dict[GroupRecord, int] = {}
        self._shifts: list[int] = []
        self._new: list[str] = []

    def encode(self, events: Sequence[Event]) -> list[str]:
        """The lines for these events of one rank, definitions first."""
        if self._shifts:
            events = [_shifted(event, self._shifts) for event in events]
        by_kind: dict[Any, Sequence[Event]] = dict.fromkeys(map(type, events), events)
        if len(by_kind) > 1:
            for kind in by_kind:
                by_kind[kind] = [event for event in events if type(event) is kind]
        lines = [self._block(kind, these) for kind, these in by_kind.items()]
        new, self._new = self._new, []
        return new + lines

    def definitions(self) -> list[str]:
        """All that earlier lines defined."""
        sites = [_dump({"site": n, "at": at}) for n, at in enumerate(self._site_lines)]
        tensors = [_dump({"tensors": n, "are": a}) for n, a in enumerate(self._signature_lines)]
        groups = [_group_line(number, facts) for number, facts in self._groups.items()]
        return sites + tensors + groups

    def shift_serials(self, shifts: Sequence[int]) -> None:
        """From now on add these numbers, one for each rank, to the serials of calls: a journal
        follows whose serials do not go on where those of the one before ended."""
        self._shifts = list(shifts) if any(shifts) else []

    # -- columns ---------------------------------------------------------------------------

    def _block(self, kind: Any, events: Sequence[Event]) -> str:
        """Columns are read one by one, and nothing that the garbage collector would have to
        look at is kept for each event: ranks wait while it looks."""
        layout, count, first = LAYOUTS[kind], len(events), events[0]
        times = [event.time for event in events]
        deltas = [int((b - a) * 1e9 + 0.5) for a, b in pairwise(times)]
        found: dict[str, Any] = {"kind": layout.name, "rank": first.rank, "n": count}
        found["time"] = [int((times[0] - self.start) * 1e9), *deltas]
        for field, value_of in layout.counted:
            self._add(found, layout, field, _counted(field, list(map(value_of, events)), first))
        rest = layout.rest(first)
        if countOf(map(layout.rest, events), rest) == count:  # as usual
            for field, value in zip(layout.fields, rest, strict=True):
                self._add_one(found, layout, field, value)
        else:
            for field, value_of in layout.others:
                self._add(found, layout, field, list(map(value_of, events)))
        return _dump(found)

    def _add(self, found: dict[str, Any], layout: _Layout, field: str, column: Any) -> None:
        """`column` has a value for each event, or is a dict that stands for them."""
        if isinstance(column, dict):
            found[field] = column
        elif column.count(column[0]) == len(column):
            self._add_one(found, layout, field, column[0])
        else:
            encode = _ENCODE.get(field)
            found[_NAME.get(field, field)] = column if encode is None else encode(self, column)

    def _add_one(self, found: dict[str, Any], layout: _Layout, field: str, value: Any) -> None:
        """All events have this value."""
        if value is layout.defaults.get(field, layout) or value == ():
            return
        encode = _ENCODE.get(field)
        if encode is not None:
            value = encode(self, (value,))[0]
        if isinstance(value, (tuple, list)):
            value = {"all": value}
        if value is not None:
            found[_NAME.get(field, field)] = value

    def _site_column(self, marks: Sequence[Any]) -> list[int | None]:
        known = self._sites
        try:
            return [known[id(mark[0]), mark[1]] for mark in marks]
        except (KeyError, TypeError, AttributeError):
            return [None if mark is None else self._site(mark) for mark in marks]

    def _site(self, mark: Any) -> int:
        key = mark if isinstance(mark, Site) else (id(mark[0]), mark[1])
        number = self._sites.get(key)
        if number is None:
            site = site_of(mark)
            assert site is not None
            number = self._sites.get(site)
            if number is None:
                number = len(self._site_lines)
                file = site.file if isinstance(mark, Site) else mark[0].co_filename
                at = [site.file, site.line, site.function, source_around(file, site.line)]
                self._site_lines.append(at)
                self._new.append(_dump({"site": number, "at": at}))
            self._sites[key] = self._sites[site] = number
            self._marks.append(mark)
        return number

    def _signature_column(self, signatures: Sequence[Any]) -> list[int | None]:
        known = self._signatures
        try:
            return [known[signature] for signature in signatures]
        except (KeyError, TypeError):
            return [None if each is None else self._signature(each) for each in signatures]

    def _signature(self, signature: Any) -> int | None:
        try:
            number = self._signatures.get(signature)
        except TypeError:
            return None
        if number is None:
            number = self._signatures[signature] = len(self._signature_lines)
            specs = [[s.dtype, list(s.shape), s.device] for s in specs_in(signature)]
            self._signature_lines.append(specs)
            self._new.append(_dump({"tensors": number, "are": specs}))
        return number

    def _group_column(self, groups: Sequence[GroupRecord | None]) -> list[int | None]:
        column: list[int | None] = []
        known = self._groups
        for group in groups:
            if group is None:
                column.append(None)
                continue
            number = self._group_number(group)
            facts = [group.name, group.description, list(group.ranks), group.backend]
            if known.get(number) != facts:
                known[number] = facts
                self._new.append(_group_line(number, facts))
            column.append(number)
        return column

    def _group_number(self, group: GroupRecord) -> int:
        """Its own, unless a group of an earlier journal has that."""
        number = self._group_numbers.get(group)
        if number is None:
            taken = group.number in self._groups
            number = max(self._groups) + 1 if taken else group.number
            self._group_numbers[group] = number
        return number

    def _store_column(self, stores: Sequence[Any]) -> list[int]:
        known = self._stores
        return [known.setdefault(store, len(known)) for store in stores]


def _shifted(event: Any, shifts: Sequence[int]) -> Any:
    """The event with other serials."""
    changes: dict[str, Any] = {}
    for field in event._fields:
        value = getattr(event, field) if field in _SERIALS else None
        if field == "serial":
            changes[field] = value + shifts[event.rank]
        elif field == "call" and value is not None:
            changes[field] = _shifted_call(value, shifts)
        elif field == "calls" and isinstance(value, tuple):  # a number where a group was left
            changes[field] = tuple(_shifted_call(call, shifts) for call in value)
    return event._replace(**changes) if changes else event


def _shifted_call(call: tuple[int, int], shifts: Sequence[int]) -> tuple[int, int]:
    rank, serial = call
    return rank, serial + shifts[rank]


def _same_groups(encoder: Encoder, groups: Sequence[Any]) -> list[Any]:
    """Few groups, many events: look at each group once."""
    if len(groups) > 8:
        of_each = {id(group): group for group in groups}
        numbers = dict(zip(of_each, encoder._group_column(list(of_each.values())), strict=True))
        return [numbers[id(group)] for group in groups]
    return encoder._group_column(groups)


_ENCODE: dict[str, Callable[[Encoder, Sequence[Any]], list[Any]]] = {
    "mark": Encoder._site_column,
    "signature": Encoder._signature_column,
    "group": _same_groups,
    "world": _same_groups,
    "store": Encoder._store_column,
    "what": lambda encoder, column: [None] * len(column),  # for one check only, of any type
}
_NAME = {"mark": "site", "signature": "tensors"}


def _counted(field: str, column: list[Any], first: Any) -> Any:
    """A column of numbers, as short as it can be said. A call of the event's own rank, as most
    are, is its number alone."""
    own = field == "call" and None not in column
    if own and countOf(map(itemgetter(0), column), first.rank) == len(column):
        column = list(map(itemgetter(1), column))
    start = column[0]
    if isinstance(start, int) and column == list(range(start, start + len(column))):
        return {"from": start}
    return column


def _group_line(number: int, facts: list[Any]) -> str:
    name, description, ranks, backend = facts
    line = {"group": number, "name": name, "ranks": ranks, "backend": backend}
    if description:
        line["description"] = description
    return _dump(line)


def source_around(file: str, line: int) -> list[Any]:
    """The number of the first line, and the lines; empty if there is no source."""
    first = max(1, line - SOURCE_LINES)
    lines = linecache.getlines(file)[first - 1 : line + SOURCE_LINES]
    return [first, *(text.rstrip()[:LONGEST_LINE] for text in lines)] if lines else []
