"""The referee of a run with faults: whom it holds, and whom it lets go to the backend."""

from __future__ import annotations

from typing import Any

import pytest

from phalanx.engines.referee.announced_ranks import Reply
from phalanx.engines.referee.faulty_referee import FaultyReferee
from phalanx.matching.announcement import Form, GroupForm, signature_of
from phalanx.model import Deadlock, Mismatch, Site, TensorSpec

AT = Site("a.py", 3, "f")
REDUCE = Form("all_reduce", 0, reduce_op="SUM", inputs=(TensorSpec("float32", (4,)),), site=AT)
BARRIER = Form("barrier", 0, site=AT)
OF_PAIR = Form("barrier", 1, site=AT)


class Run:
    """Three ranks with two groups: all, and ranks 0 and 1."""

    def __init__(self) -> None:
        self.referee = FaultyReferee(3)
        self.calls = 0
        for rank in range(3):
            self.referee.define_group(rank, 0, GroupForm("all", "0", (0, 1, 2), rank))
        for rank in range(2):
            self.referee.define_group(rank, 1, GroupForm("pair", "1", (0, 1), rank))

    def announce(self, rank: int, form: Form, **more: Any) -> dict[int, str]:
        self.calls += 1
        self.referee.define_form(rank, self.calls, form)
        more = {"blocking": True, **more}
        return told(self.referee.announce(rank, self.calls, self.calls, **more))

    def let_go(self) -> dict[int, str]:
        return told(self.referee.let_go())


def told(replies: list[Reply]) -> dict[int, str]:
    return {reply.rank: reply.answer for reply in replies}


@pytest.fixture
def run() -> Run:
    return Run()


def test_without_a_fault_all_are_held(run):
    assert signature_of(REDUCE) is not None
    assert run.announce(0, REDUCE) == {}
    assert run.let_go() == {}
    assert run.announce(1, REDUCE) == {}
    assert run.announce(2, REDUCE) == {0: "met", 1: "met", 2: "met"}


def test_who_waits_for_a_killed_rank_goes_to_the_backend(run):
    assert run.announce(0, REDUCE) == {}
    run.referee.loose.leave(2)
    assert run.let_go() == {0: "go"}
    assert told(run.referee.killed(2, AT)) == {}
    assert run.announce(1, REDUCE) == {1: "go"}
    left = run.referee.snapshot().ranks[2].left
    assert left is not None and (left.how, left.site) == ("killed", AT)


def test_groups_without_the_killed_rank_are_held_and_judged(run):
    run.referee.loose.leave(2)
    run.referee.killed(2, AT)
    assert run.announce(0, OF_PAIR) == {}
    assert run.announce(1, OF_PAIR) == {0: "met", 1: "met"}
    run.announce(0, OF_PAIR)
    assert told(run.referee.finished(1)) == {0: "verdict"}
    assert isinstance(run.referee.verdict, Deadlock)


def test_who_only_waits_for_a_call_goes_too(run):
    assert run.announce(0, REDUCE, blocking=False) == {0: "go"}
    call = run.calls
    assert told(run.referee.wait(0, call)) == {}
    run.referee.loose.leave(1)
    assert run.let_go() == {0: "go"}
    assert told(run.referee.wait(0, call)) == {0: "go"}


def test_a_rank_that_is_back_is_waited_for_again(run):
    run.referee.loose.leave(1)
    assert run.announce(0, REDUCE) == {0: "go"}
    run.referee.loose.come_back(1)
    assert run.announce(2, REDUCE) == {}
    assert run.announce(1, REDUCE) == {1: "met", 2: "met"}


def test_a_call_that_came_too_late_is_judged_all_the_same(run):
    run.referee.loose.leave(1)
    run.announce(0, REDUCE)
    run.announce(2, REDUCE)
    run.referee.loose.come_back(1)
    assert run.announce(1, BARRIER) == {1: "verdict"}
    assert isinstance(run.referee.verdict, Mismatch)


def test_a_group_that_the_backend_has_broken_is_held_no_more(run):
    run.referee.loose.leave(1)
    run.announce(0, REDUCE)
    assert told(run.referee.broken_off(0, run.calls)) == {}
    run.referee.loose.come_back(1)
    assert run.announce(1, REDUCE) == {1: "go"}
    assert run.announce(0, OF_PAIR) == {}


def test_what_is_left_over_in_a_loose_group_is_no_finding(run):
    run.announce(0, REDUCE, blocking=False)
    run.announce(1, OF_PAIR, blocking=False)
    run.referee.loose.cut([0, 1], [2])
    assert [each.op.name for each in run.referee.leftovers()] == ["barrier"]
    run.referee.loose.join([0, 1], [2])
    assert [each.op.name for each in run.referee.leftovers()] == ["all_reduce"]


def test_an_error_of_the_backend_alone_loosens_nothing(run):
    assert run.announce(0, REDUCE, blocking=False) == {0: "go"}
    assert told(run.referee.broken_off(0, run.calls)) == {}
    assert run.announce(1, REDUCE) == {}


def test_groups_that_a_cut_goes_through_are_loose_until_it_ends(run):
    run.referee.loose.cut([0, 1], [2])
    assert run.announce(0, REDUCE) == {0: "go"}
    assert run.announce(1, OF_PAIR) == {}
    run.referee.loose.join([0, 1], [2])
    assert run.announce(2, REDUCE) == {}


def test_who_makes_a_group_with_a_killed_rank_goes_on(run):
    made = Form("new_group", 0, made=((0, 1, 2), "gloo"), holds=True, site=AT)
    assert run.announce(0, made) == {}
    run.referee.loose.leave(1)
    assert run.let_go() == {0: "go"}
    assert run.announce(2, made) == {2: "go"}


def test_the_next_call_of_the_program_begins_without_faults(run):
    run.referee.loose.leave(1)
    run.referee.begin()
    assert run.announce(0, REDUCE) == {}
