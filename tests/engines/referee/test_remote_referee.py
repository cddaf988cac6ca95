"""The referee alone: events in, answers out. No processes, no torch, no clock."""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from phalanx.engines.referee.announced_ranks import Reply
from phalanx.engines.referee.remote_referee import RemoteReferee
from phalanx.engines.remote.frames import FORMS_KEPT
from phalanx.matching.announcement import Form, GroupForm, signature_of
from phalanx.model import Deadlock, Finding, Mismatch, Site, TensorSpec

FLOATS = TensorSpec("float32", (4,))
REDUCE = Form("all_reduce", 0, reduce_op="SUM", inputs=(FLOATS,), site=Site("a.py", 3, "f"))
BARRIER = Form("barrier", 0, site=Site("a.py", 9, "f"))


def send(peer: int, tag: int = 0, spec: TensorSpec = FLOATS) -> Form:
    return Form("send", 0, peer=peer, tag=tag, inputs=(spec,))


def recv(peer: int | None, tag: int = 0, spec: TensorSpec = FLOATS) -> Form:
    return Form("recv", 0, peer=peer, tag=tag, outputs=(spec,))


class Counted:
    """A referee whose ranks number their forms and calls by themselves."""

    def __init__(self, size: int, *groups: tuple[int, ...]) -> None:
        self.referee = RemoteReferee(size)
        self.calls = [0] * size
        self.forms = 0
        for number, ranks in enumerate([tuple(range(size)), *groups]):
            for member, rank in enumerate(ranks):
                form = GroupForm(f"key {number}", str(number), ranks, member)
                self.referee.define_group(rank, number, form)

    def announce(self, rank: int, form: Form, *, blocking: bool = True, **more: Any) -> Any:
        self.calls[rank] += 1
        self.forms += 1
        self.referee.define_form(rank, self.forms, form)
        return told(
            self.referee.announce(rank, self.calls[rank], self.forms, blocking=blocking, **more)
        )


def told(replies: list[Reply]) -> dict[int, str]:
    return {reply.rank: reply.answer for reply in replies}


# -- forms --------------------------------------------------------------------------------


def test_what_other_threads_are_about_to_use_is_not_forgotten() -> None:
    referee = Counted(2)
    for number in range(FORMS_KEPT + 1):
        referee.referee.define_form(0, number, BARRIER)
    referee.referee.forget(0)
    with pytest.raises(LookupError):
        referee.referee.announce(0, 1, 0, blocking=True)
    assert told(referee.referee.announce(0, 1, 1, blocking=True)) == {}
    assert referee.announce(1, BARRIER) == {0: "met", 1: "met"}


# -- what is left -------------------------------------------------------------------------


def test_a_call_in_which_a_thread_waits_is_not_left_over() -> None:
    referee = Counted(2)
    assert referee.announce(0, REDUCE, threads=2) == {}
    for rank in range(2):
        referee.referee.finished(rank)
    assert referee.referee.leftovers() == []
    referee.referee.begin()
    assert referee.announce(1, REDUCE) == {0: "met", 1: "met"}
    assert referee.announce(0, REDUCE, blocking=False) == {0: "go"}
    for rank in range(2):
        referee.referee.finished(rank)
    assert len(referee.referee.leftovers()) == 1


def test_a_group_that_all_have_destroyed_is_forgotten_with_its_run() -> None:
    referee = Counted(2, (0, 1))
    for rank in range(2):
        referee.announce(rank, replace(BARRIER, group=1))
    kept = referee.referee.find_mailbox("key 1")
    assert kept is not None
    referee.referee.leave_group(0, kept)
    assert kept.record in referee.referee.journal.reader().groups
    referee.referee.leave_group(1, kept)
    assert kept.record not in referee.referee.journal.reader().groups
    assert "key 1" in referee.referee.records(), "ranks may have something to say about it"
    referee.referee.begin()
    assert list(referee.referee.records()) == ["key 0"]
    assert referee.referee.tally().collectives == 1


def test_a_verdict_that_a_rank_has_heard_is_forgotten() -> None:
    referee = Counted(2)
    for _ in range(3):
        referee.announce(0, REDUCE)
        assert referee.announce(1, BARRIER) == {0: "verdict", 1: "verdict"}
    assert [len(rank.calls) for rank in referee.referee._ranks] == [0, 0]


# -- collectives --------------------------------------------------------------------------


def test_the_last_to_come_lets_everyone_go() -> None:
    referee = Counted(3)
    assert referee.announce(0, REDUCE) == {}
    assert referee.announce(2, REDUCE) == {}
    assert referee.announce(1, REDUCE) == {0: "met", 1: "met", 2: "met"}


def test_calls_that_disagree_are_told_to_all_who_made_them() -> None:
    referee = Counted(3)
    referee.announce(0, REDUCE)
    referee.announce(1, BARRIER)
    assert referee.announce(2, REDUCE) == {0: "verdict", 1: "verdict", 2: "verdict"}
    verdict = referee.referee.verdict
    assert isinstance(verdict, Mismatch) and verdict.ranks == (1,) and verdict.number == 0


def test_after_a_verdict_the_ranks_may_go_on() -> None:
    referee = Counted(2)
    referee.announce(0, REDUCE)
    referee.announce(1, BARRIER)
    referee.announce(1, REDUCE)
    assert referee.announce(0, REDUCE) == {0: "met", 1: "met"}


def test_a_call_that_need_not_wait_goes_on_at_once() -> None:
    referee = Counted(2)
    assert referee.announce(0, REDUCE, blocking=False) == {0: "go"}
    assert referee.announce(1, REDUCE, blocking=False) == {1: "met"}
    assert told(referee.referee.wait(0, 1)) == {0: "met"}


def test_who_waits_for_what_was_begun_is_told_when_it_is_met() -> None:
    referee = Counted(2)
    referee.announce(0, REDUCE, blocking=False)
    assert told(referee.referee.wait(0, 1)) == {}
    assert referee.announce(1, REDUCE) == {0: "met", 1: "met"}


def test_a_backend_never_gets_two_calls_that_do_not_fit() -> None:
    """The second of three is held although it need not wait."""
    referee = Counted(3)
    assert referee.announce(0, REDUCE, blocking=False) == {0: "go"}
    odd = replace(REDUCE, inputs=(TensorSpec("float32", (6,)),))
    assert referee.announce(1, odd, blocking=False) == {}
    assert referee.announce(2, REDUCE, blocking=False) == {1: "verdict", 2: "verdict"}
    assert told(referee.referee.wait(0, 1)) == {0: "verdict"}
    assert told(referee.referee.wait(0, 1)) == {0: "verdict"}


def test_uneven_lists_are_no_mismatch() -> None:
    referee = Counted(2)
    sizes = TensorSpec("float32", (1,)), TensorSpec("float32", (2,))
    for rank in (0, 1):
        form = Form("all_gather", 0, inputs=(sizes[rank],), outputs=sizes)
        answers = referee.announce(rank, form)
    assert answers == {0: "met", 1: "met"}


@pytest.mark.parametrize("name", ["gather", "scatter"])
def test_only_the_root_gives_a_list(name: str) -> None:
    lists = {"gather": "outputs", "scatter": "inputs"}[name]
    own = {"gather": "inputs", "scatter": "outputs"}[name]
    plain = Form(name, 0, root=0, **{own: (FLOATS,)})  # type: ignore[arg-type]
    root = replace(plain, **{lists: (FLOATS, FLOATS)})
    assert signature_of(plain) == signature_of(root) is not None
    referee = Counted(2)
    referee.announce(0, root)
    assert referee.announce(1, plain) == {0: "met", 1: "met"}


def test_ranks_are_the_real_ones_however_the_program_numbers_them() -> None:
    """Two programs of two ranks each on four: both call themselves 0 and 1."""
    referee = RemoteReferee(4)
    for rank in range(4):
        form = GroupForm(f"store {rank // 2}", "0", (0, 1), rank % 2)
        referee.define_group(rank, 0, form)
        referee.define_form(rank, 0, REDUCE)
    for rank in (0, 2, 3):
        referee.announce(rank, 1, 0, blocking=True)
    referee.define_form(3, 1, BARRIER)
    referee.announce(3, 2, 1, blocking=True)
    referee.announce(2, 2, 0, blocking=True)
    assert isinstance(referee.verdict, Mismatch) and referee.verdict.group.ranks == (2, 3)


def test_who_comes_late_in_a_world_with_other_numbers_is_no_other_rank() -> None:
    """Rank 0 calls itself 3: nobody waits for itself, or for whoever has that number."""
    referee = RemoteReferee(4)
    for rank in (0, 2, 3):
        referee.define_group(rank, 0, GroupForm("store", "0", (0, 1, 2, 3), 3 - rank))
        referee.define_form(rank, 0, REDUCE)
        assert told(referee.announce(rank, 1, 0, blocking=True)) == {}
    assert referee.look() == [] == referee.look()
    referee.define_group(1, 0, GroupForm("store", "0", (0, 1, 2, 3), 2))
    referee.define_form(1, 0, REDUCE)
    assert told(referee.announce(1, 1, 0, blocking=True)) == dict.fromkeys(range(4), "met")


def test_who_comes_late_in_a_second_world_is_nobody_of_the_first() -> None:
    referee = RemoteReferee(4)
    for rank in range(3):
        form = GroupForm(f"store {rank // 2}", "0", (0, 1), rank % 2)
        referee.define_group(rank, 0, form)
        referee.define_form(rank, 0, REDUCE)
        referee.announce(rank, 1, 0, blocking=True)
    for rank in range(2):
        assert told(referee.finished(rank)) == {}
    assert referee.look() == [] == referee.look()
    referee.define_form(2, 1, recv(1))
    assert referee.verdict is None


def test_a_subgroup_has_the_numbers_of_its_world() -> None:
    """Ranks 1 and 2 have changed places; of the group [0, 1] only rank 0 is known so far."""
    referee = RemoteReferee(4)
    for rank, member in enumerate((0, 2, 1, 3)):
        referee.define_group(rank, 0, GroupForm("store", "0", (0, 1, 2, 3), member))
        referee.define_form(rank, 0, BARRIER)
    referee.define_group(0, 1, GroupForm("sub", "1", (0, 1), 0))
    referee.define_form(0, 1, replace(BARRIER, group=1))
    referee.announce(0, 1, 1, blocking=True)
    referee.announce(1, 1, 0, blocking=True)
    assert referee.look() == [] == referee.look()


# -- nobody can move ----------------------------------------------------------------------


def test_a_finished_peer() -> None:
    referee = Counted(3)
    referee.announce(0, BARRIER)
    referee.announce(2, BARRIER)
    assert told(referee.referee.finished(1)) == {0: "verdict", 2: "verdict"}
    verdict = referee.referee.verdict
    assert isinstance(verdict, Deadlock)
    assert (verdict.cause, verdict.ranks) == ("finished-peer", (1,))


def test_all_receive() -> None:
    referee = Counted(3)
    referee.announce(0, recv(2))
    referee.announce(1, recv(0))
    assert referee.announce(2, recv(1)) == {0: "verdict", 1: "verdict", 2: "verdict"}
    assert (
        isinstance(referee.referee.verdict, Deadlock)
        and len(referee.referee.verdict.cycle) == 3
    )


def test_calls_that_disagree_explain_a_deadlock() -> None:
    referee = Counted(3)
    referee.announce(0, REDUCE)
    referee.announce(1, BARRIER)
    referee.referee.finished(2)
    verdict = referee.referee.verdict
    assert isinstance(verdict, Mismatch) and verdict.missing == (2,)


@pytest.mark.parametrize("more", [{"timed": True}, {"threads": 2}])
def test_who_counts_on_a_time_or_has_other_threads_is_not_blocked(more) -> None:
    referee = Counted(2)
    referee.announce(0, BARRIER, **more)
    assert told(referee.referee.finished(1)) == {}
    assert referee.referee.verdict is None


def test_two_threads_that_both_wait() -> None:
    referee = Counted(2, (0, 1))
    referee.announce(0, BARRIER, threads=2)
    referee.announce(0, replace(BARRIER, group=1), threads=2)
    assert referee.announce(1, replace(BARRIER, group=1)) == {0: "met", 1: "met"}
    assert referee.announce(1, BARRIER) == {0: "met", 1: "met"}


def test_two_threads_that_both_wait_in_vain() -> None:
    referee = Counted(2, (0, 1))
    referee.announce(0, BARRIER, threads=2)
    referee.announce(0, replace(BARRIER, group=1), threads=2)
    replies = referee.referee.finished(1)
    assert [(reply.rank, reply.answer) for reply in replies] == [(0, "verdict")] * 2
    verdict = referee.referee.verdict
    assert isinstance(verdict, Deadlock) and verdict.ranks == (1,)
    assert [block.view.thread for block in verdict.blocks] == [None, "1", None]


def test_of_two_threads_that_wait_one_can_go_on() -> None:
    referee = Counted(3, (0, 1), (0, 2))
    referee.announce(0, replace(BARRIER, group=1), threads=2)
    referee.announce(0, replace(BARRIER, group=2), threads=2)
    assert told(referee.referee.finished(1)) == {}
    assert referee.announce(2, replace(BARRIER, group=2)) == {0: "met", 2: "met"}


def test_a_thread_that_has_ended_keeps_nobody_from_being_blocked() -> None:
    referee = Counted(2)
    referee.announce(0, BARRIER, threads=2)
    assert told(referee.referee.finished(1)) == {}
    assert told(referee.referee.tell_threads(0, 1)) == {0: "verdict"}
    assert isinstance(referee.referee.verdict, Deadlock)


def new_group(*members: int) -> Form:
    return Form("new_group", 0, made=(members, "gloo"), holds=True)


def test_a_cycle_comes_before_those_who_wait_for_it_in_new_group() -> None:
    referee = Counted(4)
    for rank in (0, 1):
        referee.announce(rank, new_group(0, 1, 2, 3))
    referee.announce(2, recv(3))
    assert referee.announce(3, recv(2)) == dict.fromkeys(range(4), "verdict")
    verdict = referee.referee.verdict
    assert isinstance(verdict, Deadlock) and verdict.cycle == (2, 3)


def test_who_waits_for_those_in_new_group_did_not_call_it() -> None:
    referee = Counted(4)
    for rank in (0, 1):
        referee.announce(rank, new_group(0, 1, 2, 3))
    referee.announce(2, recv(0))
    assert referee.announce(3, recv(2)) == dict.fromkeys(range(4), "verdict")
    verdict = referee.referee.verdict
    assert isinstance(verdict, Finding) and verdict.ranks == (2, 3)


# -- messages -----------------------------------------------------------------------------


def test_a_message_and_its_receive() -> None:
    referee = Counted(2)
    assert referee.announce(0, send(1)) == {}
    assert referee.announce(1, recv(0)) == {0: "met", 1: "met"}


def test_messages_of_different_size() -> None:
    referee = Counted(2)
    assert referee.announce(1, recv(0), blocking=False) == {1: "go"}
    longer = TensorSpec("float32", (5,))
    assert referee.announce(0, send(1, spec=longer), blocking=False) == {0: "verdict"}
    assert told(referee.referee.wait(1, 1)) == {1: "verdict"}


def test_tags_that_differ() -> None:
    referee = Counted(2)
    referee.announce(0, send(1, tag=1))
    referee.announce(1, recv(0, tag=2))
    verdict = referee.referee.verdict
    assert isinstance(verdict, Deadlock) and "sent tag 1" in str(verdict.hint)


def test_of_any_source_the_backend_decides_and_the_receiver_tells() -> None:
    referee = Counted(3)
    assert referee.announce(1, send(0)) == {}
    assert referee.announce(0, recv(None), blocking=False) == {0: "go", 1: "go"}
    assert referee.announce(2, send(0)) == {2: "go"}
    assert told(referee.referee.wait(0, 1)) == {0: "go"}
    assert told(referee.referee.received(0, 1, 2)) == {}
    assert referee.announce(0, recv(1)) == {0: "met"}
    assert referee.referee.finished(1) == referee.referee.finished(2) == []
    assert told(referee.referee.finished(0)) == {}


def test_a_receive_from_any_source_took_what_its_own_rank_waits_for() -> None:
    referee = Counted(3)
    referee.announce(0, recv(None))
    referee.announce(1, send(0))
    referee.referee.received(0, 1, 1)
    referee.referee.finished(1)
    referee.announce(0, recv(1))
    referee.referee.finished(2)
    verdict = referee.referee.verdict
    assert isinstance(verdict, Deadlock) and verdict.ranks == (0,)


def test_receives_from_any_source_one_after_the_other() -> None:
    referee = Counted(3)
    for _ in range(2):
        referee.announce(0, recv(None), blocking=False)
    referee.announce(1, send(0), blocking=False)
    referee.announce(0, recv(None), blocking=False)
    referee.announce(2, send(0), blocking=False)
    assert told(referee.referee.received(0, 1, 2)) == {}
    assert told(referee.referee.received(0, 2, 1)) == {}
    assert told(referee.referee.wait(1, 1)) == {1: "met"}
    assert told(referee.referee.wait(2, 1)) == {2: "met"}
    referee.referee.finished(1)
    referee.referee.finished(2)
    assert told(referee.referee.wait(0, 3)) == {0: "verdict"}


def test_of_two_ranks_any_source_is_the_other_one() -> None:
    referee = Counted(2)
    referee.announce(0, recv(None))
    assert referee.announce(1, send(0)) == {0: "met", 1: "met"}


# -- giving up, failing -------------------------------------------------------------------


def test_who_gives_up_is_not_waited_with() -> None:
    referee = Counted(2)
    referee.announce(0, BARRIER)
    assert told(referee.referee.give_up(0, 1)) == {0: "withdrawn"}
    assert referee.announce(1, BARRIER) == {1: "lost"}


def test_what_another_gave_up_is_told_to_whoever_waits_for_it_later() -> None:
    referee = Counted(3)
    referee.announce(0, BARRIER, timed=True)
    referee.announce(1, BARRIER, blocking=False)
    assert told(referee.referee.give_up(0, 1)) == {0: "withdrawn"}
    assert referee.announce(2, BARRIER) == {2: "lost"}
    (reply,) = referee.referee.wait(1, 1)
    assert reply.answer == "lost"
    assert reply.text == "barrier: rank 0 timed out in this call and no longer takes part"
    assert not any(wait.op.name == "barrier" for wait in referee.referee.leftovers())


def test_what_ended_in_a_verdict_did_not_time_out() -> None:
    """Ranks 0 and 1 wait for each other, which both catch; rank 2 comes later."""
    referee = Counted(3)
    referee.announce(0, BARRIER)
    referee.announce(1, recv(0))
    assert referee.referee.look() == []
    assert told(referee.referee.look()) == {0: "verdict", 1: "verdict"}
    referee.announce(1, BARRIER)
    referee.referee.define_form(2, 100, BARRIER)
    replies = {r.rank: r for r in referee.referee.announce(2, 1, 100, blocking=True)}
    text = "barrier: rank 0 raised a deadlock in this call and no longer takes part"
    assert {rank: reply.text for rank, reply in replies.items()} == {1: text, 2: text}


def test_an_answer_that_was_on_its_way_counts() -> None:
    referee = Counted(2)
    referee.announce(0, BARRIER)
    referee.announce(1, BARRIER)
    assert referee.referee.give_up(0, 1) == []


def test_a_message_given_up_is_taken_back() -> None:
    referee = Counted(2)
    referee.announce(0, send(1))
    referee.referee.give_up(0, 1)
    assert referee.announce(1, recv(0)) == {}


def test_the_first_failure_stops_those_who_wait_and_those_who_come() -> None:
    referee = Counted(4)
    referee.announce(0, BARRIER)
    assert told(referee.referee.failed(1, "ValueError: no\nmore")) == {0: "stop"}
    assert referee.announce(2, BARRIER) == {2: "stop"}
    assert referee.announce(3, REDUCE, blocking=False) == {3: "go"}
    assert told(referee.referee.wait(3, 1)) == {3: "stop"}
    stopped = referee.referee.stopped
    assert set(stopped) == {0, 2, 3}
    assert {view.wait.needs for view in stopped.values() if view.wait} == {(1,)}
    assert referee.referee.error_of(1) == "ValueError: no"


def test_a_failure_stops_the_other_threads_of_its_rank() -> None:
    referee = Counted(2)
    referee.announce(0, BARRIER, threads=2)
    assert told(referee.referee.failed(0, "ThreadRaceError: two at once")) == {0: "stop"}
    referee = Counted(2)
    referee.announce(0, BARRIER, threads=2)
    assert told(referee.referee.failed(1, "ValueError: no")) == {0: "stop"}
    assert told(referee.referee.failed(0, "ValueError: no")) == {}


def test_a_new_call_begins_with_nobody_gone() -> None:
    referee = Counted(2)
    referee.announce(0, BARRIER)
    referee.announce(1, BARRIER)
    referee.referee.finished(0)
    referee.referee.failed(1, "x")
    referee.referee.begin()
    assert referee.announce(1, REDUCE) == {}
    assert referee.announce(0, REDUCE) == {0: "met", 1: "met"}
    assert [view.status for view in referee.referee.snapshot().ranks] == ["computing"] * 2


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

    def __init__(self, referee: RemoteReferee, rank: int, program: list[Step]) -> None:
        self.referee, self.rank = referee, rank
        self.waits_for: int | None = None
        self.done = False
        self.steps = self._run(program)

    def _run(self, program: list[Step]) -> Iterator[list[Reply]]:
        for call_id, step in enumerate(program):
            self.referee.define_form(self.rank, call_id, step.form)
            self.waits_for = call_id
            yield self.referee.announce(self.rank, call_id, call_id, blocking=step.blocking)
        for call_id, step in enumerate(program):
            if not step.blocking:
                self.waits_for = call_id
                yield self.referee.wait(self.rank, call_id)
        self.done = True
        yield self.referee.finished(self.rank)


def play(dice: random.Random, size: int, groups: Any, programs: Any) -> RemoteReferee:
    """Run the programs in a random order until a verdict or the end."""
    referee = RemoteReferee(size)
    for number, ranks in enumerate(groups):
        for member, rank in enumerate(ranks):
            referee.define_group(
                rank, number, GroupForm(str(number), str(number), ranks, member)
            )
    players = [Rank(referee, rank, program) for rank, program in enumerate(programs)]
    while referee.verdict is None and not all(player.done for player in players):
        ready = [each for each in players if each.waits_for is None and not each.done]
        assert ready, "ranks wait, and nobody says why"
        for reply in next(dice.choice(ready).steps):
            assert reply.call_id == players[reply.rank].waits_for
            players[reply.rank].waits_for = None
    return referee


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
