"""Every collective against the reference: groups, dtypes, shapes, reductions, aliases.

What a backend would refuse of this is the subject of `test_refusals.py`; here nothing is.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from datetime import timedelta
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed.distributed_c10d import _coalescing_manager

import phalanx
from tests.backend import reference
from tests.backend.cases import (
    CASES,
    FACTOR,
    MOVING,
    REDUCING,
    UNEVEN,
    Case,
    Make,
    Member,
    all_gather_flat,
    reduce_scatter_flat,
)
from tests.backend.teams import TEAMS, Team, warns_if
from tests.support import covering

FLOATS = [torch.float64, torch.float32, torch.float16, torch.bfloat16]
INTEGERS = [torch.int8, torch.int16, torch.int32, torch.int64, torch.uint8]
COMPLEX = [torch.complex64, torch.complex128]
FLOAT8 = [torch.float8_e4m3fn, torch.float8_e5m2]
SIGNED = [*FLOATS, *INTEGERS[:4]]
pytestmark = pytest.mark.usefixtures("no_rules")

LARGE = 1_310_723
"""Elements of 5 MB of float32, and no multiple of the blocks in which it is reduced."""


@pytest.fixture(autouse=True, scope="module")
def one_core() -> Iterator[None]:
    """Several threads per tensor gain nothing here, and lose much on a busy machine."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


def maker(shape: tuple[int, ...] = (2, 3), dtype: torch.dtype = torch.float32) -> Make:
    """Small whole numbers, negative ones among them, so that sums are exact in every dtype."""

    def make(rank: int, index: int) -> Tensor:
        count = torch.Size(shape).numel()
        values = (torch.arange(count) * 3 + 7 * rank + 4 * index) % 11
        values = values % 2 if dtype == torch.bool else values - 5 * (dtype != torch.uint8)
        result = values.to(dtype).reshape(shape)
        return torch.complex(result.real, result.real.flip(0)) if dtype.is_complex else result

    return make


def check(
    case: Case, team: Team, make: Make, *, later: bool = False, op: str = "SUM"
) -> list[Any]:
    """Run one case on one team and compare everything: results, inputs, version counters."""

    def body(group: Any, rank: int) -> Any:
        me = Member(group, rank, team.size, later, op)
        brought = case.bring(make, rank, team.size)
        for tensor in tensors_of(brought):
            me.watch(tensor)
        outputs = case.call(me, brought)
        assert [t._version for t, _ in me.made] == [before for _, before in me.made]
        if not case.in_place:
            assert_same(brought, case.bring(make, rank, team.size))
        return outputs

    with warns_if(case.deprecated):
        results = team.run(body)
    brought = [case.bring(make, rank, team.size) for rank in range(team.size)]
    expected = case.expect([detached(given) for given in brought], op)
    for result, wanted in zip(results, expected, strict=True):
        assert_same(result, wanted)
    return results


def tensors_of(given: Any) -> list[Tensor]:
    if isinstance(given, Tensor):
        return [given]
    return [tensor for item in given for tensor in tensors_of(item)]


def detached(given: Any) -> Any:
    if isinstance(given, Tensor):
        return given.detach()
    return [detached(item) for item in given]


def assert_same(actual: Any, expected: Any) -> None:
    torch.testing.assert_close(comparable(actual), comparable(expected))


def comparable(given: Any) -> Any:
    """Tensors as they are, but float8, which torch cannot compare, as its bytes."""
    if not isinstance(given, Tensor):
        return [comparable(item) for item in given]
    given = given.detach()
    return given.view(torch.uint8) if given.dtype in FLOAT8 else given


@pytest.mark.parametrize("later", [False, True], ids=["sync", "async"])
@pytest.mark.parametrize("team", TEAMS, ids=str)
@pytest.mark.parametrize("case", CASES, ids=str)
def test_every_collective_on_every_group(case: Case, team: Team, later: bool) -> None:
    check(case, team, maker(), later=later)


@pytest.mark.parametrize("seed", [1, 2, 3])
@pytest.mark.parametrize("case", CASES, ids=str)
def test_every_schedule_gives_the_same(case: Case, seed: int) -> None:
    check(case, Team(4, seed=seed), maker(), later=True)


@pytest.mark.parametrize(
    ("case", "dtype"), covering(CASES, [*FLOATS, *INTEGERS, *COMPLEX, torch.bool])
)
def test_every_dtype(case: Case, dtype: torch.dtype) -> None:
    check(case, Team(3), maker(dtype=dtype))


@pytest.mark.parametrize("dtype", FLOAT8, ids=str)
@pytest.mark.parametrize("case", MOVING, ids=str)
def test_float8_is_moved(case: Case, dtype: torch.dtype) -> None:
    check(case, Team(3), maker(dtype=dtype))


REDUCTIONS = [
    *[("AVG", dtype) for dtype in [*SIGNED, *COMPLEX]],
    *[("PREMUL_SUM", dtype) for dtype in [*FLOATS, *COMPLEX]],
    *[(op, t) for op in ("PRODUCT", "MIN", "MAX") for t in [*SIGNED, torch.uint8, torch.bool]],
    *[(op, t) for op in ("BAND", "BOR", "BXOR") for t in [*INTEGERS, torch.bool]],
]


@pytest.mark.parametrize(("case", "reduction"), covering(REDUCING, REDUCTIONS))
def test_every_reduce_operation(case: Case, reduction: tuple[str, torch.dtype]) -> None:
    op, dtype = reduction
    check(case, Team(3), maker(dtype=dtype), op=op)


SHAPES: dict[str, Callable[[], Make]] = {
    "no rows": lambda: maker((0,)),
    "no columns": lambda: maker((2, 0)),
    "zero-dim": lambda: maker(()),
    "one element": lambda: maker((1,)),
    "four dimensions": lambda: maker((2, 1, 3, 2)),
    "transposed": lambda: transposed,
    "every other row": lambda: every_other,
    "channels last": lambda: channels_last,
}


def transposed(rank: int, index: int) -> Tensor:
    return maker((3, 2))(rank, index).t()


def every_other(rank: int, index: int) -> Tensor:
    return maker((4, 3))(rank, index)[::2]


def channels_last(rank: int, index: int) -> Tensor:
    return maker((2, 3, 2, 2))(rank, index).contiguous(memory_format=torch.channels_last)


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("case", [case for case in CASES if case not in UNEVEN], ids=str)
def test_every_shape(case: Case, shape: str) -> None:
    check(case, Team(3), SHAPES[shape](), later=True)


@pytest.mark.parametrize("case", CASES, ids=str)
def test_autograd_does_not_notice(case: Case) -> None:
    """Leaves stay leaves, outputs have no history, and what backward saved stays valid."""

    def body(group: Any, rank: int) -> None:
        leaf = maker()(rank, 0).requires_grad_()
        brought = case.bring(lambda *_: leaf, rank, 3)
        loss = sum((tensor * tensor).sum() for tensor in tensors_of(brought))
        outputs = tensors_of(case.call(Member(group, rank, 3), brought))
        assert case.in_place or not any(output.requires_grad for output in outputs)
        loss.backward()
        assert leaf.is_leaf and leaf.requires_grad and leaf.grad is not None

    with warns_if(case.deprecated):
        Team(3).run(body)


def test_outputs_that_require_grad_are_written() -> None:
    def body(group: Any, rank: int) -> Tensor:
        output = torch.zeros(3, requires_grad=True)
        reduce_scatter_flat(output, torch.arange(9.0))
        return output

    for rank, output in enumerate(Team(3).run(body)):
        assert output.is_leaf
        assert output.tolist() == [9.0 * rank, 9.0 * rank + 3, 9.0 * rank + 6]


@pytest.mark.parametrize("op", ["SUM", "AVG", "PREMUL_SUM"])
@pytest.mark.parametrize("case", REDUCING, ids=str)
def test_large_reductions(case: Case, op: str) -> None:
    count = LARGE if case.in_place else LARGE // 3
    check(case, Team(3), maker((count,)), op=op)


@pytest.mark.parametrize("case", MOVING, ids=str)
def test_large_moves(case: Case) -> None:
    check(case, Team(2), maker((LARGE // 2,)))


def test_large_transposed_all_reduce() -> None:
    make = maker((LARGE // 3, 3))
    check(REDUCING[0], Team(2), lambda rank, index: make(rank, index).t())


SIZES = [*[(team, 5) for team in TEAMS], (Team(3), LARGE // 3)]


@pytest.mark.parametrize("op", ["SUM", "AVG", "MIN", "PREMUL_SUM"])
@pytest.mark.parametrize(("team", "count"), SIZES, ids=str)
def test_reduce_scatter_in_place(team: Team, op: str, count: int) -> None:
    """The output is the caller's own slice of its input."""

    def body(group: Any, rank: int) -> tuple[Tensor, Tensor]:
        given = whole_of(rank, team.size, count)
        output = given[rank * count : (rank + 1) * count]
        me = Member(group, rank, team.size, op=op)
        reduce_scatter_flat(output, given, me.reduce_op, group=group)
        return given, output

    wholes = [whole_of(rank, team.size, count) for rank in range(team.size)]
    expected = reference.reduce_scatter_flat(wholes, op, FACTOR)
    for rank, (given, output) in enumerate(team.run(body)):
        assert_same(output, expected[rank])
        wholes[rank][rank * count : (rank + 1) * count] = expected[rank]
        assert_same(given, wholes[rank])


def whole_of(rank: int, size: int, count: int) -> Tensor:
    return maker((size * count,))(rank, 0)


@pytest.mark.parametrize(("team", "count"), SIZES, ids=str)
def test_all_gather_in_place(team: Team, count: int) -> None:
    """The input is the caller's own slice of the output."""

    def body(group: Any, rank: int) -> Tensor:
        output = torch.full((team.size * count,), -1.0)
        mine = output[rank * count : (rank + 1) * count]
        mine.copy_(maker((count,))(rank, 0))
        all_gather_flat(output, mine, group=group)
        return output

    given = [maker((count,))(rank, 0) for rank in range(team.size)]
    for output in team.run(body):
        assert_same(output, torch.cat(given))


SHARED: dict[str, Callable[[Tensor, int, int], Any]] = {
    "all_reduce": lambda t, rank, size: dist.all_reduce(t),
    "reduce to the first": lambda t, rank, size: dist.reduce(t, dst=0),
    "reduce to the last": lambda t, rank, size: dist.reduce(t, dst=size - 1),
    "reduce_scatter in place": lambda t, rank, size: reduce_scatter_flat(
        t.chunk(size)[rank], t
    ),
    "reduce_scatter of lists": lambda t, rank, size: dist.reduce_scatter(
        t.chunk(size)[rank], list(t.chunk(size))
    ),
}


@pytest.mark.parametrize(
    ("size", "count"), [(1, 12), (2, 12), (3, 12), (4, 12), (3, 12 * 110_000)]
)
@pytest.mark.parametrize("call", SHARED)
def test_one_tensor_shared_by_all_ranks_counts_once_per_rank(
    call: str, size: int, count: int
) -> None:
    """Ranks are threads, so a tensor made outside is one and the same for all of them."""
    shared = torch.arange(count, dtype=torch.float32)
    expected = shared * size
    phalanx.run(lambda: SHARED[call](shared, dist.get_rank(), size), ranks=size)
    assert_same(shared, expected)


def test_one_tensor_shared_by_some_ranks() -> None:
    """Rank 0 has its own; ranks 1 and 2 reduce into the one they share."""
    shared = torch.full((4,), 10.0)

    def body() -> Tensor:
        mine = torch.full((4,), 1.0) if dist.get_rank() == 0 else shared
        dist.all_reduce(mine)
        return mine

    for result in phalanx.run(body, ranks=3):
        assert result.tolist() == [21.0] * 4


def test_a_shared_input_is_moved_and_left_alone() -> None:
    shared = torch.arange(6.0)

    def body() -> list[Tensor]:
        rank = dist.get_rank()
        exchanged, gathered = torch.empty(6), torch.empty(18)
        dist.all_to_all_single(exchanged, shared)
        all_gather_flat(gathered, shared)
        dist.broadcast(shared, src=2)
        scattered = torch.empty(2)
        dist.scatter(scattered, list(shared.chunk(3)) if rank == 1 else None, src=1)
        return [exchanged, gathered, scattered]

    for rank, result in enumerate(phalanx.run(body, ranks=3)):
        mine = torch.arange(6.0)[2 * rank : 2 * rank + 2]
        assert_same(result, [mine.repeat(3), torch.arange(6.0).repeat(3), mine])
    assert shared.tolist() == [0.0, 1.0, 2.0, 3.0, 4.0, 5.0]


@pytest.mark.parametrize("case", [*REDUCING, *MOVING], ids=str)
def test_several_in_flight_at_once(case: Case) -> None:
    """Those around it are waited for in the opposite order."""
    make = maker()

    def body(group: Any, rank: int) -> Any:
        before, after = make(rank, 8), make(rank, 9)
        first = dist.all_reduce(before, group=group, async_op=True)
        result = case.call(Member(group, rank, 3, later=True), case.bring(make, rank, 3))
        last = dist.broadcast(after, src=0, group=group, async_op=True)
        last.wait()
        first.wait()
        assert_same(after, make(0, 9))
        assert_same(before, reference.reduced([make(rank, 8) for rank in range(3)]))
        return result

    expected = case.expect([case.bring(make, rank, 3) for rank in range(3)], "SUM")
    for result, wanted in zip(Team(3).run(body), expected, strict=True):
        assert_same(result, wanted)


@pytest.mark.parametrize("later", [False, True], ids=["sync", "async"])
def test_a_coalescing_manager_with_a_device(later: bool) -> None:
    """The older style, in which the group itself is told where a batch starts and ends."""

    def body(group: Any, rank: int) -> list[Tensor]:
        tensors = [maker()(rank, 0), maker((3,))(rank, 1)]
        device = torch.device("cpu")
        with _coalescing_manager(device=device, async_ops=later) as manager:
            for tensor in tensors:
                dist.all_reduce(tensor)
        manager.wait()
        return tensors

    expected = [
        reference.reduced([maker()(rank, 0) for rank in range(3)]),
        reference.reduced([maker((3,))(rank, 1) for rank in range(3)]),
    ]
    for result in Team(3).run(body):
        assert_same(result, expected)


@pytest.mark.parametrize("later", [False, True], ids=["sync", "async"])
@pytest.mark.parametrize("team", TEAMS, ids=str)
def test_barrier_holds_until_all_have_come(team: Team, later: bool) -> None:
    arrived: list[int] = []

    def body(group: Any, rank: int) -> list[int]:
        arrived.append(rank)
        Member(group, rank, team.size, later).finish(dist.barrier(group=group, async_op=later))
        return sorted(arrived)

    assert team.run(body) == [list(range(team.size))] * team.size


@pytest.mark.parametrize("ranks", [1, 2, 4])
def test_monitored_barrier(ranks: int) -> None:
    arrived: list[int] = []

    def program() -> int:
        arrived.append(dist.get_rank())
        dist.monitored_barrier()
        return len(arrived)

    assert phalanx.run(program, ranks=ranks, backend="gloo") == [ranks] * ranks


def test_monitored_barrier_without_a_rank_is_a_deadlock() -> None:
    """At once: the group's half hour is a limit, and nobody counts on it."""

    def program() -> None:
        if dist.get_rank() != 1:
            dist.monitored_barrier()

    with pytest.raises(phalanx.DeadlockError, match="rank 1"):
        phalanx.run(program, ranks=3, backend="gloo")


def test_monitored_barrier_with_a_timeout_gives_up() -> None:
    def program() -> None:
        if dist.get_rank() == 0:
            with pytest.raises(RuntimeError, match="failed to pass monitoredBarrier"):
                dist.monitored_barrier(timeout=timedelta(minutes=1))

    phalanx.run(program, ranks=2, backend="gloo", clock="virtual")


@pytest.mark.parametrize("op", ["MIN", "MAX", "BAND", "PRODUCT"])
def test_complex_numbers_have_no_order(op: str) -> None:
    def body(group: Any, rank: int) -> None:
        dist.all_reduce(torch.ones(2, dtype=torch.complex64), getattr(dist.ReduceOp, op))

    with pytest.raises(phalanx.RankFailedError, match=r"does not support .* on complex"):
        Team(2).run(body)


# torch 2.11's, also where the checks are on
@pytest.mark.filterwarnings(r"ignore:Sparse invariant checks:UserWarning")
def test_sparse_all_reduce() -> None:
    def body(group: Any, rank: int) -> Tensor:
        sparse = torch.sparse_coo_tensor([[rank, 3]], [1.0, 10.0], (4,), check_invariants=True)
        dist.all_reduce(sparse)
        return sparse

    for result in Team(3).run(body):
        assert result.is_sparse
        assert result.to_dense().tolist() == [1.0, 1.0, 1.0, 30.0]


@pytest.mark.parametrize("dtype", FLOAT8, ids=str)
@pytest.mark.parametrize("op", ["SUM", "AVG", "PRODUCT", "MIN", "MAX"])
def test_narrow_floats_are_reduced_in_wider_ones(op: str, dtype: torch.dtype) -> None:
    def program() -> list[float]:
        tensor = torch.tensor([1.0, 2.0 + dist.get_rank(), -0.5]).to(dtype)
        dist.all_reduce(tensor, getattr(dist.ReduceOp, op))
        return tensor.float().tolist()

    brought = [torch.tensor([1.0, 2.0 + rank, -0.5]) for rank in range(2)]
    expected = reference.reduced(brought, op).to(dtype).float().tolist()
    assert phalanx.run(program, ranks=2) == [expected] * 2


def test_sparse_tensors_are_only_summed() -> None:
    def body(group: Any, rank: int) -> None:
        dist.all_reduce(torch.eye(2).to_sparse(), dist.ReduceOp.MAX)

    with pytest.raises(phalanx.RankFailedError, match="takes SUM only, not MAX"):
        Team(2).run(body)


DEPRECATED = {
    "all_gather_into_tensor": lambda out, given: dist.all_gather_into_tensor(out, given),
    "_all_gather_base": lambda out, given: dist._all_gather_base(out, given),
    "reduce_scatter_tensor": lambda out, given: dist.reduce_scatter_tensor(given, out),
    "_reduce_scatter_base": lambda out, given: dist._reduce_scatter_base(given, out),
}


@pytest.mark.parametrize("name", DEPRECATED)
@pytest.mark.filterwarnings("ignore::FutureWarning")  # torch 2.13's, about these very names
def test_names_of_earlier_torch(name: str) -> None:
    def body(group: Any, rank: int) -> Tensor:
        large, small = torch.full((6,), float(rank + 1)), torch.full((2,), float(rank + 1))
        DEPRECATED[name](large, small)
        return large if "gather" in name else small

    gathered, total = [1.0, 1.0, 2.0, 2.0, 3.0, 3.0], [6.0, 6.0]
    for result in Team(3).run(body):
        assert result.tolist() == (gathered if "gather" in name else total)


def test_an_output_may_lie_in_an_input_that_is_read_later() -> None:
    def program() -> list[Any]:
        rank = dist.get_rank()
        pieces = [torch.tensor([1.0, 2.0]) + 10 * rank, torch.tensor([3.0, 4.0]) + 10 * rank]
        dist.reduce_scatter(pieces[1 - rank], pieces)
        listed = [torch.tensor([0.0 + 10 * rank]), torch.tensor([1.0 + 10 * rank])]
        dist.all_to_all(listed, listed)
        return [pieces[1 - rank].tolist(), [t.item() for t in listed]]

    first, second = phalanx.run(program, ranks=2)
    assert first == [[12.0, 14.0], [0.0, 10.0]]
    assert second == [[16.0, 18.0], [1.0, 11.0]]


def test_ranks_raise_errors_of_their_own_when_a_collective_fails_for_all() -> None:
    def program() -> Exception:
        try:
            dist.all_reduce(torch.ones(2).expand(2, 2).t()[0:1].expand(3, 2))
        except RuntimeError as error:
            return error
        raise AssertionError("torch cannot write to an expanded tensor")

    first, second = phalanx.run(program, ranks=2)
    assert first is not second and str(first) == str(second)
