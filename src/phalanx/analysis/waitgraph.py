"""Prove that nobody can move, and say why.

Used by the engine when a rank parks and no other is ready. A collective waits for all missing
members, a receive from any source for one of several: an AND/OR graph whose fix point says
exactly who can still move. Must never use a clock; a verdict from here is a proof.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Mapping, Sequence
from dataclasses import replace

from phalanx.analysis.cycles import find_cycle
from phalanx.analysis.hints import hint_deadlock
from phalanx.model import Cause, Deadlock, Op, RankView, Snapshot, ViewBlock, Wait

_Waits = Mapping[int, Wait]


def find_movable(snapshot: Snapshot) -> frozenset[int]:
    """The ranks that can still act, at once or after others have acted.

    Timers are not looked at: who they wake is for the caller to say.
    """
    movable = [view.rank for view in snapshot.ranks if _is_free(view)]
    if not movable:
        return frozenset()
    held: dict[tuple[tuple[int, ...], bool], list[int]] = {}
    for view in snapshot.ranks:
        if view.wait is not None and view.status == "waiting" and not _is_free(view):
            held.setdefault((view.wait.needs, view.wait.any_of), []).append(view.rank)
    return _spread(movable, held)


def find_deadlock(snapshot: Snapshot) -> Deadlock | None:
    """Why no rank can ever move again, or None as long as one can, or none waits.

    >>> from phalanx.model import Group
    >>> world = Group("world", (0, 1))
    >>> waits = [Wait(Op(rank, "recv", world, peer=1 - rank), (1 - rank,)) for rank in (0, 1)]
    >>> views = tuple(RankView(rank, "waiting", waits[rank]) for rank in (0, 1))
    >>> find_deadlock(Snapshot(views)).cycle
    (0, 1)
    """
    waits = {v.rank: v.wait for v in snapshot.ranks if v.wait and v.status == "waiting"}
    if snapshot.timers or not waits or find_movable(snapshot):
        return None
    views = sorted(snapshot.ranks, key=lambda view: view.rank)
    cause, at_fault, cycle = _find_cause(views, waits)
    verdict = Deadlock(
        kind="deadlock",
        severity="error",
        ranks=at_fault,
        cause=cause,
        cycle=cycle,
        blocks=_build_blocks(views, cycle, at_fault),
        blocked=len(waits),
        total=len(views),
        in_flight=snapshot.in_flight,
    )
    return replace(verdict, hint=hint_deadlock(verdict, views))


def _is_free(view: RankView) -> bool:
    if view.status != "waiting":
        return view.status in ("computing", "ready", "sleeping", "outside")
    # A wait that is not known could end at any time: no proof may rest on it.
    return view.wait is None or not (view.wait.needs or view.wait.any_of)


def _spread(
    movable: list[int], held: Mapping[tuple[tuple[int, ...], bool], Sequence[int]]
) -> frozenset[int]:
    """The fix point. Ranks that need the same are released together, so a collective costs
    one pass over its missing members, however many ranks wait in it."""
    released = list(held.values())
    missing = [1 if any_of else len(needs) for needs, any_of in held]
    needed_by: dict[int, list[int]] = {}
    for at, (needs, _) in enumerate(held):
        for rank in needs:
            needed_by.setdefault(rank, []).append(at)
    todo = list(movable)
    while todo:
        for at in needed_by.get(todo.pop(), ()):
            missing[at] -= 1
            if missing[at] == 0:
                todo.extend(released[at])
                movable.extend(released[at])
    return frozenset(movable)


def _find_cause(
    views: Sequence[RankView], waits: _Waits
) -> tuple[Cause, tuple[int, ...], tuple[int, ...]]:
    """The cause, the ranks at fault, and the cycle if that is the cause.

    A cycle none of whose ranks waits for a finished one would hang even if that one came
    back, so it goes first; any other cycle is a consequence of the missing peer.
    """
    gone = {v.rank for v in views if v.status in ("finished", "failed")}
    failed = {v.rank for v in views if v.status == "failed"}
    blamed = failed & _all_needs(waits.values())
    if blamed:
        return "failed-peer", tuple(sorted(blamed)), ()
    named = {rank: wait for rank, wait in waits.items() if not _is_open(wait)}
    orphans = {rank: wait for rank, wait in named.items() if _waits_for(wait, gone)}
    cycle = find_cycle({rank: w.needs for rank, w in named.items() if rank not in orphans})
    if cycle:
        return "cycle", tuple(sorted(cycle)), cycle
    if orphans:
        blamed = gone & _all_needs(orphans.values())
        return "finished-peer", tuple(sorted(blamed)), ()
    return "nobody-can", (), ()


def _all_needs(waits: Iterable[Wait]) -> set[int]:
    # Ranks in one slot usually share one tuple: looking at each tuple once saves n * n steps.
    distinct = {id(wait.needs): wait.needs for wait in waits}
    return set().union(*set(distinct.values()))


def _is_open(wait: Wait) -> bool:
    """A store key may be set by anyone: such a wait points at nobody in particular."""
    return wait.op.key is not None and wait.any_of


def _waits_for(wait: Wait, gone: set[int]) -> bool:
    if wait.any_of:
        return bool(wait.needs) and gone.issuperset(wait.needs)
    return not gone.isdisjoint(wait.needs)


def _build_blocks(
    views: Sequence[RankView], cycle: tuple[int, ...], at_fault: tuple[int, ...]
) -> tuple[ViewBlock, ...]:
    """Cycle first, in its order; then those who wait for a rank at fault; then the rest."""
    alike: dict[Hashable, list[RankView]] = {}
    for view in views:
        alike.setdefault(_situation(view), []).append(view)
    blocks = [ViewBlock(tuple(v.rank for v in same), same[0]) for same in alike.values()]
    place = {rank: at for at, rank in enumerate(cycle)}
    fault = set(at_fault)

    def order(block: ViewBlock) -> tuple[int, int]:
        status, wait = block.view.status, block.view.wait
        if status in ("finished", "failed"):
            return (3 if status == "finished" else 4, block.ranks[0])
        in_cycle = [place[rank] for rank in block.ranks if rank in place]
        if in_cycle:
            return 0, min(in_cycle)
        direct = wait is not None and not fault.isdisjoint(wait.needs)
        return 1 if direct else 2, block.ranks[0]

    return tuple(sorted(blocks, key=order))


def _situation(view: RankView) -> Hashable:
    """Ranks with equal situations read the same in a report, but for their tensors."""
    if view.wait is None or view.status != "waiting":
        return (view.status, view.error, view.site, _call(view.last) if view.last else None)
    wait = view.wait
    return (view.status, _call(wait.op), wait.needs, wait.any_of, wait.near)


def _call(op: Op) -> Hashable:
    return (
        *(op.name, op.group.name, op.number, op.site),
        *(op.root, op.reduce_op, op.peer, op.tag, op.key),
    )
