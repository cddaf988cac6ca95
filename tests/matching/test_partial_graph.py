"""Threads, joins and partial sets in the wait graph: by example, and against brute force."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from phalanx.matching.waitgraph import Node, find_deadlock, find_stuck
from phalanx.model import Group, Op, RankView, Site, Snapshot, Wait

WORLD = Group("world", (0, 1, 2, 3))
HERE = Site("train.py", 7, "main", "dist.barrier()")
light = settings(max_examples=200, deadline=None)


def collective(rank: int, *needs: int, thread: str | None = None) -> RankView:
    op = Op(rank, "barrier", WORLD, 5, site=HERE)
    return RankView(rank, "waiting", Wait(op, needs), thread=thread)


def receive(rank: int, peer: int) -> RankView:
    op = Op(rank, "recv", WORLD, peer=peer, tag=0, site=HERE)
    return RankView(rank, "waiting", Wait(op, (peer,)))


def join(rank: int, thread: str) -> RankView:
    op = Op(rank, "threading.Thread.join", WORLD, site=HERE)
    return RankView(rank, "waiting", Wait(op, (), joins=thread))


def notified(rank: int) -> RankView:
    op = Op(rank, "threading.Condition.wait", WORLD, site=HERE)
    return RankView(rank, "waiting", Wait(op, WORLD.ranks, any_of=True))


MOVING = (RankView(2, "moving"), RankView(3, "computing"))


def test_ranks_that_need_only_each_other_are_stuck_while_others_move() -> None:
    snapshot = Snapshot((receive(0, 1), receive(1, 0), *MOVING))
    assert find_deadlock(snapshot) is None
    verdict = find_deadlock(snapshot, partial=True)
    assert verdict is not None and verdict.partial
    assert (verdict.cause, verdict.cycle, verdict.blocked) == ("cycle", (0, 1), 2)
    assert [block.ranks for block in verdict.blocks] == [(0,), (1,), (2, 3)]


def test_ranks_that_need_one_that_moves_are_not_stuck() -> None:
    snapshot = Snapshot((receive(0, 1), receive(1, 2), *MOVING))
    assert find_deadlock(snapshot, partial=True) is None


def test_one_missing_member_that_has_returned_is_enough() -> None:
    views = (collective(0, 1, 2), RankView(1, "finished"), RankView(2, "moving"))
    verdict = find_deadlock(Snapshot(views), partial=True)
    assert verdict is not None
    assert (verdict.cause, verdict.missed, verdict.blocked) == ("finished-peer", (1,), 1)


def test_a_thread_that_moves_acts_for_its_rank() -> None:
    views = (receive(0, 1), receive(1, 0))
    busy = RankView(0, "computing", thread="loader")
    assert find_deadlock(Snapshot(views, threads=(busy,)), partial=True) is None


def test_a_rank_that_joins_its_stuck_thread_is_in_the_cycle_of_that_thread() -> None:
    views = (join(0, "reducer"), receive(1, 0))
    thread = collective(0, 1, thread="reducer")
    verdict = find_deadlock(Snapshot(views, threads=(thread,)))
    assert verdict is not None
    assert (verdict.cause, verdict.cycle) == ("cycle", (0, 1))
    assert [block.view.thread for block in verdict.blocks] == [None, "reducer", None]


def test_a_rank_that_joins_a_thread_that_moves_is_not_stuck() -> None:
    views = (join(0, "reducer"), receive(1, 0))
    thread = RankView(0, "computing", thread="reducer")
    assert find_deadlock(Snapshot(views, threads=(thread,))) is None


def test_a_rank_that_waits_for_its_queue_waits_for_what_its_thread_waits_for() -> None:
    views = (notified(0), receive(1, 0))
    verdict = find_deadlock(Snapshot(views, threads=(collective(0, 1, thread="loader"),)))
    assert verdict is not None and verdict.cycle == (0, 1)


def test_a_queue_that_nobody_fills() -> None:
    verdict = find_deadlock(Snapshot((notified(0), receive(1, 0))))
    assert verdict is not None and verdict.cause == "nobody-can"


def test_the_minority_of_a_collective_is_at_fault() -> None:
    gone = tuple(RankView(rank, "finished") for rank in (1, 2, 3))
    alone = find_deadlock(Snapshot((collective(0, 1, 2, 3), *gone)))
    assert alone is not None and (alone.ranks, alone.missed) == ((0,), (1, 2, 3))
    trio = Group("trio", (1, 2, 3))
    op = Op(1, "all_reduce", trio, 0, site=HERE)
    pair = [RankView(rank, "waiting", Wait(op, (2,))) for rank in (1, 3)]
    views = (collective(0, 1, 3), pair[0], collective(2, 1, 3), pair[1])
    skipped = find_deadlock(Snapshot(views))
    assert skipped is not None and (skipped.cause, skipped.ranks) == ("cycle", (2,))


nodes = st.builds(
    Node,
    rank=st.integers(0, 3),
    thread=st.sampled_from([None, "a", "b"]),
    needs=st.lists(st.integers(0, 4), max_size=3, unique=True).map(tuple),
    any_of=st.booleans(),
    joins=st.sampled_from([None, None, None, "a", "b"]),
    free=st.sampled_from([False, False, False, True]),
)
graphs = st.lists(nodes, max_size=8, unique_by=lambda node: (node.rank, node.thread))


@light
@given(graphs)
def test_stuck_is_what_no_order_of_moves_ever_frees(graph: list[Node]) -> None:
    """Brute force: let whoever can move do so, until nobody new can."""
    moved: set[int] = set()
    while True:
        ranks = {graph[at].rank for at in moved}
        threads = {(graph[at].rank, graph[at].thread) for at in moved}
        more = {at for at, node in enumerate(graph) if _can_move(node, ranks, threads)} - moved
        if not more:
            break
        moved.add(min(more))
    assert find_stuck(graph) == [at for at in range(len(graph)) if at not in moved]


def _can_move(node: Node, ranks: set[int], threads: set[tuple[int, str | None]]) -> bool:
    if node.free:
        return True
    if node.joins is not None:
        return (node.rank, node.joins) in threads
    wanted = [rank in ranks for rank in node.needs]
    if node.any_of:
        return any(wanted)
    # What needs nobody is for the caller to call free: the graph does not guess.
    return bool(wanted) and all(wanted)
