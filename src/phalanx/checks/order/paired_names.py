"""For a run that failed: the first call in which ranks passed different things, by name.

A rank whose dict of metrics lacks a key pairs every later metric with another one, and fails
much later or elsewhere. The report of that failure then has a line that names the first pair.
It states what was noted at calls (`backend/evidence/order_notes.py`), with the evidence of
`crossed_order.py`. It blames nobody, unless the program adds the name of one side in a branch
that asks for the rank.

| noted                                                     | said                            |
|-----------------------------------------------------------|---------------------------------|
| ranks paired x with y; x and y each came on both sides    | the pair; another order         |
| ranks paired x with y; the ranks with x pass y right after | the pair; the others lack x    |
| x was paired with y, and neither came on the other side   | nothing: names of a rank's own  |
| the call that is a mismatch has x with y                  | who passed what                 |
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

from phalanx.checks.order.crossed_order import (
    SOURCE,
    WINDOW,
    Level,
    NotedCall,
    Pairing,
    Source,
    keys_of,
    label_of,
    notes_by_group,
    plain,
    told_pair,
    trail_of,
)
from phalanx.journal.events import GroupRecord, site_of
from phalanx.journal.reader import Journal
from phalanx.matching.hints import name_ranks
from phalanx.model import Deadlock, Mismatch, Names, Stall, Verdict, rank_list
from phalanx.source_text import branch_around_word, is_here

LABEL = "paired"
"""Of the line in the report, which shows it right below the headline."""

Trail = Mapping[int, NotedCall]
"""The calls of one rank, by number."""


class Added(NamedTuple):
    """What `having` pass and `lacking` do not, by the word of a loop; `files` are those of the
    program's frames there."""

    having: tuple[int, ...]
    lacking: tuple[int, ...]
    word: str
    files: tuple[str, ...]

    @property
    def ranks(self) -> tuple[int, ...]:
        """Those at fault: most ranks do it right, and of as many as others those that do
        more."""
        return self.lacking if len(self.having) > len(self.lacking) else self.having


Told = tuple[str, Added | None]


def with_paired_names(journal: Journal, verdict: Verdict, source: Source = SOURCE) -> Verdict:
    """The verdict with the line before its other names, and with the ranks at fault, if
    nothing else says who they are."""
    if not isinstance(verdict, (Mismatch, Deadlock, Stall)):
        return verdict
    found = _find(journal, verdict, source)
    if found is None:
        return verdict
    text, added = found
    named = replace(verdict, names=((LABEL, text), *verdict.names))
    hint = None if added is None else _hint_of(added)
    if added is None or hint is None:
        return named
    if isinstance(named, Mismatch):
        return _blame(named, added, hint)
    if isinstance(named, Deadlock):
        return replace(named, ranks=added.ranks, hint=hint)
    return named


def _hint_of(added: Added) -> str | None:
    """That the program has the word in a branch that asks for the rank, and nowhere else."""
    for file in added.files:
        line = branch_around_word(file, added.word)
        if line is not None:
            one = len(added.ranks) == 1
            if added.ranks == added.having:
                does, why = "has" if one else "have", "by"
            else:
                does, why = "lacks" if one else "lack", "because of"
            told = f'{does} "{added.word}" {why} a branch that asks'
            return f"{name_ranks(added.ranks)} {told} for the rank, at {file}:{line}"
    return None


def _blame(verdict: Mismatch, added: Added, hint: str) -> Mismatch:
    """Where two blocks disagree and no majority says who is wrong: the ranks that pass what the
    program adds."""
    odd = [block for block in verdict.blocks if block.ranks == added.ranks]
    if verdict.ranks or len(verdict.blocks) != 2 or len(odd) != 1:
        return verdict if verdict.hint else replace(verdict, hint=hint)
    others = [block for block in verdict.blocks if block is not odd[0]]
    blocks = (*others, replace(odd[0], odd=True))
    return replace(verdict, ranks=added.ranks, blocks=blocks, hint=hint)


def find_paired_names(journal: Journal, verdict: Verdict, source: Source = SOURCE) -> Names:
    """One line with its label, or nothing."""
    found = _find(journal, verdict, source)
    return () if found is None else ((LABEL, found[0]),)


def _find(journal: Journal, verdict: Verdict, source: Source) -> Told | None:
    if not isinstance(verdict, (Mismatch, Deadlock, Stall)):
        return None
    for group, by_rank in notes_by_group(journal).items():
        trails = {
            rank: {call.number: call for call in trail_of(own)} for rank, own in by_rank.items()
        }
        refused = _refused_number(verdict, group)
        for found in _find_in(trails, source, refused):
            return found
    return None


def _refused_number(verdict: Verdict, group: GroupRecord) -> int | None:
    """The call whose data never moved, because it is the mismatch itself."""
    if isinstance(verdict, Mismatch) and verdict.group == group.as_group():
        return verdict.number
    return None


def _find_in(
    trails: Mapping[int, Trail], source: Source, refused: int | None
) -> Iterator[Told]:
    for number in sorted({number for trail in trails.values() for number in trail}):
        alike: dict[Any, list[int]] = {}
        for rank in sorted(trails):
            if number in trails[rank]:
                alike.setdefault(trails[rank][number], []).append(rank)
        (_, ranks), *rest = sorted(alike.items(), key=lambda each: (-len(each[1]), each[1]))
        for _, others in rest:
            found = _find_between(
                (ranks, trails[ranks[0]]),
                (others, trails[others[0]]),
                number,
                source,
                moved=number != refused,
            )
            if found is not None:
                yield found


Side = tuple[Sequence[int], Trail]


def _find_between(
    one: Side, other: Side, number: int, source: Source, *, moved: bool
) -> Told | None:
    (ranks, trail), (others, their_trail) = one, other
    mine, theirs = trail[number], their_trail[number]
    if mine.what != theirs.what:
        return None
    for depth, levels in enumerate(zip(mine.levels, theirs.levels, strict=False)):
        pair = Pairing(number, *levels, (mine.levels[0].place, theirs.levels[0].place))
        keys = keys_of(pair, source)
        if keys is None or not _is_one_pass(pair, source):
            continue
        turned = Pairing(number, pair.other, pair.one)
        labels = label_of(pair, source), label_of(turned, source)
        if not moved:
            return _told_refused(number, ranks, others, labels), None
        why = _why(_Way(trail, depth, source), _Way(their_trail, depth, source), number, keys)
        if why is not None:
            told = told_pair(mine.what, (others, labels[1]), (ranks, labels[0]), pair)
            text = f"in call #{number} {told}; {_explained(why, ranks, others, labels)}"
            if why == "others lack":
                return text, _added(ranks, others, mine, pair.one)
            return text, None if why == "order" else _added(others, ranks, theirs, pair.other)
    return None


def _added(
    having: Sequence[int], lacking: Sequence[int], call: NotedCall, level: Level
) -> Added | None:
    words = [value for _, value in level.loop if isinstance(value, str)]
    sites = [site_of(each.place) for each in call.levels]
    files = dict.fromkeys(site.file for site in sites if site is not None and is_here(site))
    if len(words) != 1:
        return None
    return Added(tuple(sorted(having)), tuple(sorted(lacking)), words[0], tuple(files))


def _is_one_pass(pair: Pairing, source: Source) -> bool:
    places = pair.one.place, pair.other.place
    return places[0] == places[1] or source.together(*places)


class _Way:
    """What one rank passed, call by call, as one of its frames names it."""

    def __init__(self, trail: Trail, depth: int, source: Source) -> None:
        self._trail = trail
        self._depth = depth
        self._source = source

    def has(self, number: int, key: Any) -> bool:
        call = self._trail.get(number)
        if call is None or len(call.levels) <= self._depth:
            return False
        return bool(self._key(call.levels[self._depth], key[0] == "words") == key)

    def _key(self, level: Level, words: bool) -> Any:
        if words:
            return "words", level.loop
        names = level.names or (str(self._source.expression(level.place)),)
        return names, level.loop

    def others_near(self, number: int) -> Iterator[int]:
        return (n for n in self._trail if n != number and abs(n - number) <= WINDOW)


def _why(one: _Way, other: _Way, number: int, keys: Any) -> str | None:
    """How the pair came about: what either side has comes on the other one, too, elsewhere and
    not paired with itself."""
    mine, theirs = keys
    has_theirs = any(
        one.has(n, theirs) and not other.has(n, theirs) for n in one.others_near(number)
    )
    has_mine = any(
        other.has(n, mine) and not one.has(n, mine) for n in other.others_near(number)
    )
    lacks_mine = one.has(number + 1, theirs) and not other.has(number + 1, mine)
    lacks_theirs = other.has(number + 1, mine) and not one.has(number + 1, theirs)
    if has_theirs and lacks_mine:
        return "others lack"
    if has_mine and lacks_theirs:
        return "ranks lack"
    return "order" if has_theirs and has_mine else None


def _explained(
    why: str, ranks: Sequence[int], others: Sequence[int], labels: tuple[str, str]
) -> str:
    mine, theirs = map(plain, labels)
    if why == "others lack":
        return f"{rank_list(others, width=24)} came to {theirs} without {mine} before it"
    if why == "ranks lack":
        return f"{rank_list(ranks, width=24)} came to {mine} without {theirs} before it"
    return "both pass both, in another order"


def _told_refused(
    number: int, ranks: Sequence[int], others: Sequence[int], labels: tuple[str, str]
) -> str:
    mine, theirs = map(plain, labels)
    return (
        f"in call #{number} {rank_list(others, width=24)} passed {theirs} where "
        f"{rank_list(ranks, width=24)} passed {mine}"
    )
