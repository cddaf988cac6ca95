"""Where the ranks' ways through the program parted: the first divergence. Pure.

Used by the engine for the reports of a mismatch and of a deadlock. Each rank brings its
*trail*: its calls in order, as far as kept. Two calls are the same step if they belong to one
collective and have one name, wherever they were made; messages are steps by their line.

The walk stops where the steps differ, and says so only where the evidence is clear:

- each side called a collective that all are members of and that the other never came to, or
  has returned: that is where they parted;
- besides, before that the same steps were made from lines that are shifted against each other
  (one side skipped a call, and the next ones met by chance): where the shift began;
- one side is at a message or in a group of its own, from which it might have come on, or there
  was no step in common before: nothing is said.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Hashable, Mapping, Sequence
from typing import NamedTuple

from phalanx.matching.hints import name_ranks

MOST_SHIFT = 8


class Stride(NamedTuple):
    """One call: its place and name, and what kind of group it was on, such as a dimension of a
    mesh: ranks have different groups of one kind. None: it is not known any more."""

    place: Hashable
    name: str
    kind: str | None


class OtherKind(NamedTuple):
    """At one place `ranks` called on groups of one kind, and `odd`, fewer, on others."""

    place: Hashable
    ranks: tuple[int, ...]
    kind: str
    odd: tuple[int, ...]
    odd_kind: str


def find_other_kind(ways: Mapping[int, Sequence[Stride]]) -> OtherKind | None:
    """The first call, made by all at one line, for which a few ranks took a group of another
    kind than most. Where lines differ before, nothing is said."""
    for at in range(max(map(len, ways.values()), default=0)):
        now = {rank: way[at] for rank, way in ways.items() if at < len(way)}
        if len({(stride.place, stride.name) for stride in now.values()}) > 1:
            return None
        kinds = Counter(stride.kind for stride in now.values())
        if len(kinds) == 1:
            continue
        (usual, votes), (other, _), *more = kinds.most_common()
        if usual is None or other is None or more or 2 * votes <= len(now):
            return None
        ranks, odd = (
            tuple(rank for rank in sorted(now) if now[rank].kind == kind)
            for kind in (usual, other)
        )
        return OtherKind(now[ranks[0]].place, ranks, usual, odd, other)
    return None


def tell_other_kind(found: OtherKind, name_place: Callable[[Hashable], str]) -> str:
    return (
        f"at {name_place(found.place)} {name_ranks(found.ranks)} called on "
        f'"{found.kind}", {name_ranks(found.odd)} on "{found.odd_kind}"'
    )


class Pace(NamedTuple):
    """One call of a trail: which collective it was part of (None for a message), on a group of
    which ranks, and from where. `number` is that of the call on its group."""

    slot: Hashable
    members: tuple[int, ...]
    place: Hashable
    name: str = ""
    number: int | None = None


Trail = Sequence[Pace]


class Parting(NamedTuple):
    """`before` is the last place that all shared; `ways` are who went where, largest first,
    None for those who made no further call."""

    before: Hashable
    ways: tuple[tuple[tuple[int, ...], Hashable], ...]
    number: int | None = None


def find_parting(
    trails: Mapping[int, Trail], ended: frozenset[int] = frozenset()
) -> Parting | None:
    """Where the ranks with these trails parted, if that is clear. `ended` have returned, so
    that the end of their trail is a way too."""
    trails = _aligned(trails)
    if len(trails) < 2 or not all(trails.values()):
        return None
    at = _first_difference(trails)
    if at is None or at == 0:
        return None
    sides = _sides(trails, at)
    if not _is_clear(trails, sides, at, ended):
        return None
    shift = _shift(trails, sides, at)
    at = at if shift is None else shift
    places = {
        rank: trail[at].place if at < len(trail) else None for rank, trail in trails.items()
    }
    ways: dict[Hashable, list[int]] = {}
    for rank in sorted(trails):
        ways.setdefault(places[rank], []).append(rank)
    if len(ways) < 2 or at == 0:
        return None
    ordered = sorted(ways.items(), key=lambda way: (-len(way[1]), way[1]))
    number = next((t[at].number for t in trails.values() if at < len(t)), None)
    before = {trail[at - 1].place for trail in trails.values()}
    if len(before) > 1:
        return None
    return Parting(before.pop(), tuple((tuple(r), place) for place, r in ordered), number)


def tell_parting(parting: Parting, name_place: Callable[[Hashable], str]) -> str:
    """In words: `ranks 0, 1 went a.py:5 -> a.py:8; rank 2 went a.py:5 -> a.py:9 (call #3)`."""
    start = name_place(parting.before)
    told = []
    for ranks, place in parting.ways:
        if place is None:
            told.append(f"{name_ranks(ranks)} made no call after {start}")
        else:
            told.append(f"{name_ranks(ranks)} went {start} -> {name_place(place)}")
    call = "" if parting.number is None else f" (call #{parting.number})"
    return "; ".join(told) + call


def _aligned(trails: Mapping[int, Trail]) -> dict[int, Trail]:
    """Cut what went before the first collective that all trails have: they may begin late."""
    if not trails:
        return {}
    known = [{pace.slot: at for at, pace in enumerate(t) if pace.slot} for t in trails.values()]
    for pace in next(iter(trails.values())):
        if pace.slot and all(pace.slot in places for places in known):
            return {
                rank: trail[places[pace.slot] :]
                for (rank, trail), places in zip(trails.items(), known, strict=True)
            }
    return {}


def _step(pace: Pace) -> Hashable:
    return (pace.slot, pace.name) if pace.slot is not None else pace.place


def _first_difference(trails: Mapping[int, Trail]) -> int | None:
    steps = [[_step(pace) for pace in trail] for trail in trails.values()]
    first = steps[0]
    found: int | None = None
    for other in steps[1:]:
        if other == first:
            continue
        common = min(len(first), len(other))
        at = next((i for i in range(common) if first[i] != other[i]), common)
        found = at if found is None else min(found, at)
    return found


def _sides(trails: Mapping[int, Trail], at: int) -> dict[Hashable, list[int]]:
    sides: dict[Hashable, list[int]] = {}
    for rank in sorted(trails):
        trail = trails[rank]
        sides.setdefault(_step(trail[at]) if at < len(trail) else None, []).append(rank)
    return sides


def _is_clear(
    trails: Mapping[int, Trail],
    sides: Mapping[Hashable, Sequence[int]],
    at: int,
    ended: frozenset[int],
) -> bool:
    """Whether each side called a collective that all are members of, and that the other never
    came to; or has returned."""
    if len(sides) != 2 or not ended.issuperset(sides.get(None, ())):
        return False
    for step, ranks in sides.items():
        if step is None:
            continue
        pace = trails[ranks[0]][at]
        if pace.slot is None or not set(pace.members).issuperset(trails):
            return False
        others = (rank for rank in trails if rank not in ranks)
        if any(_step(later) == step for rank in others for later in trails[rank][at:]):
            return False
    return True


def _shift(
    trails: Mapping[int, Trail], sides: Mapping[Hashable, Sequence[int]], at: int
) -> int | None:
    """Where one side's lines begin to run ahead of the other's, or behind."""
    lines = Counter(tuple(pace.place for pace in trail[:at]) for trail in trails.values())
    if len(lines) != 2:
        return None
    one, other = lines
    start = next((i for i in range(at) if one[i] != other[i]), at)
    if at - start < 2:
        return None
    for ahead, behind in ((one, other), (other, one)):
        for by in range(1, min(MOST_SHIFT, at - start - 1) + 1):
            if ahead[start : at - by] == behind[start + by : at]:
                return start
    return None
