"""A rank that handles an error makes a call that the others do not make: the error comes first.

The same programs on threads and on processes, and right ones that look alike.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

import pytest
import torch
import torch.distributed as dist

import phalanx
from phalanx.model import Deadlock, HandledError, Mismatch, Verdict
from phalanx.report.text import headline
from tests.support import assert_silent

each_engine = pytest.mark.parametrize(
    "engine", ["threads", pytest.param("processes", marks=pytest.mark.programs)]
)


def verdict_of(program: Any, engine: str, ranks: int = 2) -> Verdict:
    with pytest.raises(phalanx.PhalanxError) as caught:
        phalanx.run(program, ranks=ranks, engine=engine)
    verdict = getattr(caught.value, "verdict", None)
    assert isinstance(verdict, Verdict)
    return verdict


def train(steps: int = 3) -> None:
    for step in range(steps):
        if dist.get_rank() == 1 and step == 1:
            raise ValueError(f"no anchors in batch {step}")
        dist.all_reduce(torch.ones(1))


def saves_in_finally() -> None:
    try:
        train()
    finally:
        dist.barrier()


def saves_in_except() -> None:
    try:
        train()
    except ValueError:
        dist.barrier()
        raise


@contextlib.contextmanager
def checkpoint() -> Iterator[None]:
    try:
        yield
    finally:
        dist.barrier()


def saves_in_a_context_manager() -> None:
    with checkpoint():
        train()


class Saving:
    def __enter__(self) -> None:
        pass

    def __exit__(self, *error: object) -> None:
        dist.barrier()


def saves_in_exit() -> None:
    with Saving():
        train()


def leaves_by_exit() -> None:
    try:
        if dist.get_rank() == 1:
            raise SystemExit(0)
        dist.all_reduce(torch.ones(1))
    finally:
        dist.barrier()


def handles_another_while_it_handles() -> None:
    try:
        train()
    except ValueError:
        try:
            raise KeyError("no such file")
        except KeyError:
            pass
        dist.barrier()


WRONG = {
    saves_in_finally: "ValueError: no anchors in batch 1",
    saves_in_except: "ValueError: no anchors in batch 1",
    saves_in_a_context_manager: "ValueError: no anchors in batch 1",
    saves_in_exit: "ValueError: no anchors in batch 1",
    leaves_by_exit: "SystemExit: 0",
    handles_another_while_it_handles: "ValueError: no anchors in batch 1",
}


@each_engine
@pytest.mark.parametrize("program", WRONG, ids=lambda program: program.__name__)
def test_the_error_is_the_cause_and_its_rank_at_fault(program: Any, engine: str) -> None:
    verdict = verdict_of(program, engine)
    assert isinstance(verdict, Mismatch)
    (found,) = verdict.handled
    assert (found.ranks, found.error, found.cause) == ((1,), WRONG[program], True)
    assert verdict.ranks == (1,)
    name = found.error.partition(":")[0]
    assert headline(verdict).startswith(f"rank 1 raised {name} at {found.site}, then called ")


def waits_elsewhere_in_finally() -> None:
    pair = dist.new_group([0, 1])
    try:
        train()
    finally:
        dist.barrier(group=pair)


def receives_in_except() -> None:
    try:
        train()
    except ValueError:
        dist.recv(torch.empty(1), src=0)


@each_engine
@pytest.mark.parametrize("program", [waits_elsewhere_in_finally, receives_in_except])
def test_the_error_is_the_cause_of_a_deadlock(program: Any, engine: str) -> None:
    verdict = verdict_of(program, engine, ranks=3)
    assert isinstance(verdict, Deadlock)
    assert [(each.ranks, each.cause) for each in verdict.handled] == [((1,), True)]
    assert verdict.ranks == (1,)
    assert headline(verdict).startswith("rank 1 raised ValueError at ")


# -- right ones that look alike, and wrong ones for another reason ----------------------------


def falls_back(**more: Any) -> None:
    """Only rank 0 looks for a checkpoint and finds none; its call is that of all."""
    weights = torch.zeros(1)
    try:
        if dist.get_rank() == 0:
            raise FileNotFoundError("last.pt")
        dist.broadcast(weights, src=0)
    except FileNotFoundError:
        dist.broadcast(weights, src=0)


def everybody_in_an_except() -> None:
    try:
        import no_such_accelerator  # noqa: F401
    except ImportError:
        dist.all_reduce(torch.ones(1))


@pytest.mark.parametrize("program", [falls_back, everybody_in_an_except])
def test_a_handler_whose_call_fits_is_right(program: Any) -> None:
    assert_silent(program, ranks=3)


def falls_back_and_one_leaves() -> None:
    if dist.get_rank() < 2:
        falls_back()


@each_engine
def test_a_handler_in_the_call_of_the_others_is_no_cause(engine: str) -> None:
    verdict = verdict_of(falls_back_and_one_leaves, engine, ranks=3)
    assert isinstance(verdict, Deadlock)
    assert not any(each.cause for each in verdict.handled)
    assert verdict.ranks == (2,)
    assert "raised" not in headline(verdict)


def all_in_an_except_and_two_disagree() -> None:
    try:
        import no_such_accelerator  # noqa: F401
    except ImportError:
        dist.all_reduce(torch.ones(1 + dist.get_rank()))


@each_engine
def test_an_error_of_all_ranks_is_a_note(engine: str) -> None:
    verdict = verdict_of(all_in_an_except_and_two_disagree, engine)
    text = "ModuleNotFoundError: No module named 'no_such_accelerator'"
    (found,) = verdict.handled
    assert isinstance(found, HandledError)
    assert (found.ranks, found.error, found.cause) == ((0, 1), text, False)
    assert "raised" not in headline(verdict)


def begins_before_the_error() -> None:
    work = dist.all_reduce(torch.ones(1 + dist.get_rank()), async_op=True)
    try:
        if dist.get_rank() == 1:
            raise ValueError("of no consequence")
    finally:
        assert work is not None
        work.wait()


@each_engine
def test_a_call_made_before_the_error_is_not_put_down_to_it(engine: str) -> None:
    assert not verdict_of(begins_before_the_error, engine).handled


def handled_before() -> None:
    try:
        if dist.get_rank() == 1:
            raise ValueError("over")
    except ValueError:
        pass
    if dist.get_rank() == 1:
        dist.barrier()
    dist.all_reduce(torch.ones(1))


@each_engine
def test_an_error_that_has_been_handled_is_over(engine: str) -> None:
    assert not verdict_of(handled_before, engine).handled
