"""Whether ranks make and destroy their groups alike. Pure, over recorded ops.

Used by `backend/group_history.py`. The n-th `new_group` of each rank of a default group is held
against the others' n-th; a group is written as its backend and members.

| what ranks did | verdict |
|---|---|
| other members, backend or order at the same place | error, as soon as it is seen |
| some made fewer groups than others when all have returned, or are waited for in one | error |
| groups of one rank beside each other, or beside a larger one that its members make | none |
| groups of `use_local_synchronization=True` | none: only members make these |
| two groups destroyed in opposite orders by two members of both | warning |
| a member keeps a group that others destroyed, though all of them went on together | warning |
| some ranks leave the destroying to the end of the process | none |

torch asks for the first two in `new_group`'s documentation: all ranks call it, members or
not, in the same order. On Gloo the first hangs and the second does as soon as another group
is made; communicators of NCCL are made and freed by their members together.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Hashable, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import NamedTuple

from phalanx.matching.hints import name_ranks
from phalanx.model import CallBlock, Finding, Op

_RULE = (
    "every rank calls new_group for every group, members or not, in the same order "
    "(only members with use_local_synchronization=True)"
)
_DESTROY_RULE = (
    "ranks that share groups destroy them in the same order: NCCL may free a communicator "
    "only with all its members"
)

Made = tuple[tuple[int, ...], str]
"""A group as ranks make it: its members and its backend."""

NEAR = 32
"""How many groups that were destroyed before another one are compared with it."""


def find_making_mismatch(made: Mapping[int, Sequence[Op]], number: int) -> Finding | None:
    """What the ranks' calls of `new_group` at one place disagree in."""
    ops = {rank: made[rank][number] for rank in sorted(made) if len(made[rank]) > number}
    votes = Counter(op.group for op in ops.values())
    if not do_clash({rank: (op.group.ranks, op.group.name) for rank, op in ops.items()}):
        return None
    (usual, count), *_ = votes.most_common(1)
    decided = 2 * count > len(ops)
    odd = tuple(rank for rank, op in ops.items() if decided and op.group != usual)
    blocks = [
        CallBlock(ranks, op, mark="<- differs" if set(ranks) & set(odd) else "")
        for ranks, op in _alike(ops.values())
    ]
    blocks.sort(key=lambda block: (bool(block.mark), -len(block.ranks), block.ranks))
    odd_one, usual_one = blocks[-1], blocks[0]
    headline = (
        f"{name_ranks(odd_one.ranks)} called {_text(odd_one.op)} "
        f"where {name_ranks(usual_one.ranks)} called it with {_members(usual_one.op)}"
    )
    waited = [rank for rank in sorted(made) if len(made[rank]) <= number]
    facts = [("place", f"new_group #{number} of each rank"), ("rule", _RULE)]
    if not decided:
        facts.append(("differs", "no majority: which ranks are at fault cannot be decided"))
    if waited:
        facts.append(("missing", f"{name_ranks(waited)} had not called it"))
    return Finding(
        kind="mismatch",
        severity="error",
        ranks=odd,
        headline=headline,
        blocks=tuple(blocks),
        facts=tuple(facts),
        hint=_other_order(made, number),
    )


def do_clash(made: Mapping[int, Made]) -> bool:
    """Whether groups that ranks make at one place get in each other's way. A group of one rank
    connects with nobody, so it may stand beside others of one, and beside a larger one that
    all its members make."""
    larger = {each for each in set(made.values()) if len(each[0]) > 1}
    return len(larger) > 1 or any(
        rank in made and made[rank] != each for each in larger for rank in each[0]
    )


def find_missing_making(made: Mapping[int, Sequence[Op]]) -> Finding | None:
    """Groups that some ranks have made and others never will."""
    fewest = min(map(len, made.values()), default=0)
    without = tuple(rank for rank in sorted(made) if len(made[rank]) == fewest)
    ops = [made[rank][fewest] for rank in sorted(made) if len(made[rank]) > fewest]
    if not ops:
        return None
    blocks = tuple(CallBlock(ranks, op) for ranks, op in _alike(ops))
    callers = name_ranks(op.rank for op in ops)
    return Finding(
        kind="mismatch",
        severity="error",
        ranks=without,
        headline=f"{callers} called {_text(blocks[0].op)} where {name_ranks(without)} did not",
        blocks=blocks,
        facts=(("place", f"new_group #{fewest} of each rank"), ("rule", _RULE)),
        hint=_not_members(blocks, without),
    )


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
            ranks, op, (f"into {_members(op)}",), "<- differs" if set(ranks) & set(odd) else ""
        )
        for ranks, op in _alike(near[rank] for rank in sorted(near))
    ]
    blocks.sort(key=lambda block: (bool(block.mark), -len(block.ranks), block.ranks))
    first, last = blocks[0], blocks[-1]
    return Finding(
        kind="mismatch",
        severity="error",
        ranks=odd,
        headline=(
            f"{name_ranks(last.ranks)} split {_members(last.op)} off "
            f'"{last.op.group.name}" where {name_ranks(first.ranks)} split '
            f"{_members(first.op)} off"
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
        blocks=tuple(CallBlock(ranks, op) for ranks, op in _alike(plain)),
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


def _alike(ops: Iterable[Op]) -> list[tuple[tuple[int, ...], Op]]:
    found: dict[object, list[Op]] = {}
    for op in ops:
        found.setdefault((op.group, op.site), []).append(op)
    return [(tuple(op.rank for op in same), same[0]) for same in found.values()]


def _text(op: Op) -> str:
    return f"new_group({_members(op)})"


def _members(op: Op) -> str:
    return str(list(op.group.ranks)) if len(op.group.ranks) < 7 else name_ranks(op.group.ranks)


def _not_members(blocks: Sequence[CallBlock], without: Sequence[int]) -> str | None:
    members = {rank for block in blocks for rank in block.op.group.ranks}
    if members.isdisjoint(without):
        isnt = "is not a member" if len(without) == 1 else "are no members"
        return (
            f"{name_ranks(without)} {isnt} of the group, and must call new_group all the same"
        )
    return None


def _other_order(made: Mapping[int, Sequence[Op]], number: int) -> str | None:
    """The same groups were made, in another order."""
    kinds = {tuple(sorted(str(op.group) for op in ops[number:])) for ops in made.values()}
    if len(kinds) == 1:
        return "the ranks made the same groups in different orders"
    return None
