"""Rows of a running program: which ranks count as alike, and what is said of them."""

from __future__ import annotations

import json

import pytest

from phalanx.journal.events import GroupRecord, Posted, WaitBegan
from phalanx.journal.ring import Ring
from phalanx.model import Group, Op, RankView, Site, Snapshot, Wait
from phalanx.report.live.live_rows import (
    LiveRow,
    RunState,
    figures_of,
    rows_as_data,
    rows_from_data,
    rows_of,
)

WORLD = Group("world", (0, 1, 2, 3))
LINE = Site("train.py", 41, "step", "dist.all_reduce(t)")
OTHER = Site("train.py", 37, "step", "x = f(x)")


def reduce_by(rank: int, number: int = 7) -> Op:
    return Op(rank, "all_reduce", WORLD, number=number, reduce_op="SUM", site=LINE)


def waiting(rank: int, *needs: int) -> RankView:
    op = reduce_by(rank)
    return RankView(rank, "waiting", Wait(op, needs), op)


def test_ranks_in_one_call_are_one_row() -> None:
    views = (waiting(0, 3), waiting(1, 3), waiting(2, 3))
    late = RankView(3, "computing", last=reduce_by(3, 6), site=OTHER)
    rows = rows_of(RunState(Snapshot((*views, late)), [8, 8, 8, 7], [4.0, 4.2, 4.1, 5.0]))
    assert rows == [
        LiveRow(
            (0, 1, 2), "waiting", 8, 8, "all_reduce(op=SUM) #7", "train.py:41", "rank 3", 4.2
        ),
        LiveRow((3,), "running", 7, 7, "after all_reduce(op=SUM) #6", "train.py:37", "", 5.0),
    ]
    assert [(row.who, row.steps) for row in rows] == [("0-2", "8"), ("3", "7")]


def test_ranks_that_run_are_alike_at_any_line_after_the_same_call() -> None:
    views = [
        RankView(rank, status, last=reduce_by(rank), site=Site("train.py", 50 + rank, "f"))
        for rank, status in enumerate(("computing", "ready", "ready"))
    ]
    (row,) = rows_of(RunState(Snapshot(tuple(views)), [1, 3, 2], [0.0] * 3))  # type: ignore[arg-type]
    assert (row.ranks, row.state, row.steps, row.line) == (
        (0, 1, 2),
        "running",
        "1-3",
        "train.py:50",
    )


def test_a_ring_of_messages_folds_where_room_is_short() -> None:
    def receive(rank: int) -> RankView:
        op = Op(rank, "recv", WORLD, peer=(rank + 1) % 4, tag=0, site=LINE)
        return RankView(rank, "waiting", Wait(op, ((rank + 1) % 4,)), op)

    state = RunState(Snapshot(tuple(map(receive, range(4)))), [1] * 4, [2.0] * 4)
    assert len(rows_of(state)) == len(rows_of(state, most=4)) == 4
    (row,) = rows_of(state, most=3)
    assert (row.ranks, row.waits_for) == ((0, 1, 2, 3), "ranks 0-3")


def test_stacks_tell_ranks_apart_and_say_where_ranks_are() -> None:
    views = tuple(waiting(rank, 3) for rank in range(3))
    stacks = {0: (OTHER, LINE), 1: (OTHER, LINE), 2: (LINE,)}
    state = RunState(Snapshot(views), [8] * 3, [1.0] * 3, stacks)
    assert [row.ranks for row in rows_of(state)] == [(0, 1, 2)]
    first, second = rows_of(state, with_stacks=True)
    assert (first.ranks, second.ranks) == ((0, 1), (2,))
    assert first.stack[-1] == "train.py:41 in step  dist.all_reduce(t)"
    remote = RunState(Snapshot((RankView(0, "computing"),)), [8], [1.0], {0: (OTHER,)})
    assert rows_of(remote)[0].line == "train.py:37"


@pytest.mark.parametrize(
    ("wait", "expected"),
    [
        (Wait(Op(0, "get", WORLD, key="k"), (1, 2), any_of=True), 'a rank that sets "k"'),
        (Wait(Op(0, "join", WORLD), (), joins="Thread-1"), "its thread Thread-1"),
        (Wait(Op(0, "recv", WORLD), (1, 2), any_of=True), "any of ranks 1, 2"),
        (Wait(Op(0, "all_reduce", WORLD, number=1), ()), ""),
    ],
)
def test_what_is_waited_for(wait: Wait, expected: str) -> None:
    state = RunState(Snapshot((RankView(0, "waiting", wait),)))
    assert rows_of(state)[0].waits_for == expected


def test_ranks_that_have_ended_and_threads() -> None:
    views = (
        RankView(0, "finished", last=reduce_by(0)),
        RankView(1, "failed", error="ValueError: \x1b[31mred"),
        RankView(2, "lingering", thread="saver"),
    )
    op = Op(0, "barrier", Group("dp", (0, 1)), number=2)
    thread = RankView(0, "waiting", Wait(op, (1,)), thread="worker")
    rows = rows_of(RunState(Snapshot(views, threads=(thread,))))
    assert [(row.who, row.state, row.call) for row in rows] == [
        ("0", "finished", "after all_reduce(op=SUM) #7"),
        ("0 worker", "waiting", "barrier() on dp #2"),
        ("1", "failed", "ValueError: \\x1b[31mred"),
        ("2", "lingering", "thread saver"),
    ]


def test_figures_come_from_the_newest_events() -> None:
    group = GroupRecord(0, "world", (0,))
    used, empty = Ring(4, first=3), Ring(4)
    used.calls.append(Posted(10.0, 0, 0, None, group, "barrier", serial=3, member=0))
    used.posted += 1
    used.flow.append(WaitBegan(12.0, 0, 0, None, group, (0, 3)))
    assert figures_of([used, empty], 15.0) == ([1, 0], [3.0, 0.0])


def test_rows_travel_as_json_and_bad_ones_are_refused() -> None:
    row = LiveRow((0, 1), "waiting", 1, 2, "c", "l", "w", 1.5, "", ("a", "b"))
    assert rows_from_data(json.loads(json.dumps(rows_as_data([row])))) == [row]
    for bad in (None, 3, [3], [{}], [{"ranks": "x"}], {"a": 1}):
        with pytest.raises(ValueError):
            rows_from_data(bad)
