"""Findings of runs that succeed: warnings, `World.findings`, and errors under `strict`."""

from __future__ import annotations

import warnings
from datetime import timedelta

import pytest
import torch
import torch.distributed as dist

import phalanx
from tests.support import assert_silent


def send_into_the_blue() -> None:
    if dist.get_rank() == 0:
        dist.isend(torch.ones(2), 1, tag=3)


def leave_a_collective_alone() -> None:
    if dist.get_rank() == 1:
        dist.all_reduce(torch.ones(2), async_op=True)


def give_up_after_a_timeout() -> None:
    if dist.get_rank() == 0:
        work = dist.irecv(torch.ones(2), 1)
        with pytest.raises(RuntimeError, match="Timed out"):
            work.wait(timedelta(milliseconds=5))


def exchange() -> None:
    rank = dist.get_rank()
    works = [dist.isend(torch.ones(2), 1 - rank), dist.irecv(torch.ones(2), 1 - rank)]
    for work in works:
        work.wait()
    dist.all_reduce(torch.ones(2), async_op=True).wait()


def test_a_message_nobody_receives_is_a_warning_at_the_callers_line() -> None:
    with pytest.warns(
        phalanx.PhalanxWarning, match=r"send\(dst=1, tag=3\) of rank 0"
    ) as caught:
        assert phalanx.run(send_into_the_blue, ranks=2) == [None, None]
    assert [each.filename for each in caught] == [__file__]
    assert caught[0].message.finding.kind == "unmatched-message"  # type: ignore[union-attr]


def test_strict_makes_it_an_error_with_the_findings() -> None:
    with pytest.raises(phalanx.HazardError) as caught:
        phalanx.run(leave_a_collective_alone, ranks=3, strict=True)
    (finding,) = caught.value.findings
    assert finding.kind == "unwaited-work" and finding.ranks == (1,)
    assert "ranks 0, 2 never did" in str(caught.value)
    assert "phalanx.run(leave_a_collective_alone, ranks=3, strict=True)" in str(caught.value)


def test_a_world_keeps_its_findings_and_tells_each_once() -> None:
    with phalanx.World(ranks=2) as world:
        with pytest.warns(phalanx.PhalanxWarning):
            world.run(send_into_the_blue)
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            world.run(dist.barrier)
        assert [each.kind for each in world.findings] == ["unmatched-message"]


def test_a_group_that_is_destroyed_takes_its_findings_along() -> None:
    def program() -> None:
        group = dist.new_group([0, 1])
        if dist.get_rank() == 1:
            dist.irecv(torch.ones(2), 0, group=group)
        dist.destroy_process_group(group)

    with pytest.warns(phalanx.PhalanxWarning, match="of rank 1 was never answered by a send"):
        phalanx.run(program, ranks=2)


@pytest.mark.parametrize(
    "program", [exchange, give_up_after_a_timeout], ids=lambda f: f.__name__
)
def test_what_was_met_or_given_up_is_no_finding(program) -> None:
    assert_silent(program)


def test_without_checks_there_are_no_findings() -> None:
    assert_silent(send_into_the_blue, strict=True, checks="none")
