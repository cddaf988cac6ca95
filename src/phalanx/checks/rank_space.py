"""One number in two spaces: a rank of the world here, a rank of the group there.

Ranks note the roots of their calls (`backend/evidence/root_notes.py`); the notes are compared
when the run has ended.

| seen on one group                                           | verdict                      |
|-------------------------------------------------------------|------------------------------|
| a line always gives k as a rank of the world (`src=k`),     | warning: the two roots are   |
| another one always k as a rank of the group (`group_src=k`, | different ranks              |
| a method of the group, `get_global_rank(group, k)`), and k  |                              |
| could be meant either way                                   |                              |
| a line that gives several numbers                           | legal: it goes through them  |
| both spaces are used with numbers that only they have       | legal: the author knows them |
| a line gives what `get_group_rank` of the same group said   | warning: that is a rank of   |
| as a rank of the world                                      | the group                    |
| k is not in the group, or has the same meaning in both      | no doubt about what is meant |
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from phalanx.journal.events import GroupRecord
from phalanx.journal.reader import Journal
from phalanx.model import CallBlock, Finding, Op
from phalanx.source_text import expression, gives_group_rank

KIND = "rank-space"

Space = Literal["world", "group"]
_UseKey = tuple[Any, str, Space, int]
"""The line, the operation, and the number in its space."""

_RULE = "src and dst are ranks of the world; group_src and group_dst are ranks of the group"


@dataclass(frozen=True)
class RootUse:
    """A call at a line, the number that it was given for its root, in which space, and by which
    ranks. `converted` says that the number is one of the group by what the source says."""

    op: Op
    space: Space
    number: int
    ranks: tuple[int, ...]
    converted: bool = False


_BY_GROUP_RANK = re.compile(r"get_global_rank\([^()]*,\s*(\d+)\s*\)")


def find_rank_spaces(journal: Journal, host: object) -> Iterator[Finding]:
    """From what was noted at calls with a root: its space, its number and the call."""
    groups: dict[GroupRecord, dict[_UseKey, tuple[Op, set[int]]]] = {}
    for event in journal.noted(KIND):
        if event.group is not None:
            space, number, op = event.what
            uses = groups.setdefault(event.group, {})
            key = (event.mark, op.name, space, number)
            uses.setdefault(key, (op, set()))[1].add(event.rank)
    for uses in groups.values():
        found = find_rank_space(
            _use(op, mark, space, number, tuple(sorted(ranks)))
            for (mark, _, space, number), (op, ranks) in uses.items()
        )
        if found is not None:
            yield found


def _use(op: Op, mark: Any, space: Space, number: int, ranks: tuple[int, ...]) -> RootUse:
    """A rank of the world that the same line computes from one of the group counts as that."""
    if space == "world" and mark is not None:
        written = _BY_GROUP_RANK.search(expression(mark) or "")
        if written is not None:
            return RootUse(op, "group", int(written[1]), ranks)
        return RootUse(op, space, number, ranks, converted=gives_group_rank(mark))
    return RootUse(op, space, number, ranks)


def find_rank_space(uses: Iterable[RootUse]) -> Finding | None:
    """`uses` of one group."""
    lines: dict[object, list[RootUse]] = {}
    uses = list(uses)
    for use in uses:
        if use.converted and use.space == "world" and _means_two(use):
            return _converted(use)
        lines.setdefault((use.op.site, use.op.name), []).append(use)
    if _knows_both(uses):
        return None
    steady = [
        each[0] for each in lines.values() if len({(u.space, u.number) for u in each}) == 1
    ]
    for one in steady:
        for other in steady:
            if (one.space, other.space) == ("world", "group") and _is_doubtful(one, other):
                return _finding(one, other)
    return None


def _is_doubtful(one: RootUse, other: RootUse) -> bool:
    return one.number == other.number and _means_two(one)


def _means_two(use: RootUse) -> bool:
    ranks, number = use.op.group.ranks, use.number
    return number in ranks and number < len(ranks) and ranks[number] != number


def _knows_both(uses: Sequence[RootUse]) -> bool:
    """Whether numbers are given in either space that make no sense in the other."""
    of_world = any(u.space == "world" and u.number >= len(u.op.group.ranks) for u in uses)
    of_group = any(u.space == "group" and u.number not in u.op.group.ranks for u in uses)
    return of_world and of_group


def _converted(use: RootUse) -> Finding:
    ranks, number = use.op.group.ranks, use.number
    return Finding(
        kind="rank-space",
        severity="warning",
        ranks=(),
        headline=(
            f"{use.op.name} takes {number}, which get_group_rank said, for rank {number}; "
            f'on "{use.op.group.name}" it stands for rank {ranks[number]}'
        ),
        blocks=(CallBlock(use.ranks, use.op, (_note(use),)),),
        facts=(("rule", _RULE),),
        hint=f"give it as group_src or group_dst, or give rank {ranks[number]} itself",
    )


def _finding(world: RootUse, group: RootUse) -> Finding:
    ranks, number = world.op.group.ranks, world.number
    meant = ranks[number]
    first, second = sorted((world, group), key=lambda use: str(use.op.site))
    return Finding(
        kind="rank-space",
        severity="warning",
        ranks=(),
        headline=(
            f"root {number} is rank {number} in {world.op.name}, but rank {meant} in "
            f'{group.op.name}, on "{world.op.group.name}"'
        ),
        blocks=tuple(CallBlock(use.ranks, use.op, (_note(use),)) for use in (first, second)),
        facts=(("rule", _RULE),),
        hint=(
            f"if both mean one rank: rank {meant} is group rank {number}, "
            f"and rank {number} is group rank {ranks.index(number)}"
        ),
    )


def _note(use: RootUse) -> str:
    ranks, number = use.op.group.ranks, use.number
    if use.space == "world":
        return f"{number} is a rank of the world, group rank {ranks.index(number)}"
    return f"{number} is a rank of the group, rank {ranks[number]} of the world"
