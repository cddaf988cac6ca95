"""The referee over a small host: in which order explanations are tried, and for whom."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import pytest

from phalanx.journal.reader import Journal
from phalanx.journal.writer import JournalWriter
from phalanx.kinds import ALL, ALWAYS
from phalanx.matching.descriptions import CallReader, describe_wait
from phalanx.matching.mailboxes import GroupMailbox
from phalanx.matching.partial_look import Standing, WaitPosition
from phalanx.matching.referee import Referee
from phalanx.matching.slots import Call
from phalanx.matching.waitgraph import Node
from phalanx.model import (
    Deadlock,
    Finding,
    Mismatch,
    RankView,
    Site,
    Snapshot,
    TensorSpec,
    Wait,
)

LINE = Site("a.py", 3, "f")


class World:
    """Ranks that wait in calls, or have ended. It is the referee's host."""

    def __init__(self, size: int, kinds: frozenset[str] = ALL) -> None:
        self.size = size
        self.referee = Referee(kinds)
        self.waiting: dict[int, Call] = {}
        self.making: dict[int, Wait] = {}
        """Those that wait in `new_group`."""
        self.gone: set[int] = set()
        self.world = self.group("world", *range(size))

    def group(self, name: str, *ranks: int) -> GroupMailbox:
        made = self.referee.mailboxes[name] = GroupMailbox(name, ranks)
        for member, rank in enumerate(ranks):
            made.claim(member, rank)
        return made

    def call(self, rank: int, name: str, on: GroupMailbox | None = None, **facts: Any) -> Call:
        mailbox = on or self.world
        nobody: Any = None
        call = Call(mailbox, mailbox.ranks.index(rank), nobody, name, nobody)
        call.signature = (name, *facts.items())
        for field, value in facts.items():
            setattr(call, field, value)
        if name == "send":
            mailbox.post_send(call)
        elif name == "recv":
            mailbox.post_receive(call)
        else:
            mailbox.join(call)
        self.waiting[rank] = call
        return call

    # -- what the referee asks ------------------------------------------------------------

    def reader(self) -> CallReader:
        return CallReader()

    def read_journal(self) -> Journal:
        return JournalWriter(self.size).reader()

    def refine(self, verdict: Any) -> Any:
        return verdict

    def positions(self) -> dict[Call, WaitPosition]:
        return dict.fromkeys(self.waiting.values(), (0, None))

    def ended_so_far(self) -> int:
        return len(self.gone)

    def stand(self, steady: Mapping[Call, WaitPosition]) -> Standing[Call]:
        calls = list(self.waiting.values())
        waits = [describe_wait(call, CallReader()) for call in calls]
        nodes = [Node(wait.op.rank, needs=wait.needs, any_of=wait.any_of) for wait in waits]
        busy = set(range(self.size)) - self.gone - set(self.waiting)
        nodes += [Node(rank, free=True) for rank in busy]
        return Standing(calls, nodes, frozenset(calls))

    def calls_of(self, stuck: Sequence[Call]) -> Sequence[Call]:
        return stuck

    def ended(self) -> set[int]:
        return self.gone

    def take_snapshot(self, stuck: Sequence[Call] | None) -> Snapshot:
        return Snapshot(tuple(map(self._view, range(self.size))))

    def _view(self, rank: int) -> RankView:
        if rank in self.gone:
            return RankView(rank, "finished")
        if rank in self.making:
            return RankView(rank, "waiting", self.making[rank], self.making[rank].op)
        if rank not in self.waiting:
            return RankView(rank, "computing")
        wait = describe_wait(self.waiting[rank], CallReader())
        return RankView(rank, "waiting", wait, wait.op)

    def explain(self, *stuck: int) -> Any:
        calls = [self.waiting[rank] for rank in stuck]
        return self.referee.find_verdict(self, calls or None)


# -- all ranks ----------------------------------------------------------------------------


def test_calls_that_disagree_explain_more_than_who_waits_for_whom() -> None:
    ranks = World(3)
    ranks.call(0, "barrier")
    ranks.call(1, "all_reduce", op="SUM")
    ranks.gone.add(2)
    verdict = ranks.explain()
    assert isinstance(verdict, Mismatch) and verdict.missing == (2,)


def test_without_that_check_the_deadlock_is_said() -> None:
    ranks = World(3, ALWAYS)
    ranks.call(0, "barrier")
    ranks.call(1, "all_reduce", op="SUM")
    ranks.gone.add(2)
    verdict = ranks.explain()
    assert isinstance(verdict, Deadlock) and verdict.cause == "finished-peer"


def test_another_group_of_the_same_ranks_goes_before_the_deadlock() -> None:
    ranks = World(3)
    other = ranks.group("group 1", 0, 1, 2)
    for rank in range(3):
        ranks.call(rank, "barrier", other if rank == 1 else None)
    verdict = ranks.explain()
    assert isinstance(verdict, Finding) and verdict.ranks == (1,)


def test_a_group_that_a_rank_will_never_make_goes_before_the_deadlock() -> None:
    ranks = World(2)
    made = ranks.referee.mailboxes["group 1"] = GroupMailbox("group 1", (0, 1))
    made.claim(0, 0)
    creations = ranks.referee.creations_in("world", ranks.world)
    creations.add(0, ((0, 1), "gloo"), LINE)
    ranks.call(0, "barrier", made)
    ranks.gone.add(1)
    verdict = ranks.explain()
    assert isinstance(verdict, Finding) and verdict.ranks == (1,)
    assert verdict.headline == "rank 0 called new_group([0, 1]) where rank 1 did not"


def test_nobody_comes_to_a_group_in_which_ranks_wait_when_nobody_can_move() -> None:
    ranks = World(2)
    creations = ranks.referee.creations_in("world", ranks.world)
    call = creations.add(0, ((0, 1), "gloo"), LINE, holds=True)
    creations.waiting.append(call)
    ranks.making[0] = creations.wait_in(call)
    ranks.call(1, "barrier")
    verdict = ranks.explain()
    assert isinstance(verdict, Finding) and verdict.ranks == (1,)
    assert creations.made == {}, "it is said once"


def test_ranks_that_can_move_are_no_deadlock() -> None:
    ranks = World(2)
    ranks.call(0, "barrier")
    assert ranks.explain() is None


# -- some ranks ---------------------------------------------------------------------------


def test_some_that_need_only_each_other_are_found_at_the_second_look() -> None:
    ranks = World(3)
    calls = [ranks.call(rank, "recv", peer=1 - rank, tag=0) for rank in (0, 1)]
    assert ranks.referee.find_stuck(ranks, now=0.0) == {}
    assert set(ranks.referee.find_stuck(ranks, now=0.1)) == set(calls)
    verdict = ranks.explain(0, 1)
    assert isinstance(verdict, Deadlock) and verdict.cycle == (0, 1)


def test_slots_of_others_are_not_looked_at_for_some() -> None:
    ranks = World(5)
    other = ranks.group("group 1", 2, 3, 4)
    for rank in (0, 1):
        ranks.call(rank, "recv", peer=1 - rank, tag=0)
    ranks.call(2, "barrier", other)
    ranks.call(3, "all_reduce", other, op="SUM")
    assert isinstance(ranks.explain(0, 1), Deadlock)
    assert isinstance(ranks.explain(2, 3), Mismatch)


def test_a_new_run_looks_afresh() -> None:
    ranks = World(3)
    for rank in (0, 1):
        ranks.call(rank, "recv", peer=1 - rank, tag=0)
    ranks.referee.find_stuck(ranks, now=0.0)
    ranks.referee.begin()
    assert ranks.referee.find_stuck(ranks, now=0.0) == {}


# -- calls that meet ----------------------------------------------------------------------


@pytest.mark.parametrize("kinds", [ALL, ALWAYS])
def test_a_message_must_fit_whatever_is_checked(kinds: frozenset[str]) -> None:
    ranks = World(2, kinds)
    send = ranks.call(0, "send", peer=1, tag=0, inputs=(TensorSpec("float32", (4,)),))
    recv = ranks.call(1, "recv", peer=0, tag=0, outputs=(TensorSpec("float32", (3,)),))
    verdict = ranks.referee.find_message_mismatch(send, recv, ranks)
    assert verdict is not None and verdict.differs == ("shape",)


def test_what_is_open_ends_and_all_go_on_with_one_number() -> None:
    ranks = World(2)
    open_call = ranks.call(0, "barrier")
    error = RuntimeError("stuck")
    ranks.referee.abandon(error)
    assert open_call.error is error and ranks.world.next_number == [1, 1]
