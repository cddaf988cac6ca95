"""Who can move, who cannot, and why: by example, and against a slow reference."""

from __future__ import annotations

import doctest
from collections.abc import Callable, Iterator
from dataclasses import replace

from hypothesis import given, settings
from hypothesis import strategies as st

from phalanx.matching import cycles, waitgraph
from phalanx.matching.cycles import find_cycle
from phalanx.matching.waitgraph import _judge, find_deadlock
from phalanx.model import Deadlock, Group, Op, RankView, Site, Snapshot, Wait

WORLD = Group("world", tuple(range(8)))
HERE = Site("train.py", 7, "main", "dist.barrier()")
light = settings(max_examples=50, deadline=None)


def find_movable(snapshot: Snapshot) -> set[int]:
    """The ranks that can still act, at once or after others have acted."""
    nodes, stuck = _judge(snapshot)
    return {node.rank for at, node in enumerate(nodes) if at not in stuck}


def collective(rank: int, *needs: int, number: int = 5, group: Group = WORLD) -> RankView:
    op = Op(rank, "barrier", group, number, site=HERE)
    return RankView(rank, "waiting", Wait(op, needs), last=op)


def receive(rank: int, *needs: int, tag: int = 0, near: tuple[str, ...] = ()) -> RankView:
    any_of = len(needs) != 1
    op = Op(rank, "recv", WORLD, peer=None if any_of else needs[0], tag=tag, site=HERE)
    return RankView(rank, "waiting", Wait(op, needs, any_of, near))


def send(rank: int, peer: int) -> RankView:
    op = Op(rank, "send", WORLD, peer=peer, tag=0, site=HERE)
    return RankView(rank, "waiting", Wait(op, (peer,)))


def store_get(rank: int, *needs: int) -> RankView:
    op = Op(rank, "get", WORLD, key="go", site=HERE)
    return RankView(rank, "waiting", Wait(op, needs, any_of=True))


def finished(rank: int, calls: int | None = None) -> RankView:
    last = None if calls is None else Op(rank, "barrier", WORLD, calls - 1, site=HERE)
    return RankView(rank, "finished", last=last)


def failed(rank: int) -> RankView:
    return RankView(rank, "failed", error="ValueError: bad batch", site=HERE)


def judge(*views: RankView, in_flight: int = 0) -> Deadlock:
    verdict = find_deadlock(Snapshot(views, in_flight=in_flight))
    assert verdict is not None
    return verdict


def ranks_of(verdict: Deadlock) -> list[tuple[int, ...]]:
    return [block.ranks for block in verdict.blocks]


def test_computing_and_outside_ranks_release_those_who_wait() -> None:
    views = (RankView(0, "computing"), collective(1, 0), receive(2, 1), collective(3, 2, 4))
    assert find_movable(Snapshot((*views, RankView(4, "outside")))) == {0, 1, 2, 3, 4}
    assert find_movable(Snapshot((*views, finished(4)))) == {0, 1, 2}


def test_any_of_needs_one_and_all_of_needs_all() -> None:
    views = (RankView(0, "computing"), receive(1, 0, 3), collective(2, 0, 3), finished(3))
    assert find_movable(Snapshot(views)) == {0, 1}


def test_wait_for_anyone_among_nobody_never_ends() -> None:
    assert find_movable(Snapshot((RankView(0, "computing"), store_get(1)))) == {0}


def test_wait_that_needs_nobody_or_is_unknown_may_end() -> None:
    assert find_movable(Snapshot((collective(0), collective(1, 0)))) == {0, 1}
    assert find_movable(Snapshot((RankView(0, "waiting"),))) == {0}


def test_no_verdict_while_someone_can_move() -> None:
    assert find_deadlock(Snapshot((RankView(0, "computing"), collective(1, 0)))) is None
    # Partial deadlocks are for `partial_look.py`.
    stuck = (receive(1, 2), receive(2, 1))
    assert find_deadlock(Snapshot((RankView(0, "outside"), *stuck))) is None


def test_no_verdict_where_nobody_waits_or_a_timer_runs() -> None:
    assert find_deadlock(Snapshot((finished(0), failed(1)))) is None
    assert find_deadlock(Snapshot((receive(0, 1), receive(1, 0)), timers=1)) is None


def test_cycle_comes_first_and_bystanders_last() -> None:
    verdict = judge(collective(0, 2, 3), collective(1, 2, 3), receive(2, 3), receive(3, 2))
    assert (verdict.cause, verdict.cycle, verdict.ranks) == ("cycle", (2, 3), (2, 3))
    assert ranks_of(verdict) == [(2,), (3,), (0, 1)]
    assert (verdict.blocked, verdict.total) == (4, 4)
    assert verdict.hint is not None and "receiving and none has sent" in verdict.hint


def test_senders_that_wait_for_each_other() -> None:
    verdict = judge(send(0, 1), send(1, 2), send(2, 0))
    assert verdict.cycle == (0, 1, 2)
    assert verdict.hint is not None and "sending and none is receiving" in verdict.hint


def test_receive_hint_needs_that_nothing_was_sent() -> None:
    assert judge(receive(0, 1), receive(1, 0), in_flight=1).hint is None


def test_ranks_in_the_same_place_are_one_block_of_the_cycle() -> None:
    left, right = Group("left", (0, 1, 2, 3)), Group("right", (0, 1, 2, 3))
    views = [collective(rank, 2, 3, group=left) for rank in (0, 1)]
    views += [collective(rank, 0, 1, group=right) for rank in (2, 3)]
    verdict = judge(*views)
    assert verdict.cycle == (0, 2)
    assert ranks_of(verdict) == [(0, 1), (2, 3)]
    assert verdict.hint is not None and 'rank 0 is in group "left"' in verdict.hint


def test_finished_peer() -> None:
    verdict = judge(*(collective(rank, 3, number=9) for rank in range(3)), finished(3, calls=9))
    assert (verdict.cause, verdict.ranks, verdict.cycle) == ("finished-peer", (3,), ())
    assert ranks_of(verdict) == [(0, 1, 2), (3,)]
    assert verdict.hint == 'rank 3 made 9 calls on group "world"; ranks 0-2 are in call #9'


def test_finished_peer_without_a_call() -> None:
    hint = judge(collective(0, 1, number=0), finished(1)).hint
    assert hint == 'rank 1 made no call on group "world"; rank 0 is in call #0'


def test_no_count_of_calls_where_the_last_was_on_another_group() -> None:
    other = Op(1, "barrier", Group("pair", (1, 2)), 4)
    gone = RankView(1, "finished", last=other)
    assert judge(collective(0, 1), gone, finished(2)).hint is None


def test_finished_peer_explains_a_cycle_that_hangs_on_it() -> None:
    verdict = judge(collective(0, 1, 2), receive(1, 0), finished(2))
    assert (verdict.cause, verdict.ranks) == ("finished-peer", (2,))


def test_cycle_that_would_hang_anyway_goes_before_a_finished_peer() -> None:
    verdict = judge(receive(0, 1), receive(1, 0), collective(2, 0, 1, 3), finished(3))
    assert (verdict.cause, verdict.cycle) == ("cycle", (0, 1))


def test_receive_from_anyone_waits_for_finished_ranks_only_if_all_are() -> None:
    assert judge(receive(0, 1, 2), finished(1), finished(2)).ranks == (1, 2)
    verdict = judge(receive(0, 1, 2), finished(1), receive(2, 0))
    assert (verdict.cause, verdict.cycle) == ("cycle", (0, 2))


def test_failed_peer_goes_before_all_else() -> None:
    verdict = judge(receive(0, 1), receive(1, 0), collective(2, 3, 4), failed(3), finished(4))
    assert (verdict.cause, verdict.ranks) == ("failed-peer", (3,))
    assert ranks_of(verdict) == [(2,), (0,), (1,), (4,), (3,)]


def test_failed_rank_that_nobody_waits_for_is_no_cause() -> None:
    assert judge(receive(0, 1), receive(1, 0), failed(2)).cause == "cycle"


def test_store_key_that_nobody_can_set() -> None:
    verdict = judge(store_get(0, 1, 2), collective(1, 0, 2), finished(2))
    assert verdict.cause == "finished-peer"
    verdict = judge(store_get(0, 1, 2), collective(1, 0), collective(2, 0))
    assert (verdict.cause, verdict.ranks, verdict.cycle) == ("nobody-can", (), ())
    assert judge(store_get(0, 1), finished(1)).cause == "nobody-can"
    assert judge(store_get(0)).cause == "nobody-can"


def test_near_miss_is_the_hint() -> None:
    bare = receive(0, 1, tag=2, near=("rank 1 sent tag 1",))
    whole = receive(0, 1, tag=2, near=("rank 1 sent tag 1; rank 0 waits for tag 2",))
    for view in (bare, whole):
        hint = judge(view, receive(1, 0), in_flight=1).hint
        assert hint == "rank 1 sent tag 1; rank 0 waits for tag 2"


def test_different_tags_are_different_situations() -> None:
    verdict = judge(receive(0, 2, tag=0), receive(1, 2, tag=1), finished(2))
    assert ranks_of(verdict) == [(0,), (1,), (2,)]


def test_rank_that_waits_for_itself() -> None:
    assert judge(receive(0, 0)).cycle == (0,)


def test_shortest_cycle_wins_then_the_lowest_rank() -> None:
    ring = {0: (1,), 1: (2,), 2: (3, 0), 3: (4,), 4: (3,)}
    assert find_cycle(ring) == (3, 4)
    assert find_cycle({0: (1,), 1: (2,), 2: (0,), 3: (4,), 4: (5,), 5: (3,)}) == (0, 1, 2)
    assert find_cycle({0: (1,), 1: (2,), 2: (9,)}) == ()
    long_and_short = {0: (1,), 1: (2,), 2: (3,), 3: (0, 1)}
    assert find_cycle(long_and_short) == (1, 2, 3)


graphs = st.integers(1, 7).flatmap(
    lambda size: st.lists(
        st.lists(st.integers(0, size - 1), max_size=3, unique=True).map(tuple),
        min_size=size,
        max_size=size,
    )
)


@light
@given(graphs)
def test_cycles_are_cycles_and_shortest(needs: list[tuple[int, ...]]) -> None:
    edges = dict(enumerate(needs))
    cycle = find_cycle(edges)
    lengths = [len(path) for path in simple_cycles(edges)]
    assert len(cycle) == min(lengths, default=0)
    assert len(set(cycle)) == len(cycle)
    if cycle:
        assert cycle[0] == min(cycle)
    for rank, following in zip(cycle, cycle[1:] + cycle[:1], strict=True):
        assert following in edges[rank]


def simple_cycles(edges: dict[int, tuple[int, ...]]) -> Iterator[tuple[int, ...]]:
    def extend(path: tuple[int, ...]) -> Iterator[tuple[int, ...]]:
        for following in edges[path[-1]]:
            if following == path[0]:
                yield path
            elif following not in path and following > path[0]:
                yield from extend((*path, following))

    for start in edges:
        yield from extend((start,))


def make_view(rank: int, choice: str, needs: tuple[int, ...], any_of: bool) -> RankView:
    if choice != "waiting":
        return RankView(rank, choice)  # type: ignore[arg-type]
    return RankView(rank, "waiting", Wait(Op(rank, "recv", WORLD), needs, any_of))


@st.composite
def snapshots(draw: Callable[..., object]) -> Snapshot:
    needs = draw(graphs)
    assert isinstance(needs, list)
    kinds = ["waiting"] * 5 + ["computing", "outside", "finished", "failed"]
    return Snapshot(
        tuple(
            make_view(
                rank, str(draw(st.sampled_from(kinds))), needed, bool(draw(st.booleans()))
            )
            for rank, needed in enumerate(needs)
        )
    )


@light
@given(snapshots())
def test_movable_is_the_least_fix_point(snapshot: Snapshot) -> None:
    movable: set[int] = set()
    for _ in snapshot.ranks:
        movable |= {view.rank for view in snapshot.ranks if can_move(view, movable)}
    assert find_movable(snapshot) == movable


def can_move(view: RankView, movable: set[int]) -> bool:
    if view.wait is None:
        return view.status in ("computing", "outside")
    test = any if view.wait.any_of else all
    return test(rank in movable for rank in view.wait.needs)


@light
@given(snapshots(), st.data())
def test_renaming_ranks_does_not_change_the_cause(
    snapshot: Snapshot, data: st.DataObject
) -> None:
    names = data.draw(st.permutations(range(len(snapshot.ranks))))
    renamed = Snapshot(
        tuple(
            make_view(
                names[view.rank],
                view.status,
                tuple(names[rank] for rank in view.wait.needs) if view.wait else (),
                bool(view.wait and view.wait.any_of),
            )
            for view in snapshot.ranks
        )
    )
    one, other = find_deadlock(snapshot), find_deadlock(renamed)
    assert (one is None) == (other is None)
    if one is not None and other is not None:
        assert one.cause == other.cause
        assert len(one.cycle) == len(other.cycle)
        assert (one.blocked, one.total) == (other.blocked, other.total)


@light
@given(snapshots())
def test_every_rank_is_in_one_block(snapshot: Snapshot) -> None:
    verdict = find_deadlock(snapshot)
    if verdict is not None:
        listed = sorted(rank for block in verdict.blocks for rank in block.ranks)
        assert listed == [view.rank for view in snapshot.ranks]


def thousand(kind: str) -> Snapshot:
    world = Group("world", tuple(range(1024)))
    everyone = world.ranks
    if kind == "ring":
        views = [receive(rank, (rank + 1) % 1024) for rank in everyone]
    elif kind == "groups":
        low, high = everyone[:512], everyone[512:]
        views = [collective(rank, *high, group=world) for rank in low]
        views += [collective(rank, *low, group=Group("b", everyone)) for rank in high]
    elif kind == "three groups":
        parts = everyone[:400], everyone[400:700], everyone[700:]
        views = []
        for at, part in enumerate(parts):
            group = Group(f"g{at}", everyone)
            views += [collective(rank, *parts[(at + 1) % 3], group=group) for rank in part]
    else:
        views = [receive(rank, *everyone[:rank], *everyone[rank + 1 :]) for rank in everyone]
    return Snapshot(tuple(views))


def test_a_thousand_ranks() -> None:
    chain = [RankView(0, "computing"), *(receive(rank, rank - 1) for rank in range(1, 1024))]
    assert len(find_movable(Snapshot(tuple(chain)))) == 1024
    for kind in ("ring", "groups", "three groups", "anyone"):
        verdict = find_deadlock(thousand(kind))
        assert verdict is not None and verdict.blocked == 1024, kind


def test_examples_in_the_docstrings() -> None:
    assert doctest.testmod(waitgraph).failed == 0
    assert doctest.testmod(cycles).failed == 0


def robbed(view: RankView) -> RankView:
    assert view.wait is not None
    return replace(view, wait=replace(view.wait, robbed=True))


def test_who_took_the_message_itself_is_at_fault() -> None:
    verdict = judge(robbed(receive(0, 1)), finished(1), send(2, 0))
    assert (verdict.cause, verdict.ranks, verdict.missed) == ("finished-peer", (0,), (1,))
    assert ranks_of(verdict) == [(0,), (2,), (1,)]
    assert judge(robbed(receive(0, 1)), send(1, 0)).ranks == (0,)
    assert judge(receive(0, 1), finished(1), send(2, 0)).ranks == (1,)
