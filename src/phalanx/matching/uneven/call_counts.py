"""Calls per line and rank on one group: which lines some ranks came to more often than others.

Used by the referee once calls disagree or ranks cannot move. All members of a group make the
same calls on it, so ranks whose numbers at a line differ have parted there: one had fewer
batches, skipped a step, or left a loop.

A line says something only if the ranks shared it. Lines by which ranks always go apart and meet
(`if rank == 0: broadcast(mine) else: broadcast(room)`) are one place with several lines. What a
rank does at a line for the first time, with everybody at the same lines before, is no count.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Hashable, Iterable, Mapping, Sequence
from typing import NamedTuple

Steps = Mapping[int, Hashable]
"""The line of each call of a rank on a group, by the call's number."""


class PlaceCount(NamedTuple):
    """How often each rank came to a place; `lines` are where the place is for it. `together` is
    the last call in which all were there."""

    place: Hashable
    times: Mapping[int, int]
    lines: Mapping[int, Hashable]
    together: int | None

    def is_uneven_before(self, ways: Mapping[int, Steps], number: int) -> bool:
        """Whether the numbers differ without what ranks do in this call."""
        here = {rank: ways[rank].get(number) == self.place for rank in self.times}
        return len({times - here[rank] for rank, times in self.times.items()}) > 1


class Counts(NamedTuple):
    """The places that ranks came to unequally often, counted from call `since` on."""

    places: tuple[PlaceCount, ...]
    since: int


def find_counts(
    steps: Mapping[int, Steps], *, disputed: int | None = None, behind: Collection[int] = ()
) -> Counts | None:
    """The places to which the ranks with these steps came unequally often. `disputed` is the
    call in which they disagree; `behind` are those that others wait for: only places that these
    have left out count. None if there is no such place, or if calls are not known.

    >>> found = find_counts({0: dict(enumerate("aaa")), 1: dict(enumerate("aab"))}, disputed=2)
    >>> [dict(place.times) for place in found.places]
    [{0: 3, 1: 2}]
    """
    since = _common_start(steps)
    if since is None or len(steps) < 2:
        return None
    known = {
        rank: {n: at for n, at in own.items() if n >= since} for rank, own in steps.items()
    }
    end = min(max(own, default=since - 1) for own in known.values()) + 1
    shared = range(since, end if disputed is None else min(end, disputed))
    place_of = _merged(known, shared)
    ways = {rank: {n: place_of[at] for n, at in own.items()} for rank, own in known.items()}
    times = {rank: Counter(way.values()) for rank, way in ways.items()}
    counted = [
        PlaceCount(
            place,
            {rank: own[place] for rank, own in times.items()},
            lines,
            _together(place, ways, shared),
        )
        for place in dict.fromkeys(place_of.values())
        if len({own[place] for own in times.values()}) > 1
        and (all(own[place] for own in times.values()) or _is_crossed(place, ways, shared))
        and (lines := _lines_at(place, place_of, known)) is not None
    ]
    if disputed is not None:
        counted = _without_consequence(counted, ways, disputed)
    if behind:
        counted = [each for each in counted if _is_behind(each, behind)]
    counted.sort(key=lambda each: -max(each.times.values()))
    return Counts(tuple(counted), since) if counted else None


def _without_consequence(
    counted: Sequence[PlaceCount], ways: Mapping[int, Steps], disputed: int
) -> list[PlaceCount]:
    """Where ranks had parted before the call in which they disagree, that call says nothing.
    Of several places those count that ranks have left out who, when they parted, came from
    where they were to where they are as nobody else did. If that is not to be seen, it is the
    one that was visited most."""
    earlier = [each for each in counted if each.is_uneven_before(ways, disputed)]
    left = earlier or list(counted)
    if len(left) < 2:
        return left
    odd = _odd_ranks(ways, disputed)
    left_out = [each for each in left if odd and _is_behind(each, odd)]
    return left_out or [max(left, key=lambda each: max(each.times.values()))]


def _odd_ranks(ways: Mapping[int, Steps], disputed: int) -> list[int]:
    """Ranks that, in the first call in which not all were at one place, came there from the one
    before as nobody did at any other time; none if that is true of all."""
    numbers = sorted(set.intersection(*(set(way) for way in ways.values())) | {disputed})
    parted = next(n for n in numbers if n == disputed or len(_places_in(ways, n)) > 1)
    seen = {
        (way[number - 1], way[number])
        for way in ways.values()
        for number in way
        if number != parted and number - 1 in way
    }
    odd = [
        rank
        for rank, way in ways.items()
        if parted in way and parted - 1 in way and (way[parted - 1], way[parted]) not in seen
    ]
    return odd if len(odd) < len(ways) else []


def _places_in(ways: Mapping[int, Steps], number: int) -> set[Hashable]:
    return {way[number] for way in ways.values()}


def _is_behind(counted: PlaceCount, ranks: Collection[int]) -> bool:
    """Whether these came to a place less often than another rank."""
    most = max(counted.times.values())
    return all(counted.times[rank] < most for rank in ranks if rank in counted.times)


def _common_start(steps: Mapping[int, Steps]) -> int | None:
    """The first call that is known of all ranks; None if there are gaps after it. A rank
    without any call has made none."""
    since = max((min(own) for own in steps.values() if own), default=None)
    if since is None or (since and not all(steps.values())):
        return None
    for own in steps.values():
        if own and (max(own) < since or sum(n >= since for n in own) != max(own) - since + 1):
            return None
    return since


def _merged(steps: Mapping[int, Steps], shared: Iterable[int]) -> dict[Hashable, Hashable]:
    """Each line, and the place that it belongs to: lines that met in a call, though no rank has
    been at two of them, are one."""
    visits = {rank: set(own.values()) for rank, own in steps.items()}
    place_of = {line: line for lines in visits.values() for line in lines}
    seen: set[frozenset[Hashable]] = set()
    for number in shared:
        lines = frozenset(own[number] for own in steps.values())
        if len(lines) == 1 or lines in seen:
            continue
        seen.add(lines)
        if all(len(own & lines) == 1 for own in visits.values()):
            merged = {place_of[line] for line in lines}
            target = next(iter(merged))
            for line, place in place_of.items():
                if place in merged:
                    place_of[line] = target
    return place_of


def _lines_at(
    place: Hashable, place_of: Mapping[Hashable, Hashable], steps: Mapping[int, Steps]
) -> dict[int, Hashable] | None:
    """The line of a place for each rank; None if a rank has been at several of it."""
    among = {line for line, own in place_of.items() if own == place}
    found = {rank: among.intersection(own.values()) for rank, own in steps.items()}
    if any(len(lines) > 1 for lines in found.values()):
        return None
    somewhere = next(line for lines in found.values() for line in lines)
    return {rank: next(iter(lines), somewhere) for rank, lines in found.items()}


def _together(place: Hashable, ways: Mapping[int, Steps], shared: Sequence[int]) -> int | None:
    for number in reversed(shared):
        if all(way[number] == place for way in ways.values()):
            return number
    return None


def _is_crossed(place: Hashable, ways: Mapping[int, Steps], shared: Iterable[int]) -> bool:
    """Whether ranks that were there met others that were at another place: they had parted by
    then, and their calls agreed by chance."""
    for number in shared:
        here = _places_in(ways, number)
        if len(here) > 1 and place in here:
            return True
    return False
