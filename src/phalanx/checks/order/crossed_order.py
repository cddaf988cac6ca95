"""Find collectives that are paired crosswise: rank a's first with rank b's second and back.

Ranks note what the user's frames say about some calls (`backend/evidence/order_notes.py`); the
notes are compared when the run has ended. What the source says about two places comes in as
functions. Evidence of a call is kept per user frame (*level*, innermost first), since the order
may be wrong in the caller of a wrapper.

| evidence at one level                                  | if it goes crosswise            |
|--------------------------------------------------------|---------------------------------|
| same place, a loop over words; the words differ, and   |                                 |
| the tensor is the words': bound by the same loop, or   |                                 |
| picked by them from something                          | crossed                         |
| same place, other words that have nothing to do with   |                                 |
| the tensor                                             | legal: files, a rank's own data |
| same place, tensors of other names, and a loop that goes |                               |
| over the tensors, or whose values differ likewise      | crossed                         |
| different places, tensors or expressions of other names, |                               |
| and each rank passes its places in one pass, without a |                                 |
| branch between them                                    | crossed                         |
| different places only                                  | legal: branches that do the same |
| same place and value of the loop, other tensors        | legal: a choice by rank and step |
| tensors of the same name, other numbers in the loop    | legal: a rank's own data        |

"Crosswise" is a cycle: the ranks pair A with B, B with C, C with A, within `WINDOW` calls. A
value of a loop is part of what is paired, so things of different iterations never match.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from phalanx import source_text
from phalanx.checks.order.crossed_messages import find_crossed_messages
from phalanx.journal.events import REDUCE_OPS, GroupRecord, Noted, site_of
from phalanx.journal.reader import Journal
from phalanx.model import CallBlock, Finding, Op, Site, rank_list

KIND: Literal["crossed-order"] = "crossed-order"
WINDOW = 256
LONGEST = 16
"""How long a cycle may be."""

MOST_SHOWN = 3
LONGEST_LABEL = 28

Values = tuple[tuple[str, int | str], ...]


@dataclass(frozen=True)
class Level:
    """One user frame of a call: its place, what the tensor is called there, the values of the
    loops around the place, and whether such a loop goes over the tensors themselves. `tied`
    are variables of `loop` whose words come with the tensor."""

    place: Any
    names: tuple[str, ...] = ()
    loop: Values = ()
    swept: bool = False
    tied: tuple[str, ...] = ()


@dataclass(frozen=True)
class NotedCall:
    """One call as this check remembers it; `what` is equal for calls of one kind."""

    number: int
    what: Any
    levels: tuple[Level, ...]


@dataclass(frozen=True)
class Pairing:
    """In call `number` one rank had `one` where the other had `other`; `places` are the lines
    of the calls themselves, if the evidence comes from further out."""

    number: int
    one: Level
    other: Level
    places: tuple[Any, Any] = (None, None)


@dataclass(frozen=True)
class Crossing:
    """`ranks` agree with each other, and so do `others`; `pairs` go round in a circle."""

    ranks: tuple[int, ...]
    others: tuple[int, ...]
    pairs: tuple[Pairing, ...]
    labels: tuple[str, ...]
    """What each pairing is about, as `ranks` call it."""
    what: Any
    in_loop: bool


@dataclass(frozen=True)
class Source:
    """What the program's text says. `together(a, b)`: whether who passes place a passes b in
    the same pass; `expression(a)`: the text of the call there; `picks(a, name)`: whether what
    is given to the call there is picked from something by the variable of that name."""

    together: Callable[[Any, Any], bool]
    expression: Callable[[Any], str | None]
    picks: Callable[[Any, str], bool] = lambda place, name: False


SOURCE = Source(source_text.together, source_text.expression, source_text.picks)


def find_crossed_order(journal: Journal, host: object) -> Iterator[Finding]:
    """From what was noted at calls: number, what was called, the levels (None where a line
    tells nothing new) and the module of FSDP's that the call is for."""
    for group, by_rank in notes_by_group(journal).items():
        if len(by_rank) == len(group.ranks):
            found = _find_in(group, by_rank)
            if found is not None:
                yield found
    yield from find_crossed_messages(journal)


def notes_by_group(journal: Journal) -> dict[GroupRecord, dict[int, list[Noted]]]:
    """What ranks noted at their calls, by group and rank."""
    groups: dict[GroupRecord, dict[int, list[Noted]]] = {}
    for event in journal.noted(KIND):
        if event.group is not None:
            groups.setdefault(event.group, {}).setdefault(event.rank, []).append(event)
    return groups


def _find_in(group: GroupRecord, by_rank: Mapping[int, Sequence[Noted]]) -> Finding | None:
    first, *others = ([event.what for event in own] for own in by_rank.values())
    if all(whats == first for whats in others):
        return None
    parts = {rank: _parts(own) for rank, own in by_rank.items()}
    other = find_other_part(parts) if all(parts.values()) else None
    if other is not None:
        return _other_module(group, *other)
    if _agree_where_all_noted(by_rank):
        return None
    trails = {rank: trail_of(own) for rank, own in by_rank.items()}
    common = set.intersection(*({call.number for call in own} for own in trails.values()))
    calls = {
        rank: [call for call in own if call.number in common] for rank, own in trails.items()
    }
    crossing = find_crossing(calls, SOURCE)
    return None if crossing is None else _finding(group, crossing)


def _agree_where_all_noted(by_rank: Mapping[int, Sequence[Noted]]) -> bool:
    """Whether ranks noted the same at each call at which all of them noted something: nothing
    can be crossed then."""
    told = [
        {what[0]: what for what in (event.what for event in own) if what[2]}
        for own in by_rank.values()
    ]
    common = set.intersection(*map(set, told))
    first, *others = ([own[number] for number in sorted(common)] for own in told)
    return all(whats == first for whats in others)


def _parts(notes: Sequence[Noted]) -> dict[int, Part]:
    return {
        number: Part(module, called[0], event.mark)
        for event in notes
        for number, called, _, module in (event.what,)
        if module is not None
    }


def trail_of(notes: Sequence[Noted]) -> list[NotedCall]:
    """The calls of one rank whose frames were read, in their order."""
    whats = (event.what for event in notes)
    return [
        NotedCall(number, called, tuple(Level(*level) for level in levels))
        for number, called, levels, _ in whats
        if levels
    ]


def find_crossing(trails: Mapping[int, Sequence[NotedCall]], source: Source) -> Crossing | None:
    """The first crossing between the largest set of ranks that agree and any other."""
    alike: dict[tuple[NotedCall, ...], list[int]] = {}
    for rank, trail in sorted(trails.items()):
        alike.setdefault(tuple(trail), []).append(rank)
    if len(alike) < 2:
        return None
    sets = sorted(alike.items(), key=lambda item: (-len(item[1]), item[1]))
    trail, ranks = sets[0]
    for other, others in sets[1:]:
        found = _find_between(trail, other, source)
        if found is not None:
            pairs, labels, what, in_loop = found
            return Crossing(tuple(ranks), tuple(others), pairs, labels, what, in_loop)
    return None


_Found = tuple[tuple[Pairing, ...], tuple[str, ...], Any, bool]


@dataclass(frozen=True)
class Part:
    """What a call of a library was about, such as a module of FSDP's, and where it was made."""

    part: str
    name: str
    place: Any


def find_other_part(parts: Mapping[int, Mapping[int, Part]]) -> tuple[int, list[Any]] | None:
    """The first call, by number, in which ranks that have different parts meet; with each part
    and its ranks, most of them first. A part has the same name on all ranks."""
    for number in sorted(set.intersection(*map(set, parts.values())) if parts else ()):
        alike: dict[str, tuple[Part, list[int]]] = {}
        for rank in sorted(parts):
            here = parts[rank][number]
            alike.setdefault(here.part, (here, []))[1].append(rank)
        if len(alike) > 1:
            return number, sorted(alike.values(), key=lambda each: (-len(each[1]), each[1]))
    return None


def _find_between(
    trail: Sequence[NotedCall], other: Sequence[NotedCall], source: Source
) -> _Found | None:
    there = {trace.number: trace for trace in other}
    met = [(mine, there[mine.number]) for mine in trail if mine.number in there]
    kinds = dict.fromkeys(mine.what for mine, _ in met)
    for depth in range(max((len(mine.levels) for mine, _ in met), default=0)):
        for what in kinds:
            pairs = [
                Pairing(
                    mine.number,
                    mine.levels[depth],
                    theirs.levels[depth],
                    (mine.levels[0].place, theirs.levels[0].place),
                )
                for mine, theirs in met
                if mine.what == theirs.what == what
                and depth < min(len(mine.levels), len(theirs.levels))
            ]
            found = _find_circle(pairs, source)
            if found is not None:
                return (*found, what, found[0][0].one.place == found[0][0].other.place)
    return None


def _find_circle(
    pairs: Iterable[Pairing], source: Source
) -> tuple[tuple[Pairing, ...], tuple[str, ...]] | None:
    edges: dict[Any, list[tuple[Any, Pairing]]] = {}
    order = []
    for pair in pairs:
        keys = keys_of(pair, source)
        if keys is not None:
            edges.setdefault(keys[0], []).append((keys[1], pair))
            order.append((keys[0], keys[1], pair))
    for start, following, pair in order:
        circle = _walk(edges, start, following, pair)
        if circle is not None and _is_sure(circle, source):
            return tuple(circle), tuple(label_of(each, source) for each in circle)
    return None


def _walk(
    edges: Mapping[Any, Any], start: Any, at: Any, first: Pairing
) -> list[Pairing] | None:
    """Follow who stands for whom until the circle closes: back to the start if that is one
    step away, else along the nearest pairing."""
    circle = [first]
    while len(circle) < LONGEST:
        near = [
            (key, pair)
            for key, pair in edges.get(at, ())
            if abs(pair.number - first.number) <= WINDOW
        ]
        closing = next((pair for key, pair in near if key == start), None)
        if closing is not None:
            return [*circle, closing]
        if not near or any(near[0][1] is pair for pair in circle):
            return None
        at, following = near[0]
        circle.append(following)
    return None


def keys_of(pair: Pairing, source: Source) -> tuple[Any, Any] | None:
    """What the two ranks have in this call, where that differs enough to mean something."""
    one, other = pair.one, pair.other
    if one.place == other.place:
        words = _by_words(one, other, source)
        if words is not None:
            return words
        swept = one.swept and other.swept
        if one.names != other.names and (swept or one.loop != other.loop):
            return (one.names, one.loop), (other.names, other.loop)
        return None
    if one.loop != other.loop:
        return _by_words(one, other, source)
    names, theirs = one.names, other.names
    if not names or not theirs:
        texts = source.expression(one.place), source.expression(other.place)
        if None in texts:
            return None
        names, theirs = (str(texts[0]),), (str(texts[1]),)
    return None if names == theirs else ((names, one.loop), (theirs, other.loop))


def _by_words(one: Level, other: Level, source: Source) -> tuple[Any, Any] | None:
    """By the values of the loop alone: only words name things, numbers may be data; and only
    words that have to do with the tensor."""
    changed = [(a, b) for a, b in zip(one.loop, other.loop, strict=False) if a != b]
    if len(one.loop) != len(other.loop) or not changed:
        return None
    if not all(isinstance(value, str) for pair in changed for _, value in pair):
        return None
    for level, words in zip((one, other), zip(*changed, strict=True), strict=True):
        if not any(_is_about(level, word, source) for word in words):
            return None
    return ("words", one.loop), ("words", other.loop)


def _is_about(level: Level, word: tuple[str, int | str], source: Source) -> bool:
    name, value = word
    if name in level.tied or any(f"[{value!r}]" in each for each in level.names):
        return True
    return source.picks(level.place, name)


def _is_sure(circle: Sequence[Pairing], source: Source) -> bool:
    """In a loop the values go round; elsewhere each rank must pass its places in one pass."""
    if all(pair.one.place == pair.other.place for pair in circle):
        return True
    if all(pair.one.loop != pair.other.loop for pair in circle):
        return True
    return all(
        source.together(circle[0].one.place, pair.one.place)
        and source.together(circle[0].other.place, pair.other.place)
        for pair in circle[1:]
    )


def label_of(pair: Pairing, source: Source) -> str:
    """What tells the two apart, as the first rank has it."""
    one, other = pair.one, pair.other
    if one.names != other.names and one.names:
        return max(set(one.names) - set(other.names), key=lambda name: ("[" in name, name))
    words = [(a, b) for a, b in zip(one.loop, other.loop, strict=False) if a != b]
    if words:
        return ", ".join(f"{name}={value!r}" for (name, value), _ in words)
    return source.expression(one.place) or "?"


# -- the finding -------------------------------------------------------------------------


def _other_module(group: GroupRecord, number: int, parts: list[Any]) -> Finding:
    (usual, ranks), (other, others), *_ = parts
    return Finding(
        kind=KIND,
        severity="warning",
        ranks=tuple(others) if 2 * len(ranks) > len(group.ranks) else (),
        headline=(
            f"{rank_list(others, width=24)} called {other.name} for FSDP's "
            f"{_module(other)} where {rank_list(ranks, width=24)} called it for "
            f"{_module(usual)}"
        ),
        blocks=tuple(
            CallBlock(
                tuple(each),
                _op(group, each[0], number, (part.name, None, None), site_of(part.place)),
                (f"for {_module(part)}",),
                "" if part is usual else "<- crossed",
            )
            for part, each in parts
        ),
        facts=(("rule", "ranks that share a module's parameters must use it all at once"),),
    )


def _module(part: Part) -> str:
    return f'module "{_short(part.part)}"' if part.part else "whole model"


def _finding(group: GroupRecord, crossing: Crossing) -> Finding:
    """What each side had in each call, in the order of the calls."""
    turned = (*crossing.labels[1:], crossing.labels[0])
    rows = sorted(
        zip(crossing.pairs, crossing.labels, turned, strict=True),
        key=lambda row: row[0].number,
    )
    ranks, others = crossing.ranks, crossing.others
    blocks = []
    for pair, label, theirs in rows[:MOST_SHOWN]:
        for who, place, level, mine, mark in (
            (ranks, pair.places[0], pair.one, label, ""),
            (others, pair.places[1], pair.other, theirs, "<- crossed"),
        ):
            op = _op(group, who[0], pair.number, crossing.what, site_of(place))
            notes = [f"with {mine}"]
            if level.place != place:
                notes.append(f"by way of {site_of(level.place)}")
            blocks.append(CallBlock(who, op, tuple(notes), mark))
    return Finding(
        kind=KIND,
        severity="warning",
        ranks=others if len(others) < len(ranks) else (),
        headline=(
            told_pair(crossing.what, (others, rows[0][2]), (ranks, rows[0][1]), rows[0][0])
            + (", and the other way round" if len(rows) == 2 else ", and so on")
        ),
        blocks=tuple(blocks),
        hint=_hint(crossing, site_of(rows[0][0].one.place)),
    )


def _op(group: GroupRecord, rank: int, number: int, what: Any, site: Site | None) -> Op:
    name, code, root = what
    return Op(
        rank=rank,
        name=name,
        group=group.as_group(),
        number=number,
        root=None if root is None else group.ranks[root],
        reduce_op=None if code is None else REDUCE_OPS[code],
        site=site,
    )


_VERBS = {"SUM": "was summed with", "AVG": "was averaged with"}
Side = tuple[Sequence[int], str]
"""Ranks, and what they call that which they passed."""


def told_pair(what: Any, one: Side, other: Side, pair: Pairing) -> str:
    """What became of two things that met; `other` is the first side of the pairing."""
    name, code, _ = what
    done = "met" if code is None else _VERBS.get(REDUCE_OPS[code], "was reduced with")
    where = f" in {name}" if code is None else ""
    site, theirs = site_of(pair.places[0]), site_of(pair.places[1])
    first = "" if theirs == site else f" ({theirs})"
    last = f" at {site}" if theirs == site else f" ({site})"
    way = site_of(pair.one.place)
    by_way = "" if theirs != site or way == site else f", by way of {way}"
    return f"{_whose(one)}{first} {done} {_whose(other)}{where}{last}{by_way}"


def _whose(side: Side) -> str:
    ranks, label = side
    return f"{_short(plain(label))} of {rank_list(ranks, width=24)}"


def plain(label: str) -> str:
    """A word of a loop stands for itself: `name='recall'` is "recall"."""
    name, equal, word = label.partition("='")
    return f'"{word[:-1]}"' if equal and name.isidentifier() and "'" not in word[:-1] else label


def _short(label: str) -> str:
    """Long names differ at their ends, if anywhere; the blocks have them whole."""
    return label if len(label) <= LONGEST_LABEL else f"{label[:8]}...{label[-16:]}"


def _hint(crossing: Crossing, site: Site | None) -> str:
    others = rank_list(crossing.others)
    if crossing.in_loop:
        return (
            f"the loop around {site} goes another way on {others}: "
            "go through it in one order on all ranks, e.g. over sorted(...)"
        )
    return f"{others} came to these calls in another order: all ranks must call them in one"
