"""Mistakes that one rank makes alone: named invalid-call, with rank, line, and a way out."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
import torch.distributed as dist

import phalanx
from phalanx.model import Finding, RankFailure
from tests.backend.direct_programs import LIST_TO_ALL
from tests.support import assert_silent

Program = Callable[[], object]


def failed(program: Program, ranks: int = 4, **options: object) -> phalanx.InvalidCallError:
    with pytest.raises(phalanx.InvalidCallError) as caught:
        phalanx.run(program, ranks=ranks, **options)  # type: ignore[arg-type]
    return caught.value


def broadcast_from_nowhere() -> None:
    dist.broadcast(torch.ones(4), src=dist.get_world_size())


def broadcast_from_outside_of_the_group() -> None:
    group = dist.new_group([2, 3])
    if dist.get_rank() >= 2:
        dist.broadcast(torch.ones(4), src=0, group=group)


def broadcast_from_too_high_a_rank_of_the_group() -> None:
    group = dist.new_group([2, 3])
    if dist.get_rank() >= 2:
        dist.broadcast(torch.ones(4), group_src=2, group=group)


def send_to_nowhere() -> None:
    dist.send(torch.ones(4), 7)


def send_to_self() -> None:
    dist.send(torch.ones(4), dist.get_rank())


def list_too_long() -> None:
    size = dist.get_world_size() + 1
    dist.all_gather([torch.zeros(4) for _ in range(size)], torch.ones(4))


def sizes_do_not_add_up() -> None:
    dist.get_rank()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        dist.reduce_scatter_tensor(torch.zeros(3), torch.ones(7))


def splits_do_not_add_up() -> None:
    size = dist.get_world_size()
    dist.all_to_all_single(torch.zeros(size), torch.ones(size), [1] * size, [2] * size)


def no_list_on_the_root() -> None:
    dist.scatter(torch.ones(4), None, src=0)


def unknown_reduce_op_for_the_dtype() -> None:
    dist.all_reduce(torch.ones(4), op=dist.ReduceOp.BXOR)


def outputs_alias() -> None:
    dist.all_gather([torch.zeros(4)] * dist.get_world_size(), torch.ones(4))


def outputs_overlap() -> None:
    size = dist.get_world_size()
    memory = torch.zeros(4 * size)
    dist.all_gather([memory[2 * n : 2 * n + 4] for n in range(size)], torch.ones(4))


def in_place_all_to_all() -> None:
    tensor = torch.ones(4)
    dist.all_to_all_single(tensor, tensor)


def gather_into_another_ranks_part() -> None:
    whole, rank = torch.ones(8), (dist.get_rank() + 1) % 4
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", FutureWarning)
        dist.all_gather_into_tensor(whole, whole[2 * rank : 2 * rank + 2])


def gather_across_two_parts() -> None:
    whole = torch.ones(10)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", FutureWarning)
        dist.all_gather_into_tensor(whole[:8], whole[7:9])


def scatter_a_sum_into_another_place() -> None:
    whole = torch.ones(8)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", FutureWarning)
        dist.reduce_scatter_tensor(whole[1:3], whole)


def scatter_over_another_ranks_part() -> None:
    parts = [torch.zeros(4) for _ in range(dist.get_world_size())]
    root = dist.get_rank() == 0
    dist.scatter(parts[1], parts if root else None, src=0)


def gaps() -> None:
    dist.all_reduce(torch.ones(4, 4)[:, :2])


def destroyed_group() -> None:
    group = dist.new_group()
    dist.destroy_process_group(group)
    dist.all_reduce(torch.ones(4), group=group)


def destroyed_world() -> None:
    dist.destroy_process_group()
    dist.all_reduce(torch.ones(4))


def not_a_tensor() -> None:
    dist.all_reduce([1, 2])  # type: ignore[arg-type]


def cannot_be_sent() -> None:
    dist.broadcast_object_list([lambda: 0], src=0)


ALL = (0, 1, 2, 3)

MISTAKES: list[tuple[Program, tuple[int, ...], str, str]] = [
    (broadcast_from_nowhere, ALL, "broadcast", "rank 4 is not in this group"),
    (broadcast_from_outside_of_the_group, (2, 3), "broadcast", "Global rank 0 is not part of"),
    (broadcast_from_too_high_a_rank_of_the_group, (2, 3), "broadcast", "rank 2 is not in this"),
    (send_to_nowhere, ALL, "send", "rank 7 is not in this group"),
    (send_to_self, ALL, "send", "should not be the same"),
    (list_too_long, ALL, "all_gather", "the output list has 5 tensors"),
    (sizes_do_not_add_up, ALL, "reduce_scatter", "7 elements"),
    (splits_do_not_add_up, ALL, "all_to_all_single", "sum to 8, but dimension 0"),
    (no_list_on_the_root, (0,), "scatter", "must be specified on source rank"),
    (unknown_reduce_op_for_the_dtype, ALL, "all_reduce", "BXOR"),
    (outputs_alias, ALL, "all_gather", "outputs 0 and 1 are the same memory"),
    (outputs_overlap, ALL, "all_gather", "outputs 0 and 1 overlap"),
    (in_place_all_to_all, ALL, "all_to_all_single", "input and output share memory"),
    (gather_into_another_ranks_part, ALL, "all_gather_into_tensor", "share memory"),
    (gather_across_two_parts, ALL, "all_gather_into_tensor", "share memory"),
    (scatter_a_sum_into_another_place, ALL, "reduce_scatter_tensor", "share memory"),
    (scatter_over_another_ranks_part, (0,), "scatter", "shares memory with input 1"),
    (gaps, ALL, "all_reduce", "gaps in memory"),
    (destroyed_group, ALL, "all_reduce", 'group "group 1" has been destroyed'),
    (destroyed_world, ALL, "all_reduce", "the default group has been destroyed"),
    (not_a_tensor, ALL, "all_reduce", "Expected parameter `tensor`"),
    (cannot_be_sent, (0,), "broadcast_object_list", "Can't pickle"),
]


@pytest.mark.parametrize(
    ("program", "ranks", "name", "told"), MISTAKES, ids=[case[0].__name__ for case in MISTAKES]
)
def test_a_mistake_names_kind_ranks_call_and_line(
    program: Program, ranks: tuple[int, ...], name: str, told: str
) -> None:
    error = failed(program)
    verdict = error.verdict
    assert isinstance(verdict, RankFailure)
    assert (verdict.kind, verdict.ranks) == ("invalid-call", ranks)
    finding = verdict.calls[ranks[0]]
    (block,) = finding.blocks
    assert block.op.name.startswith(name)
    assert told.lower() in " ".join(block.notes).lower()
    site = block.op.site
    assert site is not None and site.function == program.__name__
    assert site.file.endswith(Path(__file__).name)
    assert "called" in str(error).splitlines()[0] and "wrongly" in str(error).splitlines()[0]
    assert all(len(line) <= 88 for line in str(error).splitlines()[1:] if "/" not in line)


def test_hints_tell_ranks_of_the_world_from_ranks_of_the_group() -> None:
    text = " ".join(str(failed(broadcast_from_outside_of_the_group)).split())
    assert "rank 0 of the group is rank 2 of the world: write group_src=0 or src=2" in text
    text = " ".join(str(failed(broadcast_from_too_high_a_rank_of_the_group)).split())
    assert "rank 2 of the world is its rank 0: write src=2 or group_src=0" in text


def test_only_the_rank_at_fault_is_named() -> None:
    def program() -> None:
        dist.broadcast(torch.ones(4), src=9 if dist.get_rank() == 1 else 0)

    error = failed(program)
    assert error.verdict is not None and error.verdict.ranks == (1,)
    headline = str(error).splitlines()[0]
    assert headline.startswith("rank 1 called broadcast wrongly: rank 9 is not in this group")
    assert "stopped" in str(error)


def test_it_is_an_error_of_torchs_kind_and_of_a_failed_rank() -> None:
    error = failed(broadcast_from_nowhere)
    assert isinstance(error, phalanx.RankFailedError)
    assert set(error.failures) == {0, 1, 2, 3}
    inner = error.failures[0]
    assert isinstance(inner, (phalanx.InvalidCallError, RuntimeError, ValueError))


def test_a_program_that_catches_it_finds_its_verdict_and_goes_on() -> None:
    def program() -> tuple[str, tuple[int, ...]]:
        try:
            dist.broadcast(torch.ones(1), src=5)
        except RuntimeError as error:
            finding = error.verdict  # type: ignore[attr-defined]
            assert isinstance(finding, Finding)
            return finding.kind, finding.ranks
        raise AssertionError("nothing was raised")

    found = phalanx.run(program, ranks=2)
    assert found == [("invalid-call", (0,)), ("invalid-call", (1,))]


def test_errors_of_the_programs_own_are_none() -> None:
    class Odd:
        def __reduce__(self) -> str:
            raise ValueError("not today")

    def pickles() -> None:
        dist.broadcast_object_list([Odd()], src=0)

    def raises() -> None:
        raise ValueError("bad batch")

    for program in (pickles, raises):
        with pytest.raises(phalanx.RankFailedError) as caught:
            phalanx.run(program, ranks=2)
        assert not isinstance(caught.value, phalanx.InvalidCallError)
        assert caught.value.verdict is not None and caught.value.verdict.kind == "rank-failed"


# -- on a group that the rank is not in ------------------------------------------------------


@pytest.mark.filterwarnings("ignore:Running")
def test_calls_on_a_foreign_group_are_a_warning_once() -> None:
    def program() -> None:
        group = dist.new_group([2, 3])
        for _ in range(3):
            dist.all_reduce(torch.ones(4), group=group)

    with phalanx.World(ranks=4) as world:
        with pytest.warns(phalanx.PhalanxWarning, match="that they are not in; nothing was"):
            world.run(program)
        (finding,) = world.findings
    assert (finding.kind, finding.severity, finding.ranks) == (
        "invalid-call",
        "warning",
        (0, 1),
    )


def test_torchs_own_warning_keeps_its_place() -> None:
    def program() -> None:
        group = dist.new_group([1])
        dist.barrier(group=group)

    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        phalanx.run(program, ranks=2)
    own = [each for each in told if "does not belong" in str(each.message)]
    assert [Path(each.filename).name for each in own] == ["distributed_c10d.py"]


# -- what must stay silent ------------------------------------------------------------------


def views_of_one_buffer() -> None:
    size, rank = dist.get_world_size(), dist.get_rank()
    memory = torch.zeros(4 * size)
    dist.all_gather(list(memory.chunk(size)), torch.full((4,), float(rank)))
    assert memory.tolist() == [float(n) for n in range(size) for _ in range(4)]


def in_place_gather() -> None:
    size, rank = dist.get_world_size(), dist.get_rank()
    memory = torch.zeros(2 * size)
    memory[2 * rank : 2 * rank + 2] = rank
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        dist.all_gather_into_tensor(memory, memory[2 * rank : 2 * rank + 2])
    parts = list(memory.chunk(size))
    dist.all_gather(parts, parts[rank])
    assert memory.tolist() == [float(n) for n in range(size) for _ in range(2)]


def gather_what_lies_in_another_output() -> None:
    """Backends copy the input, or write to the outputs last."""
    size, rank = dist.get_world_size(), dist.get_rank()
    memory = torch.arange(2.0 * size) + 100 * rank
    parts, at = list(memory.chunk(size)), (rank + 1) % size
    dist.all_gather(parts, parts[at])
    expected = [torch.arange(2.0) + 100 * n + 2 * ((n + 1) % size) for n in range(size)]
    assert memory.tolist() == torch.cat(expected).tolist()
    dist.gather(parts[at], parts if rank == 1 else None, dst=1)


def in_place_on_the_root() -> None:
    size, rank = dist.get_world_size(), dist.get_rank()
    parts = [torch.full((2,), float(n)) for n in range(size)]
    own = parts[rank]
    dist.gather(own, parts if rank == 1 else None, dst=1)
    dist.scatter(own, parts if rank == 1 else None, src=1)
    assert own.tolist() == [float(rank)] * 2


def empty_outputs() -> None:
    dist.all_gather([torch.zeros(0)] * dist.get_world_size(), torch.zeros(0))


def one_input_for_all() -> None:
    size = dist.get_world_size()
    if LIST_TO_ALL:
        dist.all_to_all([torch.zeros(2) for _ in range(size)], [torch.ones(2)] * size)


def alone() -> None:
    group = dist.new_group([dist.get_rank()], use_local_synchronization=True)
    tensor = torch.ones(2)
    dist.all_gather([tensor], tensor, group=group)


SILENT = [
    views_of_one_buffer,
    in_place_gather,
    gather_what_lies_in_another_output,
    in_place_on_the_root,
    empty_outputs,
    one_input_for_all,
    alone,
]


@pytest.mark.parametrize("program", SILENT, ids=lambda program: program.__name__)
def test_legal_uses_of_memory_are_silent(program: Program) -> None:
    assert_silent(program, ranks=3)


def test_elements_in_another_order_are_a_mismatch() -> None:
    """All ranks' arguments are right by themselves, so nobody's call is invalid."""

    def program() -> None:
        tensor = torch.ones(2, 3, 4, 4)
        if dist.get_rank() == 1:
            tensor = tensor.to(memory_format=torch.channels_last)
        dist.all_reduce(tensor)

    with pytest.raises(phalanx.CollectiveMismatchError) as caught:
        phalanx.run(program, ranks=3)
    verdict = caught.value.verdict
    assert verdict is not None
    assert (verdict.ranks, verdict.differs) == ((1,), ("memory layout",))


def test_what_scatter_writes_is_not_counted_among_its_chunks() -> None:
    def program() -> None:
        chunks = [torch.ones(2)] * 4 if dist.get_rank() == 0 else None
        dist.scatter(torch.empty(2), chunks, src=0)

    with pytest.raises(phalanx.InvalidCallError) as caught:
        phalanx.run(program, ranks=3, backend="gloo")
    assert "scatter(src=0)  4 x float32[2] -> float32[2]  cpu" in str(caught.value)
