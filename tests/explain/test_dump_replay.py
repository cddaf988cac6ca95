"""Dumps of all ranks held against each other: errors, endings, receives from any source."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from phalanx.explain.dump_replay import is_consequence, replay
from phalanx.explain.rank_dump import DumpedCall, DumpedGroup, RankDump, ThreadStack
from phalanx.model import Deadlock, Mismatch, RankFailure, Site, Stall, Unmet, Verdict

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
