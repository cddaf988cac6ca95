"""Whether ranks split and destroy their groups alike, and use those that they are in. Pure.

Splits are judged where they happen (`backend/group_history.py`), all else from the journal when
the run has ended. Whether ranks make groups alike is for `matching/groups.py`.

| what ranks did | verdict |
|---|---|
| a group split into parts that overlap and are not the same | error, as soon as it is seen |
| two groups destroyed in opposite orders by two members of both | warning |
| a member keeps a group that others destroyed, though all of them went on together | warning |
| some ranks leave the destroying to the end of the process | none |
| a call on a group that the rank is not in, for which torch only warns | warning |

Communicators of NCCL are made and freed by their members together.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Hashable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Literal, NamedTuple

from phalanx.journal.events import GroupDestroyed, GroupMade, GroupRecord
from phalanx.journal.reader import Journal
from phalanx.matching.groups import name_members, ops_alike
from phalanx.matching.hints import name_ranks
from phalanx.model import CallBlock, Finding, Group, Op, rank_list

KIND: Literal["mismatch"] = "mismatch"
INVALID: Literal["invalid-call"] = "invalid-call"

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


# -- from the journal ----------------------------------------------------------------------


def find_lifecycle_mismatches(journal: Journal, host: object) -> Iterator[Finding]:
    """Groups that ranks destroyed in different orders, or that only some did: for each world,
    since groups live as long as their default group."""
    events = journal.rare(GroupDestroyed)
    if not any(not event.default for event in events):
        return
    alone = _destroyed_alone(events)
    made = {(event.rank, event.group) for event in journal.rare(GroupMade)}
    for world in dict.fromkeys(event.world for own in alone.values() for event in own):
        if world is None:
            continue
        unsettled = _without_settled(
            {r: [e for e in own if e.world is world] for r, own in alone.items()}
        )
        ops = {rank: list(map(_destroyed, own)) for rank, own in sorted(unsettled.items())}
        found = find_destroy_mismatch(ops)
        if found is None:
            sure = {
                rank: [each for each in own if _is_known(each.group, alone, made)]
                for rank, own in ops.items()
            }
            found = find_kept_group(sure, _calls_on(journal, world, events))
        if found is not None:
            yield found


def _destroyed_alone(events: Sequence[GroupDestroyed]) -> dict[int, list[GroupDestroyed]]:
    """By rank, without the groups that went with the default group, all in one call: torch
    itself sees to their order."""
    found: dict[int, list[GroupDestroyed]] = {}
    for event in events:
        own = found.setdefault(event.rank, [])
        if not event.default:
            own.append(event)
        else:
            while own and own[-1].mark == event.mark and own[-1].world is event.world:
                own.pop()
    return found


def _without_settled(
    destroyed: Mapping[int, Sequence[GroupDestroyed]],
) -> dict[int, Sequence[GroupDestroyed]]:
    """There is nothing to be said about a group that all members destroyed, none of them after
    another one that is not done with."""
    queues = {rank: deque(own) for rank, own in destroyed.items()}
    todo = list(queues)
    while todo:
        own = queues[todo[-1]]
        ranks = own[0].group.ranks if own else ()
        heads = [queues[r][0].group for r in ranks if queues.get(r)]
        if own and len(heads) == len(ranks) and all(g is own[0].group for g in heads):
            for rank in ranks:
                queues[rank].popleft()
            todo += [rank for rank in ranks if rank != todo[-1]]
        else:
            todo.pop()
    return {rank: list(own) for rank, own in queues.items()}


def _destroyed(event: GroupDestroyed) -> Destroyed:
    group = Group(event.group.name, event.group.ranks)
    op = Op(event.rank, "destroy_process_group", group, event.calls, site=event.site)
    return Destroyed(event.group, op)


def _is_known(
    group: Hashable,
    alone: Mapping[int, Sequence[GroupDestroyed]],
    made: set[tuple[int, GroupRecord]],
) -> bool:
    """Whether the journal has what each member did with a group: it may have forgotten."""
    assert isinstance(group, GroupRecord)
    return all(
        (rank, group) in made or any(event.group is group for event in alone.get(rank, ()))
        for rank in group.ranks
    )


def _calls_on(
    journal: Journal, world: GroupRecord, events: Sequence[GroupDestroyed]
) -> dict[int, int]:
    """How many collectives each rank called on a default group, as far as is known."""
    found = {e.rank: e.calls for e in events if e.default and e.group is world}
    for rank in range(journal.ranks):
        if rank not in found:
            calls = (c for c in reversed(journal.calls(rank)) if c.group is world)
            last = next((c.number for c in calls if c.number is not None), None)
            found[rank] = 0 if last is None else last + 1
    return found


def find_outsider_calls(journal: Journal, host: object) -> Iterator[Finding]:
    """One finding for each operation and line."""
    alike: dict[Hashable, list[Op]] = {}
    for event in journal.noted(INVALID):
        op: Op = event.what
        alike.setdefault((op.name, op.site), []).append(op)
    world = Group("world", tuple(range(journal.ranks)))
    for ops in alike.values():
        ranks = tuple(sorted({op.rank for op in ops}))
        yield _outsiders(ranks, replace(ops[0], group=world))


def _outsiders(ranks: tuple[int, ...], op: Op) -> Finding:
    who = rank_list(ranks, width=24)
    they = "it is" if len(ranks) == 1 else "they are"
    return Finding(
        INVALID,
        "warning",
        ranks,
        headline=f"{who} called {op.name} on a group that {they} not in; nothing was done",
        blocks=(CallBlock(ranks, op),),
        hint="new_group gives ranks outside of it no group; make the call on its members only: "
        "if dist.get_rank(group) >= 0",
    )


# -- the rules -----------------------------------------------------------------------------


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
