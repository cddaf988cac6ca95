"""How ranks parted, as data in the verdict; headlines of calls that are not meant to meet."""

from __future__ import annotations

import pytest
import torch
import torch.distributed as dist

import phalanx
from phalanx.model import Deadlock, Mismatch
from phalanx.report.text import headline
from tests.support import assert_silent


def mismatch(program, ranks: int = 2) -> Mismatch:
    with pytest.raises(phalanx.CollectiveMismatchError) as caught:
        phalanx.run(program, ranks=ranks)
    assert isinstance(caught.value.verdict, Mismatch)
    return caught.value.verdict


def deadlock(program, ranks: int = 2) -> Deadlock:
    with pytest.raises(phalanx.DeadlockError) as caught:
        phalanx.run(program, ranks=ranks)
    assert isinstance(caught.value.verdict, Deadlock)
    return caught.value.verdict


def one_more_round() -> None:
    for _ in range(3 + dist.get_rank()):
        dist.all_reduce(torch.ones(2))


def test_counts_are_data() -> None:
    verdict = deadlock(one_more_round)
    assert verdict.hint is None, "it would say the same"
    assert verdict.uneven is not None
    (place,) = verdict.uneven.places
    assert [(each.ranks, each.times) for each in place] == [((1,), 4), ((0,), 3)]
    assert verdict.uneven.together == 2
    assert verdict.uneven.went == (((0,), None),)
    assert [site.source for site in verdict.uneven.past] == [
        "for _ in range(3 + dist.get_rank()):"
    ]


def two_loops() -> None:
    rank = dist.get_rank()
    for _ in range(2):
        for _ in range(2 + (rank == 0)):
            dist.all_reduce(torch.ones(2))
        dist.all_reduce(torch.ones(3), op=dist.ReduceOp.MAX)


def test_the_loop_counts_and_not_what_comes_after_it() -> None:
    verdict = mismatch(two_loops)
    assert verdict.uneven is not None
    (place,) = verdict.uneven.places
    assert [(each.ranks, each.times) for each in place] == [((0,), 3), ((1,), 2)]
    told = headline(verdict)
    assert verdict.unrelated
    assert "MAX" not in told
    assert all(str(block.op.site.line) in told for block in verdict.blocks if block.op.site)


def arms() -> None:
    if dist.get_rank() == 0:
        dist.all_reduce(torch.ones(2), op=dist.ReduceOp.MAX)
    else:
        dist.all_reduce(torch.ones(3))


def test_arms_of_one_branch_are_meant_to_meet() -> None:
    verdict = mismatch(arms)
    assert not verdict.unrelated
    assert headline(verdict) == "rank 0 used MAX where rank 1 used SUM in all_reduce"


def apart() -> None:
    if dist.get_rank() == 0:
        dist.all_reduce(torch.ones(2), op=dist.ReduceOp.MAX)
    dist.all_reduce(torch.ones(3))


def test_calls_that_differ_in_much_are_not() -> None:
    verdict = mismatch(apart)
    assert verdict.uneven is None
    assert verdict.unrelated
    first, second = (block.op.site for block in verdict.blocks)
    assert first is not None
    assert headline(verdict) == (
        f"rank 0 called all_reduce at {second} where rank 1 called it at line {first.line}"
    )


def same_line() -> None:
    for i in range(3):
        dist.all_reduce(torch.ones(2 + (i == 2 and dist.get_rank() == 0)))


def test_calls_from_one_line_have_no_counts() -> None:
    verdict = mismatch(same_line)
    assert verdict.uneven is None
    assert not verdict.unrelated


def in_other_orders() -> None:
    one, other = dist.new_group([0, 1]), dist.new_group([0, 1])
    for group in (one, other) if dist.get_rank() else (other, one):
        dist.all_reduce(torch.ones(1), group=group)


def test_groups_of_the_same_members_in_other_orders() -> None:
    verdict = deadlock(in_other_orders)
    assert verdict.absence is None
    assert verdict.hint is not None
    assert "same order" in verdict.hint


def leaves_out_a_group() -> None:
    rank = dist.get_rank()
    pair = dist.new_group([0, 1])
    for i in range(3):
        if rank == 0 or (rank == 1 and i != 1):
            dist.all_reduce(torch.ones(1), group=pair)
        dist.all_reduce(torch.ones(1))


def test_who_left_out_a_call_that_it_always_made_is_at_fault() -> None:
    verdict = deadlock(leaves_out_a_group, ranks=3)
    assert verdict.ranks == (1,)
    assert verdict.absence is not None
    assert (verdict.absence.absent, verdict.absence.made) == ((1,), 1)
    assert verdict.uneven is not None
    assert verdict.uneven.group == verdict.absence.group


def waits_for_a_message() -> None:
    rank = dist.get_rank()
    for _ in range(2):
        dist.barrier()
        if rank == 1:
            dist.recv(torch.ones(1), src=0)
        else:
            dist.barrier()


def test_nobody_is_ahead_where_one_waits_for_a_message() -> None:
    verdict = deadlock(waits_for_a_message)
    assert verdict.uneven is None
    assert verdict.absence is None


def uneven_and_right() -> None:
    """Ranks have lines of their own, and groups that only some use."""
    rank = dist.get_rank()
    pair = dist.new_group([0, 1])
    for i in range(4):
        if rank == 0:
            dist.broadcast(torch.ones(1), src=0)
        else:
            dist.broadcast(torch.zeros(1), src=0)
        if rank < 2 and i % 2:
            dist.all_reduce(torch.ones(1), group=pair)
    dist.barrier()


def joined() -> None:
    """Uneven inputs, evened out by torch."""
    model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(2, 2))
    with torch.distributed.algorithms.Join([model]):
        for _ in range(2 + dist.get_rank()):
            model(torch.ones(1, 2)).sum().backward()


def agreed_on_the_end() -> None:
    mine = 2 + dist.get_rank()
    more = torch.tensor(float(mine))
    while True:
        left = more.clamp(min=0.0)
        dist.all_reduce(left, op=dist.ReduceOp.MAX)
        if not left:
            break
        more -= 1


@pytest.mark.parametrize("program", [uneven_and_right, joined, agreed_on_the_end])
def test_right_programs_that_look_alike(program) -> None:
    assert_silent(program, ranks=3, seeds=(0, 1, 2))


def one_message_less() -> None:
    rank = dist.get_rank()
    for i in range(3 + rank):
        if rank == 0:
            dist.send(torch.ones(1), 1)
        elif i < 1:
            dist.recv(torch.ones(1), 0)
        else:
            dist.recv(torch.ones(2)[:1], 0)


def never_sent() -> None:
    if dist.get_rank() == 1:
        dist.recv(torch.ones(1), 0)


@pytest.mark.parametrize("program", [one_message_less, never_sent])
def test_messages_from_several_lines_or_none_have_no_counts(program) -> None:
    assert deadlock(program).uneven is None
