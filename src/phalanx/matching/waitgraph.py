"""Prove that ranks can never move again, and say why.

Used by the engine when a rank parks and no other is ready, and now and then for ranks that
stay parked while others work. What a wait needs:

    collective                all members that are missing
    receive from one, send    that one
    receive from any source   any of the other members
    key in a store            any rank
    join of a thread          that thread, to end
    event, queue, condition   any thread of any rank
    timer, anything unknown   nobody: it may end by itself

An AND/OR graph over threads, whose fix point says exactly who can still move: a rank acts
through any of its threads. Must never use a clock; a verdict from here is a proof.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import NamedTuple

from phalanx.matching.cycles import find_cycle
from phalanx.matching.hints import hint_deadlock
from phalanx.model import Cause, Deadlock, Op, RankView, Snapshot, ViewBlock, Wait

_Waits = Mapping[int, Wait]


_MANY = 64


class Node(NamedTuple):
    """One thread of a rank, as the graph sees it: `thread` is None for the main one.

    It acts once all of `needs` (or any one, if `any_of`) can act, and the rank's own thread
    `joins` can end. A rank can act as long as one of its threads can.
    """

    rank: int
    thread: str | None = None
    needs: tuple[int, ...] = ()
    any_of: bool = False
    joins: str | None = None
    free: bool = False


def find_stuck(nodes: Sequence[Node]) -> list[int]:
    """The places in `nodes` of those that can never act again. Exact: the least fix point.

    >>> find_stuck([Node(0, needs=(1,)), Node(1, needs=(0,)), Node(2, free=True)])
    [0, 1]
    """
    if not any(node.free for node in nodes):
        return list(range(len(nodes)))
    held: dict[Hashable, list[int]] = {}
    same = _Interned()
    missing: list[int] = []
    needed_by: dict[Hashable, list[int]] = {}
    for at, node in enumerate(nodes):
        if node.free:
            continue
        key = (same[node.needs], node.any_of, node.joins and (node.rank, node.joins))
        alike = held.setdefault(key, [])
        alike.append(at)
        if len(alike) == 1:
            _add_needs(node, missing, needed_by)
    released = list(held.values())
    moving = [node.free for node in nodes]
    todo: list[Hashable] = []
    acting: set[int] = set()

    def release(at: int) -> None:
        node = nodes[at]
        moving[at] = True
        todo.append((node.rank, node.thread))
        if node.rank not in acting:
            acting.add(node.rank)
            todo.append(node.rank)

    for at, node in enumerate(nodes):
        if node.free:
            release(at)
    while todo:
        for place in needed_by.get(todo.pop(), ()):
            missing[place] -= 1
            if missing[place] == 0:
                for at in released[place]:
                    release(at)
    return [at for at, moves in enumerate(moving) if not moves]


class _Interned(dict[int, int]):
    """A number for each tuple, the same for equal ones. A thousand ranks mostly share one
    object, whose hash takes a thousand steps to find and is not kept by Python."""

    def __init__(self) -> None:
        super().__init__()
        self._numbers: dict[tuple[int, ...], int] = {}

    def __getitem__(self, needs: tuple[int, ...]) -> int:  # type: ignore[override]
        found = self.get(id(needs))
        if found is None:
            found = self[id(needs)] = self._numbers.setdefault(needs, len(self._numbers))
        return found


def _add_needs(node: Node, missing: list[int], needed_by: dict[Hashable, list[int]]) -> None:
    """Threads that need the same are released together, so a collective costs one pass over
    its missing members, however many ranks wait in it."""
    place = len(missing)
    if node.joins is not None:
        missing.append(1)
        needed_by.setdefault((node.rank, node.joins), []).append(place)
        return
    missing.append(1 if node.any_of else len(node.needs))
    for rank in node.needs:
        needed_by.setdefault(rank, []).append(place)


def find_deadlock(snapshot: Snapshot, *, partial: bool = False) -> Deadlock | None:
    """Why no rank can ever move again, or None as long as one can, or none waits. With
    `partial`, why some cannot, though others can.

    >>> from phalanx.model import Group
    >>> world = Group("world", (0, 1))
    >>> waits = [Wait(Op(rank, "recv", world, peer=1 - rank), (1 - rank,)) for rank in (0, 1)]
    >>> views = tuple(RankView(rank, "waiting", waits[rank]) for rank in (0, 1))
    >>> find_deadlock(Snapshot(views)).cycle
    (0, 1)
    """
    nodes, stuck = _judge(snapshot)
    if not partial and (snapshot.timers or len(stuck) < len(nodes)):
        return None
    lost = {(nodes[at].rank, nodes[at].thread) for at in stuck}
    views = [
        view if _is_gone(view) or (view.rank, None) in lost else RankView(view.rank, "moving")
        for view in sorted(snapshot.ranks, key=lambda view: view.rank)
    ]
    threads = [view for view in snapshot.threads if (view.rank, view.thread) in lost]
    waits = _root_waits(views, threads)
    if not waits:
        return None
    cause, at_fault, cycle = _find_cause(views, waits)
    verdict = Deadlock(
        kind="deadlock",
        severity="error",
        ranks=at_fault,
        cause=cause,
        cycle=cycle,
        blocks=_build_blocks([*views, *threads], cycle, at_fault),
        blocked=len(waits),
        total=len(views),
        in_flight=snapshot.in_flight,
    )
    return replace(verdict, hint=hint_deadlock(verdict, [*views, *threads]))


def _judge(snapshot: Snapshot) -> tuple[list[Node], set[int]]:
    alive = [view for view in (*snapshot.ranks, *snapshot.threads) if not _is_gone(view)]
    nodes = [_node(view) for view in alive]
    return nodes, set(find_stuck(nodes))


def _node(view: RankView) -> Node:
    name = view.thread if view.status != "lingering" else None
    if _is_free(view) or view.wait is None:
        return Node(view.rank, name, free=True)
    wait = view.wait
    needs = wait.needs
    if wait.any_of and len(needs) + 1 == len(wait.op.group.ranks) > _MANY:
        # All others, and itself, which cannot: one tuple for all who wait so, not one each.
        needs = wait.op.group.ranks
    return Node(view.rank, name, needs, wait.any_of, wait.joins)


def _root_waits(views: Sequence[RankView], threads: Sequence[RankView]) -> dict[int, Wait]:
    """What each stuck rank waits for in the end: not for its own thread, but for what that
    one waits for; and a rank that has returned, for what its threads do."""
    waits = {v.rank: v.wait for v in views if v.wait and v.status in ("waiting", "lingering")}
    by_name = {(view.rank, view.thread): view.wait for view in threads if view.wait}
    for (rank, _), thread_wait in by_name.items():
        wait = waits.get(rank)
        if wait is None or (wait.joins is None and wait.op.key is None and _is_open(wait)):
            waits[rank] = thread_wait
    for rank, wait in waits.items():
        seen: set[str] = set()
        while wait.joins is not None and wait.joins not in seen:
            seen.add(wait.joins)
            wait = by_name.get((rank, wait.joins), wait)
        waits[rank] = wait
    return waits


def _is_gone(view: RankView) -> bool:
    return view.status in ("finished", "failed")


def _is_free(view: RankView) -> bool:
    if view.status not in ("waiting", "lingering"):
        return True
    # A wait that is not known could end at any time: no proof may rest on it.
    wait = view.wait
    return wait is None or not (wait.needs or wait.any_of or wait.joins)


def _find_cause(
    views: Sequence[RankView], waits: _Waits
) -> tuple[Cause, tuple[int, ...], tuple[int, ...]]:
    """The cause, the ranks at fault, and the cycle if that is the cause. A rank whose receive
    from any source took the message that it waits for is at fault itself.

    A cycle none of whose ranks waits for a finished one would hang even if that one came
    back, so it goes first; any other cycle is a consequence of the missing peer.
    """
    gone = {v.rank for v in views if v.status in ("finished", "failed")}
    failed = {v.rank for v in views if v.status == "failed"}
    blamed = failed and failed & _all_needs(waits.values())
    if blamed:
        return "failed-peer", tuple(sorted(blamed)), ()
    named = {rank: wait for rank, wait in waits.items() if not _is_open(wait)}
    orphans = {rank: wait for rank, wait in named.items() if _waits_for(wait, gone)}
    cycle = find_cycle({rank: w.needs for rank, w in named.items() if rank not in orphans})
    robbed = tuple(sorted(rank for rank in (cycle or orphans) if waits[rank].robbed))
    if cycle:
        odd = set(robbed) or _find_odd(waits[rank] for rank in cycle)
        return "cycle", tuple(sorted(odd or cycle)), cycle
    if robbed:
        return "finished-peer", robbed, ()
    if orphans:
        blamed = gone & _all_needs(orphans.values())
        odd = _find_odd(orphans.values())
        if odd and (blamed <= odd or not odd & blamed):
            blamed = odd & blamed or odd
        return "finished-peer", tuple(sorted(blamed)), ()
    return "nobody-can", (), ()


def _find_odd(waits: Iterable[Wait]) -> set[int]:
    """Who is in the minority of the collectives waited in: members that have come to one, or
    that have not. Empty where there is no majority, or several that contradict each other."""
    odd: set[int] | None = None
    slots = {(w.op.group.name, w.op.number): w for w in waits if w.op.number is not None}
    for wait in slots.values():
        members, missing = set(wait.op.group.ranks), set(wait.needs)
        few, many = sorted((missing, members - missing), key=len)
        if len(few) < len(many):
            odd = few if odd is None else odd & few
    return odd or set()


def _all_needs(waits: Iterable[Wait]) -> set[int]:
    # Ranks in one slot usually share one tuple: looking at each tuple once saves n * n steps.
    distinct = {id(wait.needs): wait.needs for wait in waits}
    return set().union(*set(distinct.values()))


def _is_open(wait: Wait) -> bool:
    """A store key may be set by anyone, and a queue filled: such a wait points at nobody in
    particular."""
    if not wait.any_of or wait.op.tag is not None:  # what has a tag is a message
        return False
    return wait.op.key is not None or wait.op.rank in wait.needs


def _waits_for(wait: Wait, gone: set[int]) -> bool:
    if wait.any_of:
        return bool(wait.needs) and gone.issuperset(wait.needs)
    return not gone.isdisjoint(wait.needs)


def _build_blocks(
    views: Sequence[RankView], cycle: tuple[int, ...], at_fault: tuple[int, ...]
) -> tuple[ViewBlock, ...]:
    """Cycle first, in its order; then those who wait for a rank at fault; then the rest."""
    alike: dict[Hashable, list[RankView]] = {}
    same = _Interned()
    for view in views:
        alike.setdefault(_situation(view, same), []).append(view)
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
        direct = wait is not None and not fault.isdisjoint((*wait.needs, *block.ranks))
        return 1 if direct else 2, block.ranks[0]

    return tuple(sorted(blocks, key=order))


def _situation(view: RankView, same: _Interned) -> Hashable:
    """Ranks with equal situations read the same in a report, but for their tensors."""
    if view.wait is None or view.status != "waiting":
        last = _call(view.last) if view.last else None
        return (view.status, view.error, view.site, view.left, last)
    wait = view.wait
    own = (view.thread, wait.joins)
    return (view.status, _call(wait.op), same[wait.needs], wait.any_of, wait.near, *own)


def _call(op: Op) -> Hashable:
    return (
        *(op.name, op.group.name, op.number, op.site),
        *(op.root, op.reduce_op, op.peer, op.tag, op.key),
    )
