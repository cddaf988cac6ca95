"""Whether ranks split and destroy their groups alike. Pure, over recorded ops.

Used by `backend/group_history.py`; whether they make them alike is for `matching/groups.py`.

| what ranks did | verdict |
|---|---|
| a group split into parts that overlap and are not the same | error, as soon as it is seen |
| two groups destroyed in opposite orders by two members of both | warning |
| a member keeps a group that others destroyed, though all of them went on together | warning |
| some ranks leave the destroying to the end of the process | none |

Communicators of NCCL are made and freed by their members together.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import replace
from typing import NamedTuple

from phalanx.matching.groups import name_members, ops_alike
from phalanx.matching.hints import name_ranks
from phalanx.model import CallBlock, Finding, Op

_DESTROY_RULE = (
    "ranks that share groups destroy them in the same order: NCCL may free a communicator "
    "only with all its members"
)

NEAR = 32
"""How many groups that were destroyed before another one are compared with it."""


def find_split_mismatch(splits: Mapping[int, Op], latest: int) -> Finding | None:
    """Ranks that split a group into parts which overlap and are not the same. An op's group is
    the part that its rank named; a rank may have named none with itself in it."""
    part = set(splits[latest].group.ranks)
    near = {rank: op for rank, op in splits.items() if part.intersection(op.group.ranks)}
    votes = Counter(op.group.ranks for op in near.values())
    if len(votes) < 2:
        return None
    (usual, count), *_ = votes.most_common(1)
    decided = 2 * count > len(near)
    odd = tuple(r for r in sorted(near) if decided and near[r].group.ranks != usual)
    blocks = [
        CallBlock(
            ranks,
            op,
            (f"into {name_members(op)}",),
            "<- differs" if set(ranks) & set(odd) else "",
        )
        for ranks, op in ops_alike(near[rank] for rank in sorted(near))
    ]
    blocks.sort(key=lambda block: (bool(block.mark), -len(block.ranks), block.ranks))
    first, last = blocks[0], blocks[-1]
    return Finding(
        kind="mismatch",
        severity="error",
        ranks=odd,
        headline=(
            f"{name_ranks(last.ranks)} split {name_members(last.op)} off "
            f'"{last.op.group.name}" where {name_ranks(first.ranks)} split '
            f"{name_members(first.op)} off"
        ),
        blocks=tuple(blocks),
        facts=(("rule", "all members split a group at once, into the same parts"),),
    )


class Destroyed(NamedTuple):
    """A rank's call, and which group it destroyed: names may be given again."""

    group: Hashable
    op: Op


def find_destroy_mismatch(destroyed: Mapping[int, Sequence[Destroyed]]) -> Finding | None:
    """Two groups that two members of both destroyed in opposite orders, near each other."""
    order: dict[tuple[Hashable, Hashable], tuple[Op, Op]] = {}
    for rank in sorted(destroyed):
        gone = destroyed[rank]
        for at, late in enumerate(gone):
            for early in gone[max(0, at - NEAR) : at]:
                other = order.get((late.group, early.group))
                if other is not None:
                    return _opposite(other, (early.op, late.op))
                order.setdefault((early.group, late.group), (early.op, late.op))
    return None


def find_kept_group(
    destroyed: Mapping[int, Sequence[Destroyed]], went_on: Mapping[int, int]
) -> Finding | None:
    """A group that some members destroyed and others never did by themselves. An op's number
    is how many collectives of the default group went before, `went_on` how many there were in
    the end: members that leave a group to the end of the process are in order."""
    by_group: dict[Hashable, list[Op]] = {}
    for gone in destroyed.values():
        for each in gone:
            by_group.setdefault(each.group, []).append(each.op)
    for ops in by_group.values():
        group = ops[0].group
        keepers = tuple(sorted(set(group.ranks) - {op.rank for op in ops}))
        last = max(op.number or 0 for op in ops)
        if keepers and all(went_on.get(rank, 0) > last for rank in group.ranks):
            return _kept(ops, keepers)
    return None


def _kept(ops: Sequence[Op], keepers: tuple[int, ...]) -> Finding:
    callers = name_ranks(op.rank for op in ops)
    group = ops[0].group
    plain = [replace(op, number=None) for op in ops]
    return Finding(
        kind="mismatch",
        severity="warning",
        ranks=keepers,
        headline=f'{callers} destroyed "{group.name}" where {name_ranks(keepers)} did not',
        blocks=tuple(CallBlock(ranks, op) for ranks, op in ops_alike(plain)),
        facts=(
            ("rule", "all members of a group destroy it: NCCL may wait for the others there"),
        ),
    )


def _opposite(one: tuple[Op, Op], other: tuple[Op, Op]) -> Finding:
    first, second = one[0].group.name, one[1].group.name
    ranks = one[0].rank, other[0].rank
    return Finding(
        kind="mismatch",
        severity="warning",
        ranks=(),
        headline=(
            f"ranks {ranks[0]} and {ranks[1]} destroyed "
            f'"{first}" and "{second}" in opposite orders'
        ),
        blocks=tuple(
            CallBlock((pair[0].rank,), replace(op, number=None), notes=(note,))
            for pair in (one, other)
            for op, note in zip(pair, ("first", "then"), strict=True)
        ),
        facts=(("rule", _DESTROY_RULE),),
    )
