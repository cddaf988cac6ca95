"""Works that are dropped or never waited for are told at the end of the run, once a line; one
whose result is used is an error there."""

from __future__ import annotations

import gc
import weakref
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.distributed as dist

import phalanx
from phalanx.backend.torch_private import private
from phalanx.model import Finding
from tests.support import assert_silent

pytestmark = pytest.mark.filterwarnings("ignore:.*is deprecated:FutureWarning")


def findings(program: Callable[[], Any], **options: Any) -> list[Finding]:
    """What the run finds; it succeeds all the same."""
    with pytest.warns(phalanx.PhalanxWarning) as caught:
        phalanx.run(program, **{"ranks": 2, **options})
    found = [each.message.finding for each in caught]  # type: ignore[union-attr]
    assert all(isinstance(each, Finding) and each.kind == "unwaited-work" for each in found)
    return found  # type: ignore[return-value]


def reduce_later(size: int = 2) -> Any:
    return dist.all_reduce(torch.ones(size), async_op=True)


def dropped() -> None:
    reduce_later()


def kept() -> Any:
    return reduce_later()


def never_polled_to_the_end() -> None:
    reduce_later().exception()


def coalesced() -> None:
    with private.coalescing_manager(async_ops=True):
        dist.all_reduce(torch.ones(2))
        dist.all_reduce(torch.ones(3))


def sent() -> None:
    peer = 1 - dist.get_rank()
    dist.isend(torch.ones(2), peer)
    dist.recv(torch.empty(2), peer)


def batch() -> None:
    peer = 1 - dist.get_rank()
    sending = dist.P2POp(dist.isend, torch.ones(2), peer)
    receiving = dist.P2POp(dist.irecv, torch.ones(2), peer)
    dist.batch_isend_irecv([sending, receiving])


def barrier() -> None:
    dist.barrier(async_op=True)


def functional() -> None:
    private.functional_collectives().all_reduce(torch.ones(2), "sum", group=dist.group.WORLD)


@pytest.mark.parametrize(
    "program",
    [dropped, kept, never_polled_to_the_end, coalesced, sent, barrier, functional],
    ids=lambda program: program.__name__,
)
def test_one_line(program: Callable[[], Any]) -> None:
    (found,) = findings(program)
    assert found.ranks == (0, 1)
    site = found.blocks[0].op.site
    assert site is not None and site.file.endswith("test_unwaited_work_in_ranks.py")


def test_each_message_of_a_batch_is_told() -> None:
    assert sorted(each.blocks[0].op.name for each in findings(batch)) == ["recv", "send"]


def test_a_loop_that_keeps_the_last_work_only() -> None:
    def program() -> float:
        tensors = [torch.ones(2) for _ in range(5)]
        for tensor in tensors:
            work = dist.all_reduce(tensor, async_op=True)
        work.wait()
        return sum(tensor.sum().item() for tensor in tensors)

    with pytest.raises(phalanx.UnwaitedWorkError) as caught:
        phalanx.run(program, ranks=2)
    assert "used the result of all_reduce" in str(caught.value)


def read_at_once(tensor: torch.Tensor) -> None:
    dist.all_reduce(tensor, async_op=True)
    tensor.sum().item()


def read_in_a_view(tensor: torch.Tensor) -> None:
    dist.all_reduce(tensor, async_op=True)
    tensor.view(-1)[0].item()


def divided(tensor: torch.Tensor) -> None:
    dist.all_reduce(tensor, async_op=True)
    tensor /= 2


def overwritten(tensor: torch.Tensor) -> None:
    dist.all_reduce(tensor, async_op=True)
    tensor.zero_()


def read_after_another_call(tensor: torch.Tensor) -> None:
    dist.all_reduce(tensor, async_op=True)
    dist.all_reduce(torch.ones(1))
    tensor.tolist()


def read_after_a_barrier_elsewhere(tensor: torch.Tensor) -> None:
    other = dist.new_group([0, 1])
    dist.all_reduce(tensor, async_op=True)
    dist.barrier(group=other)
    tensor.tolist()


def gathered(tensor: torch.Tensor) -> None:
    whole = torch.empty(4)
    dist.all_gather_into_tensor(whole, tensor, async_op=True)
    whole.sum()


def received(tensor: torch.Tensor) -> None:
    if dist.get_rank() == 0:
        dist.send(tensor, 1)
    else:
        dist.irecv(tensor, 0)
    dist.barrier()  # which waits for no message
    if dist.get_rank() == 1:
        tensor.tolist()


@pytest.mark.parametrize("seed", [0, 3])
@pytest.mark.parametrize(
    "program",
    [
        read_at_once,
        read_in_a_view,
        divided,
        overwritten,
        read_after_another_call,
        read_after_a_barrier_elsewhere,
        gathered,
        received,
    ],
    ids=lambda program: program.__name__,
)
def test_a_result_that_is_used_is_an_error(program: Callable[..., Any], seed: int) -> None:
    with pytest.raises(phalanx.UnwaitedWorkError) as caught:
        phalanx.run(lambda: program(torch.ones(2)), ranks=2, seed=seed)
    verdict = caught.value.verdict
    assert verdict is not None and verdict.kind == "unwaited-work"
    assert verdict.severity == "error"


def after_a_barrier(tensor: torch.Tensor) -> None:
    dist.all_reduce(tensor, async_op=True)
    dist.barrier()
    tensor /= 2


def after_an_asynchronous_barrier(tensor: torch.Tensor) -> None:
    dist.all_reduce(tensor, async_op=True)
    work = dist.barrier(async_op=True)
    assert work is not None
    work.wait()
    tensor.sum()


def after_the_end_of_its_group(tensor: torch.Tensor) -> None:
    group = dist.new_group([0, 1])
    dist.all_reduce(tensor, group=group, async_op=True)
    dist.destroy_process_group(group)
    tensor.sum()


@pytest.mark.parametrize(
    "program",
    [after_a_barrier, after_an_asynchronous_barrier, after_the_end_of_its_group],
    ids=lambda program: program.__name__,
)
def test_a_result_that_the_backend_has_by_then_is_a_warning(
    program: Callable[..., Any],
) -> None:
    (found,) = findings(lambda: program(torch.ones(2)))
    assert found.severity == "warning"
    assert "after another call on the group" in found.blocks[0].notes[0]


def test_a_line_that_says_so_may_use_its_result() -> None:
    def program() -> None:
        t = torch.ones(2)
        dist.all_reduce(t, async_op=True)  # phalanx: ignore[unwaited-work] t is a guess only
        t.sum()

    assert_silent(program)


def test_without_the_kind_nothing_is_said() -> None:
    assert_silent(lambda: read_at_once(torch.ones(2)), checks="all,-unwaited-work")


def only_dropped() -> None:
    """The tensor is looked at, viewed, sent nowhere, and dropped."""
    tensor = torch.ones(2, 2)
    dist.all_reduce(tensor, async_op=True)
    assert tensor.view(-1).shape == (4,)


def input_read() -> None:
    """What a gather reads may be read."""
    tensor = torch.ones(2)
    dist.all_gather([torch.empty(2) for _ in range(2)], tensor, async_op=True)
    tensor.sum()


@pytest.mark.parametrize("program", [only_dropped, input_read])
def test_a_result_that_nobody_uses_is_a_warning(program: Callable[[], Any]) -> None:
    (found,) = findings(program)
    assert found.severity == "warning" and not found.blocks[0].notes


def test_one_rank_of_three() -> None:
    def program() -> None:
        work = reduce_later()
        if dist.get_rank() != 1:
            work.wait()

    (found,) = findings(program, ranks=3)
    assert found.ranks == (1,)
    assert found.headline.startswith("rank 1 never waited for all_reduce at")


def test_what_nobody_met_is_told_once() -> None:
    def program() -> None:
        if dist.get_rank() == 0:
            reduce_later()

    with pytest.warns(phalanx.PhalanxWarning) as caught:
        phalanx.run(program, ranks=2)
    assert len(caught) == 1


def test_tensors_of_dropped_works_are_let_go() -> None:
    def program() -> int:
        alive = []
        for _ in range(5):
            tensor = torch.ones(1000)
            alive.append(weakref.ref(tensor))
            dist.all_reduce(tensor, async_op=True)
            del tensor
            dist.barrier()
        gc.collect()
        return sum(each() is not None for each in alive)

    with pytest.warns(phalanx.PhalanxWarning):
        counts = phalanx.run(program, ranks=2)
    assert max(counts) <= 1


def poll() -> None:
    work = reduce_later()
    while not work.is_completed():
        pass


def wait_coalesced() -> None:
    with private.coalescing_manager(async_ops=True) as manager:
        dist.all_reduce(torch.ones(2))
    manager.wait()


def functional_used_later() -> None:
    """C++ holds its `Work`; that Python's half is collected means nothing."""
    result = private.functional_collectives().all_reduce(
        torch.ones(2), "sum", group=dist.group.WORLD
    )
    for _ in range(3):
        gc.collect()
        reduce_later().wait()
    assert result.tolist() == [2.0, 2.0]


def many_functional_used_later() -> None:
    all_reduce = private.functional_collectives().all_reduce
    results = [all_reduce(torch.ones(2), "sum", group=dist.group.WORLD) for _ in range(200)]
    assert [each.tolist() for each in results] == [[2.0, 2.0]] * 200


SILENT: dict[str, Callable[[], Any]] = {
    "wait": lambda: reduce_later().wait(),
    "synchronize": lambda: reduce_later().synchronize(),
    "future": lambda: reduce_later().get_future().wait(),
    "then": lambda: reduce_later().get_future().then(lambda done: done.value()),
    "polled": poll,
    "functional": lambda: (
        private.functional_collectives()
        .all_reduce(torch.ones(2), "sum", group=dist.group.WORLD)
        .sum()
    ),
    "functional, later": functional_used_later,
    "functional, many": many_functional_used_later,
    "objects": lambda: dist.broadcast_object_list([dist.get_rank()], 0),
    "gathered": lambda: dist.all_gather_object([None, None], "x"),
    "coalesced": wait_coalesced,
    "monitored": lambda: dist.monitored_barrier(),
}


@pytest.mark.parametrize("program", SILENT.values(), ids=SILENT)
def test_what_was_waited_for_is_silent(program: Callable[[], Any]) -> None:
    assert_silent(program)


def shapes_that_differ() -> None:
    dist.all_reduce(torch.ones(4 + dist.get_rank()), async_op=True)
    dist.barrier()


def operations_that_differ() -> Any:
    t = torch.ones(4)
    first = dist.get_rank() == 0
    return dist.all_reduce(t, async_op=True) if first else dist.broadcast(t, 0, async_op=True)


def messages_that_differ() -> None:
    if dist.get_rank() == 0:
        dist.isend(torch.ones(2), 1)
    else:
        dist.irecv(torch.empty(3), 0)
    dist.barrier()


@pytest.mark.filterwarnings("ignore::phalanx.PhalanxWarning")
@pytest.mark.parametrize(
    "program", [shapes_that_differ, operations_that_differ, messages_that_differ]
)
@pytest.mark.parametrize("seed", [0, 3])
def test_a_mismatch_that_nobody_waits_for_is_the_error_of_the_run(
    program: Callable[[], Any], seed: int
) -> None:
    with pytest.raises(phalanx.CollectiveMismatchError):
        phalanx.run(program, ranks=2, seed=seed)


def heard_of(how: str) -> None:
    work = dist.all_reduce(torch.ones(4 + dist.get_rank()), async_op=True)
    dist.barrier()
    if dist.get_rank() == 0:
        if how == "wait":
            with pytest.raises(phalanx.CollectiveMismatchError):
                work.wait()
        elif how == "future":
            with pytest.raises(phalanx.CollectiveMismatchError):
                work.get_future().wait()
        else:
            assert isinstance(work.exception(), phalanx.CollectiveMismatchError)


@pytest.mark.parametrize("how", ["wait", "future", "exception"])
def test_a_mismatch_that_one_rank_has_heard_of_is_the_programs_business(how: str) -> None:
    with pytest.warns(phalanx.PhalanxWarning, match="unwaited-work"):
        phalanx.run(heard_of, how, ranks=2)


def test_ranks_with_other_tensors_have_blocks_of_their_own() -> None:
    def program() -> None:
        reduce_later()
        size = 2 if dist.get_rank() == 1 else 4
        dist.isend(torch.ones(size), (dist.get_rank() + 1) % 3)
        dist.recv(torch.empty(2 if dist.get_rank() == 2 else 4), (dist.get_rank() - 1) % 3)

    blocks = {each.blocks[0].op.name: each.blocks for each in findings(program, ranks=3)}
    assert [block.ranks for block in blocks["all_reduce"]] == [(0, 1, 2)]
    assert [block.ranks for block in blocks["send"]] == [(0, 2), (1,)]
