"""Dumps of all ranks held against each other: errors, endings, receives from any source."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from phalanx.explain.dump_replay import is_consequence, replay
from phalanx.explain.rank_dump import DumpedCall, DumpedGroup, RankDump, ThreadStack
from phalanx.model import (
    Deadlock,
    Mismatch,
    RankFailure,
    Site,
    Stall,
    TensorSpec,
    Unmet,
    Verdict,
)
from phalanx.report.failure import render_failure
from phalanx.report.stall import render_stall

WORLD = DumpedGroup("w", "0", (0, 1))
CLOSED = "RuntimeError: [gloo/pair.cc:553] Connection closed by peer [127.0.0.1]:1"


def call(name: str, number: int | None = None, **more: Any) -> DumpedCall:
    tag = 0 if name in ("send", "recv") else None
    site = Site("train.py", more.pop("line", 1), "step")
    return DumpedCall(name, "w", number, tag=tag, site=site, **{"done": True, **more})


def rank(number: int, *calls: DumpedCall, world: int = 2, **more: Any) -> RankDump:
    """Its main thread waits in the last call, if that is not done and the rank still runs."""
    group = replace(WORLD, ranks=tuple(range(world)))
    dump = RankDump(number, f"rank_{number}", "black box", {"w": group}, list(calls), **more)
    if dump.status != "finished":
        waits = len(calls) - 1 if calls and calls[-1].done is False else None
        dump.threads = [ThreadStack("main", (), is_main=True, waits_in=waits)]
    return dump


def judge(*dumps: RankDump, world: int = 2) -> Verdict | None:
    return replay({dump.rank: dump for dump in dumps}, world).verdict


def test_an_error_that_follows_from_another_is_not_the_cause() -> None:
    waits = rank(0, call("barrier", 0, done=False), status="failed", error=CLOSED)
    fails = rank(1, status="failed", error="KeyError: 'lost'", error_at=Site("a.py", 3, "f"))
    verdict = judge(waits, fails)
    assert isinstance(verdict, RankFailure)
    assert verdict.ranks == (1,)
    assert verdict.late == ((0, CLOSED),)


def test_one_outside_of_a_call_does_not_count_beside_a_real_one() -> None:
    verdict = judge(
        rank(0, status="failed", error=CLOSED), rank(1, status="failed", error="E: x")
    )
    assert verdict is not None
    assert verdict.ranks == (1,)
    alone = judge(rank(0, status="failed", error=CLOSED), rank(1, status="finished"))
    assert alone is not None
    assert alone.ranks == (0,)


def test_a_timeout_in_a_call_counts_as_waiting_there() -> None:
    waits = rank(0, call("barrier", 0, done=False), status="failed", error="E: Timed out")
    verdict = judge(waits, rank(1, status="finished"))
    assert isinstance(verdict, Deadlock)
    assert verdict.cause == "finished-peer"
    assert verdict.ranks == (1,)


def test_what_is_a_consequence() -> None:
    assert is_consequence(CLOSED)
    assert is_consequence("RuntimeError: Rank 1 failed to pass monitoredBarrier in 3000 ms")
    assert not is_consequence("ValueError: shapes do not fit")
    assert not is_consequence(None)


def test_a_receive_from_any_source_that_took_the_message() -> None:
    stolen = rank(
        0,
        call("recv", source=1, line=5),
        call("recv", peer=1, line=6, done=False),
        world=3,
    )
    verdict = judge(
        stolen,
        rank(1, call("send", peer=0), status="finished", world=3),
        rank(2, call("send", peer=0, done=False), world=3),
        world=3,
    )
    assert isinstance(verdict, Deadlock)
    assert verdict.ranks == (0,)
    assert verdict.hint is not None
    assert "took the message from rank 1" in verdict.hint


def test_messages_that_nobody_received() -> None:
    done = replay(
        {
            0: rank(0, call("send", peer=1), status="finished"),
            1: rank(1, status="finished"),
        },
        2,
    )
    (unmet,) = done.unmet
    assert isinstance(unmet, Unmet)
    assert unmet.kind == "unmatched-message"


def test_no_verdict_rests_on_a_rank_without_a_dump() -> None:
    verdict = judge(rank(0, call("barrier", 0, done=False)))
    assert isinstance(verdict, Stall)
    assert verdict.ranks == (1,)


def test_the_branch_says_who_is_odd() -> None:
    one = rank(0, call("barrier", 0, done=False, line=4))
    other = rank(1, call("all_reduce", 0, done=False, line=9))
    one.threads = [replace(one.threads[0], branch="train.py:3")]
    other.threads = [replace(other.threads[0], branch=None)]
    verdict = judge(one, other)
    assert isinstance(verdict, Mismatch)
    assert verdict.ranks == (0,)
    assert verdict.hint is not None
    assert "train.py:3" in verdict.hint
    other.threads = [replace(other.threads[0], branch=False)]
    undecided = judge(one, other)
    assert undecided is not None
    assert undecided.ranks == ()


def test_groups_made_in_different_orders() -> None:
    def make(*members: int, done: bool) -> DumpedCall:
        return call("new_group", made=(members, "gloo"), done=done)

    first = rank(0, make(0, 1, done=False))
    second = rank(1, make(1, done=True), make(0, 1, done=False))
    verdict = judge(first, second)
    assert verdict is not None
    assert verdict.kind == "mismatch"


# -- ranks that left no dump --------------------------------------------------------------


def stands(number: int, *calls: DumpedCall, world: int = 3, **more: Any) -> RankDump:
    return rank(number, *calls, world=world, **more)


def of(name: str, **more: Any) -> DumpedCall:
    """Call #1 of a rank, which does not end."""
    return call(name, 1, done=False, **more)


FIRST = call("all_reduce", 0, reduce_op="SUM")
FOUR = (TensorSpec("float32", (4,)),)
FIVE = (TensorSpec("float32", (5,)),)
WIDE = (TensorSpec("float64", (4,)),)


@pytest.mark.parametrize(
    ("one", "other", "differs"),
    [
        (of("all_reduce"), of("barrier"), "operation"),
        (of("all_reduce", inputs=FOUR), of("all_reduce", inputs=FIVE), "shape"),
        (of("all_reduce", inputs=FOUR), of("all_reduce", inputs=WIDE), "dtype"),
        (of("broadcast", root=0), of("broadcast", root=1), "root"),
        (of("all_reduce", reduce_op="SUM"), of("all_reduce", reduce_op="MAX"), "reduce op"),
    ],
)
def test_calls_disagree_whoever_is_missing(
    one: DumpedCall, other: DumpedCall, differs: str
) -> None:
    """Two of three have no majority: the third may have called either."""
    verdict = judge(stands(1, FIRST, one), stands(2, FIRST, other), world=3)
    assert isinstance(verdict, Mismatch)
    assert verdict.differs == (differs,)
    assert verdict.ranks == ()
    assert verdict.missing == ()  # nobody knows whether rank 0 arrived
    assert {block.ranks for block in verdict.blocks} == {(1,), (2,)}


def test_a_rank_that_has_not_come_has_not_arrived() -> None:
    """It left a dump, so that is known."""
    verdict = judge(
        stands(0, FIRST),
        stands(1, FIRST, of("all_reduce")),
        stands(2, FIRST, of("barrier")),
        world=3,
    )
    assert isinstance(verdict, Mismatch)
    assert verdict.missing == (0,)


def test_a_majority_counts_if_the_missing_ranks_cannot_change_it() -> None:
    def judged(*usual: int, world: int) -> Verdict | None:
        others = [stands(each, of("barrier"), world=world) for each in usual]
        return judge(stands(1, of("all_reduce"), world=world), *others, world=world)

    sure, unsure = judged(2, 3, 4, world=5), judged(2, 3, world=4)
    assert isinstance(sure, Mismatch)
    assert sure.ranks == (1,)
    assert isinstance(unsure, Mismatch)
    assert unsure.ranks == ()
    assert not any(block.odd for block in unsure.blocks)


def test_a_cycle_that_needs_no_missing_rank() -> None:
    verdict = judge(
        stands(0, call("recv", peer=1, done=False)),
        stands(1, call("recv", peer=0, done=False)),
        world=3,
    )
    assert isinstance(verdict, Deadlock)
    assert verdict.cycle == (0, 1)


def test_calls_that_agree_are_not_blamed_though_a_rank_is_missing() -> None:
    """They wait for the missing one; a rank may be calls ahead of another."""
    same = judge(stands(1, FIRST, of("barrier")), stands(2, FIRST, of("barrier")), world=3)
    assert isinstance(same, Stall)
    assert same.ranks == (0,)
    ahead = judge(
        stands(1, FIRST, call("barrier", 1), call("broadcast", 2, root=0, done=False)),
        stands(2, FIRST, of("barrier")),
        world=3,
    )
    assert isinstance(ahead, Stall)


def test_rings_that_begin_late_are_compared_by_number() -> None:
    """The same calls, of which one ring has lost the first: no place in it counts."""
    calls = [call(name, at) for at, name in enumerate(("barrier", "all_reduce", "all_gather"))]
    verdict = judge(
        stands(1, *calls), stands(2, *calls[1:], begins_late=True, status="running"), world=3
    )
    assert verdict is None


def test_groups_made_before_a_ring_begins_are_not_counted() -> None:
    def make(*members: int) -> DumpedCall:
        return call("new_group", made=(members, "gloo"))

    one = rank(0, make(0), make(0, 1), call("barrier", 0))
    other = rank(1, make(0, 1), call("barrier", 0), begins_late=True)
    assert judge(one, other) is None


@pytest.mark.parametrize("late", [False, True])
def test_a_default_group_that_is_made_again(late: bool) -> None:
    """Its numbers begin again; a call of the first one does not meet one of the second."""
    first, second = call("barrier", 0), call("broadcast", 0, root=0)
    more = [call("all_reduce", 1), second, call("all_reduce", 1, done=False)]
    dumps = [
        stands(1, first, call("all_reduce", 1), begins_late=late),
        stands(2, first, *more),
    ]
    verdict = judge(*dumps, world=3)
    assert verdict is None or isinstance(verdict, Stall)
    everyone = [stands(each, first, *more) for each in range(3)]
    assert judge(*everyone, world=3) is None


# -- groups whose members nobody tells ----------------------------------------------------


def on(name: str, number: int, group: str, **more: Any) -> DumpedCall:
    return replace(call(name, number, **more), group=group)


def gloo(number: int, *calls: DumpedCall) -> RankDump:
    """As torch's recorder leaves it on Gloo: no member, no stack, no message."""
    groups = {each.group: DumpedGroup(each.group, each.group, None) for each in calls}
    return RankDump(
        number, f"gloo_{number}", "Flight Recorder", groups, list(calls), records_messages=False
    )


def test_members_that_are_not_known_are_not_told() -> None:
    done = replay(
        {
            0: gloo(0, on("all_reduce", 0, "1", done=False)),
            1: gloo(1, on("all_reduce", 0, "2", done=False)),
            2: gloo(2, on("barrier", 0, "0", done=False)),
        },
        3,
    )
    assert isinstance(done.verdict, Stall)
    text = render_stall(done.verdict)
    assert '"group 1" (members unknown), call #0' in text
    assert "who these are is unknown" in text
    assert '"world" (ranks 0-2)' in text
    assert "needs ranks 0, 2" not in text


def test_who_used_a_group_is_a_member() -> None:
    """That much may be said: rank 1 has not come to the second call."""
    first = on("all_reduce", 0, "1")
    done = replay(
        {
            0: gloo(0, first, on("all_reduce", 1, "1", done=False)),
            1: gloo(1, first),
            2: gloo(2, on("barrier", 0, "0", done=False)),
        },
        3,
    )
    assert isinstance(done.verdict, Stall)
    assert "needs rank 1, which computes" in render_stall(done.verdict)


def test_calls_on_a_group_of_unknown_members_disagree() -> None:
    done = replay(
        {
            0: gloo(0, on("all_reduce", 0, "1", done=False)),
            1: gloo(1, on("barrier", 0, "1", done=False)),
        },
        4,
    )
    assert isinstance(done.verdict, Mismatch)
    assert done.verdict.ranks == ()
    assert done.verdict.group.ranks == ()
    assert done.verdict.missing == ()


# -- ranks that were stopped --------------------------------------------------------------


def test_a_rank_that_was_stopped_stood_in_its_call() -> None:
    """Also where nobody can move, because of the one that failed."""
    waits = [
        stands(each, FIRST, of("all_reduce", line=7), status="failed", error=CLOSED)
        for each in (0, 2)
    ]
    fails = stands(1, FIRST, status="failed", error="ValueError: bad batch")
    verdict = judge(waits[0], fails, waits[1], world=3)
    assert isinstance(verdict, RankFailure)
    assert "ranks 0, 2 in all_reduce() (call #1) at train.py:7" in render_failure(verdict)
