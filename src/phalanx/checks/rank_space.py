"""One number in two spaces: a rank of the world here, a rank of the group there. Pure.

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

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Literal

from phalanx.model import CallBlock, Finding, Op

Space = Literal["world", "group"]

_RULE = "src and dst are ranks of the world; group_src and group_dst are ranks of the group"


@dataclass(frozen=True)
class Use:
    """A call at a line, the number that it was given for its root, in which space, and by which
    ranks. `converted` says that the number is one of the group by what the source says."""

    op: Op
    space: Space
    number: int
    ranks: tuple[int, ...]
    converted: bool = False


def find_rank_space(uses: Iterable[Use]) -> Finding | None:
    """`uses` of one group."""
    lines: dict[object, list[Use]] = {}
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


def _is_doubtful(one: Use, other: Use) -> bool:
    return one.number == other.number and _means_two(one)


def _means_two(use: Use) -> bool:
    ranks, number = use.op.group.ranks, use.number
    return number in ranks and number < len(ranks) and ranks[number] != number


def _knows_both(uses: Sequence[Use]) -> bool:
    """Whether numbers are given in either space that make no sense in the other."""
    of_world = any(u.space == "world" and u.number >= len(u.op.group.ranks) for u in uses)
    of_group = any(u.space == "group" and u.number not in u.op.group.ranks for u in uses)
    return of_world and of_group


def _converted(use: Use) -> Finding:
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


def _finding(world: Use, group: Use) -> Finding:
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


def _note(use: Use) -> str:
    ranks, number = use.op.group.ranks, use.number
    if use.space == "world":
        return f"{number} is a rank of the world, group rank {ranks.index(number)}"
    return f"{number} is a rank of the group, rank {ranks[number]} of the world"
