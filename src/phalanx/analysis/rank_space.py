"""One number in two spaces: a rank of the world here, a rank of the group there. Pure.

| seen on one group                                           | verdict                      |
|-------------------------------------------------------------|------------------------------|
| a line always gives k as a rank of the world (`src=k`),     | warning: the two roots are   |
| another one always k as a rank of the group (`group_src=k`, | different ranks              |
| a method of the group, `get_global_rank(group, k)`), and k  |                              |
| could be meant either way                                   |                              |
| a line that gives several numbers                           | legal: it goes through them  |
| k is not in the group, or has the same meaning in both      | no doubt about what is meant |
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal

from phalanx.model import CallBlock, Finding, Op

Space = Literal["world", "group"]


@dataclass(frozen=True)
class Use:
    """A call at a line, the number that it was given for its root, in which space, and by which
    ranks."""

    op: Op
    space: Space
    number: int
    ranks: tuple[int, ...]


def find_rank_space(uses: Iterable[Use]) -> Finding | None:
    """`uses` of one group."""
    lines: dict[object, list[Use]] = {}
    for use in uses:
        lines.setdefault((use.op.site, use.op.name), []).append(use)
    steady = [
        each[0] for each in lines.values() if len({(u.space, u.number) for u in each}) == 1
    ]
    for one in steady:
        for other in steady:
            if (one.space, other.space) == ("world", "group") and _is_doubtful(one, other):
                return _finding(one, other)
    return None


def _is_doubtful(one: Use, other: Use) -> bool:
    ranks, number = one.op.group.ranks, one.number
    return (
        number == other.number
        and number in ranks
        and number < len(ranks)
        and ranks[number] != number
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
        facts=(
            (
                "rule",
                "src and dst are ranks of the world; group_src and group_dst are ranks of the "
                "group",
            ),
        ),
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
