"""The desk alone: events in, answers out. No processes, no torch, no clock."""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from phalanx.engines.referee.remote_referee import Desk, Reply
from phalanx.engines.remote.frames import FORMS_KEPT
from phalanx.matching.announcement import Form, GroupForm, signature_of
from phalanx.model import Deadlock, Mismatch, Site, TensorSpec

FLOATS = TensorSpec("float32", (4,))
REDUCE = Form("all_reduce", 0, reduce_op="SUM", inputs=(FLOATS,), site=Site("a.py", 3, "f"))
BARRIER = Form("barrier", 0, site=Site("a.py", 9, "f"))


def send(peer: int, tag: int = 0, spec: TensorSpec = FLOATS) -> Form:
    return Form("send", 0, peer=peer, tag=tag, inputs=(spec,))


def recv(peer: int | None, tag: int = 0, spec: TensorSpec = FLOATS) -> Form:
    return Form("recv", 0, peer=peer, tag=tag, outputs=(spec,))


class Counted:
    """A desk whose ranks number their forms and calls by themselves."""

    def __init__(self, size: int, *groups: tuple[int, ...]) -> None:
        self.desk = Desk(size)
        self.calls = [0] * size
        self.forms = 0
        for number, ranks in enumerate([tuple(range(size)), *groups]):
            for member, rank in enumerate(ranks):
                form = GroupForm(f"key {number}", str(number), ranks, member)
                self.desk.define_group(rank, number, form)

    def announce(self, rank: int, form: Form, *, blocking: bool = True, **more: Any) -> Any:
        self.calls[rank] += 1
        self.forms += 1
        self.desk.define_form(rank, self.forms, form)
        return told(
            self.desk.announce(rank, self.calls[rank], self.forms, blocking=blocking, **more)
        )


def told(replies: list[Reply]) -> dict[int, str]:
    return {reply.rank: reply.answer for reply in replies}


# -- forms --------------------------------------------------------------------------------


def test_what_other_threads_are_about_to_use_is_not_forgotten() -> None:
    desk = Counted(2)
    for number in range(FORMS_KEPT + 1):
        desk.desk.define_form(0, number, BARRIER)
    desk.desk.forget(0)
    with pytest.raises(LookupError):
        desk.desk.announce(0, 1, 0, blocking=True)
    assert told(desk.desk.announce(0, 1, 1, blocking=True)) == {}
    assert desk.announce(1, BARRIER) == {0: "met", 1: "met"}


# -- what is left -------------------------------------------------------------------------


def test_a_call_in_which_a_thread_waits_is_not_left_over() -> None:
    desk = Counted(2)
    assert desk.announce(0, REDUCE, threads=2) == {}
    for rank in range(2):
        desk.desk.finished(rank)
    assert desk.desk.leftovers() == []
    desk.desk.begin()
    assert desk.announce(1, REDUCE) == {0: "met", 1: "met"}
    assert desk.announce(0, REDUCE, blocking=False) == {0: "go"}
    for rank in range(2):
        desk.desk.finished(rank)
    assert len(desk.desk.leftovers()) == 1


# -- collectives --------------------------------------------------------------------------


def test_the_last_to_come_lets_everyone_go() -> None:
    desk = Counted(3)
    assert desk.announce(0, REDUCE) == {}
    assert desk.announce(2, REDUCE) == {}
    assert desk.announce(1, REDUCE) == {0: "met", 1: "met", 2: "met"}


def test_calls_that_disagree_are_told_to_all_who_made_them() -> None:
    desk = Counted(3)
    desk.announce(0, REDUCE)
    desk.announce(1, BARRIER)
    assert desk.announce(2, REDUCE) == {0: "verdict", 1: "verdict", 2: "verdict"}
    verdict = desk.desk.verdict
    assert isinstance(verdict, Mismatch) and verdict.ranks == (1,) and verdict.number == 0


def test_after_a_verdict_the_ranks_may_go_on() -> None:
    desk = Counted(2)
    desk.announce(0, REDUCE)
    desk.announce(1, BARRIER)
    desk.announce(1, REDUCE)
    assert desk.announce(0, REDUCE) == {0: "met", 1: "met"}


def test_a_call_that_need_not_wait_goes_on_at_once() -> None:
    desk = Counted(2)
    assert desk.announce(0, REDUCE, blocking=False) == {0: "go"}
    assert desk.announce(1, REDUCE, blocking=False) == {1: "met"}
    assert told(desk.desk.wait(0, 1)) == {0: "met"}


def test_who_waits_for_what_was_begun_is_told_when_it_is_met() -> None:
    desk = Counted(2)
    desk.announce(0, REDUCE, blocking=False)
    assert told(desk.desk.wait(0, 1)) == {}
    assert desk.announce(1, REDUCE) == {0: "met", 1: "met"}


def test_a_backend_never_gets_two_calls_that_do_not_fit() -> None:
    """The second of three is held although it need not wait."""
    desk = Counted(3)
    assert desk.announce(0, REDUCE, blocking=False) == {0: "go"}
    odd = replace(REDUCE, inputs=(TensorSpec("float32", (6,)),))
    assert desk.announce(1, odd, blocking=False) == {}
    assert desk.announce(2, REDUCE, blocking=False) == {1: "verdict", 2: "verdict"}
    assert told(desk.desk.wait(0, 1)) == {0: "verdict"}
    assert told(desk.desk.wait(0, 1)) == {0: "verdict"}


def test_uneven_lists_are_no_mismatch() -> None:
    desk = Counted(2)
    sizes = TensorSpec("float32", (1,)), TensorSpec("float32", (2,))
    for rank in (0, 1):
        form = Form("all_gather", 0, inputs=(sizes[rank],), outputs=sizes)
        answers = desk.announce(rank, form)
    assert answers == {0: "met", 1: "met"}


@pytest.mark.parametrize("name", ["gather", "scatter"])
def test_only_the_root_gives_a_list(name: str) -> None:
    lists = {"gather": "outputs", "scatter": "inputs"}[name]
    own = {"gather": "inputs", "scatter": "outputs"}[name]
    plain = Form(name, 0, root=0, **{own: (FLOATS,)})  # type: ignore[arg-type]
    root = replace(plain, **{lists: (FLOATS, FLOATS)})
    assert signature_of(plain) == signature_of(root) is not None
    desk = Counted(2)
    desk.announce(0, root)
    assert desk.announce(1, plain) == {0: "met", 1: "met"}


def test_ranks_are_the_real_ones_however_the_program_numbers_them() -> None:
    """Two programs of two ranks each on four: both call themselves 0 and 1."""
    desk = Desk(4)
    for rank in range(4):
        form = GroupForm(f"store {rank // 2}", "0", (0, 1), rank % 2)
        desk.define_group(rank, 0, form)
        desk.define_form(rank, 0, REDUCE)
    for rank in (0, 2, 3):
        desk.announce(rank, 1, 0, blocking=True)
    desk.define_form(3, 1, BARRIER)
    desk.announce(3, 2, 1, blocking=True)
    desk.announce(2, 2, 0, blocking=True)
    assert isinstance(desk.verdict, Mismatch) and desk.verdict.group.ranks == (2, 3)


# -- nobody can move ----------------------------------------------------------------------


def test_a_finished_peer() -> None:
    desk = Counted(3)
    desk.announce(0, BARRIER)
    desk.announce(2, BARRIER)
    assert told(desk.desk.finished(1)) == {0: "verdict", 2: "verdict"}
    verdict = desk.desk.verdict
    assert isinstance(verdict, Deadlock)
    assert (verdict.cause, verdict.ranks) == ("finished-peer", (1,))


def test_all_receive() -> None:
    desk = Counted(3)
    desk.announce(0, recv(2))
    desk.announce(1, recv(0))
    assert desk.announce(2, recv(1)) == {0: "verdict", 1: "verdict", 2: "verdict"}
    assert isinstance(desk.desk.verdict, Deadlock) and len(desk.desk.verdict.cycle) == 3


def test_calls_that_disagree_explain_a_deadlock() -> None:
    desk = Counted(3)
    desk.announce(0, REDUCE)
    desk.announce(1, BARRIER)
    desk.desk.finished(2)
    verdict = desk.desk.verdict
    assert isinstance(verdict, Mismatch) and verdict.missing == (2,)


@pytest.mark.parametrize("more", [{"timed": True}, {"threads": 2}])
def test_who_counts_on_a_time_or_has_other_threads_is_not_blocked(more) -> None:
    desk = Counted(2)
    desk.announce(0, BARRIER, **more)
    assert told(desk.desk.finished(1)) == {}
    assert desk.desk.verdict is None


def test_two_threads_that_both_wait() -> None:
    desk = Counted(2, (0, 1))
    desk.announce(0, BARRIER, threads=2)
    desk.announce(0, replace(BARRIER, group=1), threads=2)
    assert desk.announce(1, replace(BARRIER, group=1)) == {0: "met", 1: "met"}
    assert desk.announce(1, BARRIER) == {0: "met", 1: "met"}


def test_nothing_is_proved_of_a_rank_that_waits_for_two_things() -> None:
    desk = Counted(2, (0, 1))
    desk.announce(0, BARRIER, threads=2)
    desk.announce(0, replace(BARRIER, group=1), threads=2)
    assert told(desk.desk.finished(1)) == {}


# -- messages -----------------------------------------------------------------------------


def test_a_message_and_its_receive() -> None:
    desk = Counted(2)
    assert desk.announce(0, send(1)) == {}
    assert desk.announce(1, recv(0)) == {0: "met", 1: "met"}


def test_messages_of_different_size() -> None:
    desk = Counted(2)
    assert desk.announce(1, recv(0), blocking=False) == {1: "go"}
    longer = TensorSpec("float32", (5,))
    assert desk.announce(0, send(1, spec=longer), blocking=False) == {0: "verdict"}
    assert told(desk.desk.wait(1, 1)) == {1: "verdict"}


def test_tags_that_differ() -> None:
    desk = Counted(2)
    desk.announce(0, send(1, tag=1))
    desk.announce(1, recv(0, tag=2))
    verdict = desk.desk.verdict
    assert isinstance(verdict, Deadlock) and "sent tag 1" in str(verdict.hint)


def test_of_any_source_the_backend_decides_and_the_receiver_tells() -> None:
    desk = Counted(3)
    assert desk.announce(1, send(0)) == {}
    assert desk.announce(0, recv(None), blocking=False) == {0: "go", 1: "go"}
    assert desk.announce(2, send(0)) == {2: "go"}
    assert told(desk.desk.wait(0, 1)) == {0: "go"}
    assert told(desk.desk.received(0, 1, 2)) == {}
    assert desk.announce(0, recv(1)) == {0: "met"}
    assert desk.desk.finished(1) == desk.desk.finished(2) == []
    assert told(desk.desk.finished(0)) == {}


def test_receives_from_any_source_one_after_the_other() -> None:
    desk = Counted(3)
    for _ in range(2):
        desk.announce(0, recv(None), blocking=False)
    desk.announce(1, send(0), blocking=False)
    desk.announce(0, recv(None), blocking=False)
    desk.announce(2, send(0), blocking=False)
    assert told(desk.desk.received(0, 1, 2)) == {}
    assert told(desk.desk.received(0, 2, 1)) == {}
    assert told(desk.desk.wait(1, 1)) == {1: "met"}
    assert told(desk.desk.wait(2, 1)) == {2: "met"}
    desk.desk.finished(1)
    desk.desk.finished(2)
    assert told(desk.desk.wait(0, 3)) == {0: "verdict"}


def test_of_two_ranks_any_source_is_the_other_one() -> None:
    desk = Counted(2)
    desk.announce(0, recv(None))
    assert desk.announce(1, send(0)) == {0: "met", 1: "met"}


# -- giving up, failing -------------------------------------------------------------------


def test_who_gives_up_is_not_waited_with() -> None:
    desk = Counted(2)
    desk.announce(0, BARRIER)
    assert told(desk.desk.give_up(0, 1)) == {0: "withdrawn"}
    assert desk.announce(1, BARRIER) == {1: "lost"}


def test_an_answer_that_was_on_its_way_counts() -> None:
    desk = Counted(2)
    desk.announce(0, BARRIER)
    desk.announce(1, BARRIER)
    assert desk.desk.give_up(0, 1) == []


def test_a_message_given_up_is_taken_back() -> None:
    desk = Counted(2)
    desk.announce(0, send(1))
    desk.desk.give_up(0, 1)
    assert desk.announce(1, recv(0)) == {}


def test_the_first_failure_stops_those_who_wait_and_those_who_come() -> None:
    desk = Counted(4)
    desk.announce(0, BARRIER)
    assert told(desk.desk.failed(1, "ValueError: no\nmore")) == {0: "stop"}
    assert desk.announce(2, BARRIER) == {2: "stop"}
    assert desk.announce(3, REDUCE, blocking=False) == {3: "go"}
    assert told(desk.desk.wait(3, 1)) == {3: "stop"}
    stopped = desk.desk.stopped
    assert set(stopped) == {0, 2, 3}
    assert {view.wait.needs for view in stopped.values() if view.wait} == {(1,)}
    assert desk.desk.error_of(1) == "ValueError: no"


def test_a_failure_stops_the_other_threads_of_its_rank() -> None:
    desk = Counted(2)
    desk.announce(0, BARRIER, threads=2)
    assert told(desk.desk.failed(0, "ThreadRaceError: two at once")) == {0: "stop"}
    desk = Counted(2)
    desk.announce(0, BARRIER, threads=2)
    assert told(desk.desk.failed(1, "ValueError: no")) == {0: "stop"}
    assert told(desk.desk.failed(0, "ValueError: no")) == {}


def test_a_new_call_begins_with_nobody_gone() -> None:
    desk = Counted(2)
    desk.announce(0, BARRIER)
    desk.announce(1, BARRIER)
    desk.desk.finished(0)
    desk.desk.failed(1, "x")
    desk.desk.begin()
    assert desk.announce(1, REDUCE) == {}
    assert desk.announce(0, REDUCE) == {0: "met", 1: "met"}
    assert [view.status for view in desk.desk.snapshot().ranks] == ["computing"] * 2


# -- random programs ----------------------------------------------------------------------


@dataclass
class Step:
    """One instruction of a rank: a call to announce, or the wait for one."""

    form: Form
    blocking: bool = True


def draw_programs(dice: random.Random) -> tuple[int, list[tuple[int, ...]], list[list[Step]]]:
    """Every rank makes its part of one sequence of calls, so nobody can ever be stuck."""
    size = dice.randint(2, 4)
    groups = [tuple(range(size))]
    for _ in range(dice.randint(0, 2)):
        groups.append(tuple(sorted(dice.sample(range(size), dice.randint(2, size)))))
    programs: list[list[Step]] = [[] for _ in range(size)]
    for _ in range(dice.randint(1, 8)):
        number = dice.randrange(len(groups))
        ranks = groups[number]
        if dice.random() < 0.4:
            a, b = dice.sample(range(len(ranks)), 2)
            tag = dice.randint(0, 1)
            pairs = [(a, send(b, tag)), (b, recv(a, tag))]
        else:
            form = dice.choice(
                [REDUCE, BARRIER, Form("broadcast", 0, root=0, inputs=(FLOATS,))]
            )
            pairs = [(member, form) for member in range(len(ranks))]
        for member, form in pairs:
            blocking = dice.random() < 0.7
            programs[ranks[member]].append(Step(replace(form, group=number), blocking))
    return size, groups, programs


class Rank:
    """A program in progress. Asynchronous calls are waited for at the end."""

    def __init__(self, desk: Desk, rank: int, program: list[Step]) -> None:
        self.desk, self.rank = desk, rank
        self.waits_for: int | None = None
        self.done = False
        self.steps = self._run(program)

    def _run(self, program: list[Step]) -> Iterator[list[Reply]]:
        for ticket, step in enumerate(program):
            self.desk.define_form(self.rank, ticket, step.form)
            self.waits_for = ticket
            yield self.desk.announce(self.rank, ticket, ticket, blocking=step.blocking)
        for ticket, step in enumerate(program):
            if not step.blocking:
                self.waits_for = ticket
                yield self.desk.wait(self.rank, ticket)
        self.done = True
        yield self.desk.finished(self.rank)


def play(dice: random.Random, size: int, groups: Any, programs: Any) -> Desk:
    """Run the programs in a random order until a verdict or the end."""
    desk = Desk(size)
    for number, ranks in enumerate(groups):
        for member, rank in enumerate(ranks):
            desk.define_group(rank, number, GroupForm(str(number), str(number), ranks, member))
    players = [Rank(desk, rank, program) for rank, program in enumerate(programs)]
    while desk.verdict is None and not all(player.done for player in players):
        ready = [each for each in players if each.waits_for is None and not each.done]
        assert ready, "ranks wait, and nobody says why"
        for reply in next(dice.choice(ready).steps):
            assert reply.ticket == players[reply.rank].waits_for
            players[reply.rank].waits_for = None
    return desk


@settings(max_examples=300, deadline=None)
@given(st.integers(0, 2**32))
def test_programs_that_match_never_give_a_verdict(seed: int) -> None:
    dice = random.Random(seed)
    assert play(dice, *draw_programs(dice)).verdict is None


@settings(max_examples=300, deadline=None)
@given(st.integers(0, 2**32))
def test_one_call_more_less_or_other_gives_one(seed: int) -> None:
    dice = random.Random(seed)
    size, groups, programs = draw_programs(dice)
    rank = dice.choice([each for each in range(size) if programs[each]])
    at = dice.randrange(len(programs[rank]))
    step = programs[rank][at]
    how = dice.choice(["less", "more", "other"])
    if how == "less":
        del programs[rank][at]
    elif how == "more":
        programs[rank].insert(at, step)
    else:
        other = TensorSpec("int64", (4,))
        name = step.form.name
        changed: dict[str, Any] = {"inputs": (other,)}
        if name == "recv":
            changed = {"outputs": (other,)}
        elif name == "barrier":
            changed = {"name": "all_reduce", "reduce_op": "SUM", "inputs": (other,)}
        programs[rank][at] = replace(step, form=replace(step.form, **changed))
    assert play(dice, size, groups, programs).verdict is not None
