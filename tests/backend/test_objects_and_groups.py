"""Objects, groups, meshes, initialising again, functional collectives, and what is refused."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.distributed as dist
import torch.distributed._functional_collectives as functional
from torch import Tensor
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh

import phalanx
from tests.backend.cases import all_gather_flat, reduce_scatter_flat
from tests.backend.teams import TEAMS, Team

OBJECTS = [{"rank": 0}, ("one", 1), None, torch.arange(3)]


def total(value: float, group: Any = None) -> float:
    tensor = torch.tensor(float(value))
    dist.all_reduce(tensor, group=group)
    return tensor.item()


def same(a: Any, b: Any) -> bool:
    return torch.equal(a, b) if isinstance(a, Tensor) else a == b


# -- objects ------------------------------------------------------------------------------


def gather_everywhere(group: Any, rank: int, size: int) -> list[Any]:
    found: list[Any] = [0] * size
    dist.all_gather_object(found, OBJECTS[rank], group=group)
    return found


def gather_at_last(group: Any, rank: int, size: int) -> list[Any] | None:
    found = [0] * size if rank == size - 1 else None
    dist.gather_object(OBJECTS[rank], found, group=group, group_dst=size - 1)
    return found


def broadcast_from_last(group: Any, rank: int, size: int) -> list[Any]:
    given = OBJECTS[:size] if rank == size - 1 else [0] * size
    dist.broadcast_object_list(given, group=group, group_src=size - 1)
    return given


def scatter_from_last(group: Any, rank: int, size: int) -> list[Any]:
    found: list[Any] = [0]
    given = OBJECTS[:size] if rank == size - 1 else None
    dist.scatter_object_list(found, given, group=group, group_src=size - 1)
    return found


OBJECT_CASES: dict[Callable[..., Any], Callable[[int, int], Any]] = {
    gather_everywhere: lambda rank, size: OBJECTS[:size],
    gather_at_last: lambda rank, size: OBJECTS[:size] if rank == size - 1 else None,
    broadcast_from_last: lambda rank, size: OBJECTS[:size],
    scatter_from_last: lambda rank, size: [OBJECTS[rank]],
}


@pytest.mark.parametrize("team", TEAMS, ids=str)
@pytest.mark.parametrize("call", OBJECT_CASES, ids=lambda call: call.__name__)
def test_objects(call: Callable[..., Any], team: Team) -> None:
    results = team.run(lambda group, rank: call(group, rank, team.size))
    for rank, result in enumerate(results):
        expected = OBJECT_CASES[call](rank, team.size)
        if expected is None:
            assert result is None
        else:
            assert all(map(same, result, expected)) and len(result) == len(expected)


def test_objects_are_copies() -> None:
    def program() -> list[int]:
        mine, found = [dist.get_rank()], [None, None]
        dist.all_gather_object(found, mine)
        for other in found:
            other.append(9)
        return mine

    assert phalanx.run(program, ranks=2) == [[0], [1]]


def test_an_object_that_does_not_pickle() -> None:
    def program() -> None:
        with pytest.raises(TypeError, match="pickle"):
            dist.all_gather_object([None, None], threading.Lock())
        dist.barrier()

    phalanx.run(program, ranks=2)


# -- groups -------------------------------------------------------------------------------


def test_members_and_others_of_a_new_group() -> None:
    def program() -> Any:
        rank = dist.get_rank()
        group = dist.new_group([3, 1])
        if rank not in (1, 3):
            assert group == dist.GroupMember.NON_GROUP_MEMBER
            assert dist.get_rank(group) == -1
            return None
        assert dist.get_process_group_ranks(group) == [1, 3]
        assert dist.get_group_rank(group, 3) == 1
        assert dist.get_global_rank(group, 0) == 1
        assert dist.get_world_size(group) == group.size() == 2
        return dist.get_rank(group), total(rank, group)

    assert phalanx.run(program, ranks=4) == [None, (0, 4.0), None, (1, 4.0)]


def test_others_are_warned_and_pass() -> None:
    def program() -> None:
        group = dist.new_group([0])
        if dist.get_rank() == 1:
            with pytest.warns(UserWarning, match="does not belong to"):
                dist.all_reduce(torch.ones(1), group=group)

    with pytest.warns(phalanx.PhalanxWarning, match="on a group that it is not in"):
        phalanx.run(program, ranks=2)


def test_overlapping_groups_do_not_mix() -> None:
    """Rank 1 is in all of them and uses them in another order than the others."""

    def program() -> list[float]:
        groups = [dist.new_group(ranks) for ranks in ([0, 1], [1, 2], [0, 1, 2])]
        order = [(0, 2), (2, 0, 1), (1, 2)][dist.get_rank()]
        works = {}
        for index in order:
            tensor = torch.tensor(10.0**index)
            works[index] = (dist.all_reduce(tensor, group=groups[index], async_op=True), tensor)
        for work, _ in reversed(works.values()):
            work.wait()
        return [works[index][1].item() for index in sorted(works)]

    assert phalanx.run(program, ranks=3) == [[2.0, 300.0], [2.0, 20.0, 300.0], [20.0, 300.0]]


def test_two_groups_of_the_same_ranks_are_two() -> None:
    def program() -> tuple[float, float]:
        first, second = dist.new_group([0, 1]), dist.new_group([0, 1])
        a, b = torch.tensor(1.0), torch.tensor(10.0)
        order = [(first, a), (second, b)]
        if dist.get_rank() == 1:
            order.reverse()
        for work in [dist.all_reduce(t, group=g, async_op=True) for g, t in order]:
            work.wait()
        return a.item(), b.item()

    assert phalanx.run(program, ranks=2) == [(2.0, 20.0)] * 2


def test_new_subgroups() -> None:
    def program() -> Any:
        mine, every = dist.new_subgroups(2)
        return total(dist.get_rank(), mine), len(every)

    assert phalanx.run(program, ranks=4) == [(1.0, 2), (1.0, 2), (5.0, 2), (5.0, 2)]


def test_new_subgroups_by_enumeration() -> None:
    def program() -> float:
        mine, _ = dist.new_subgroups_by_enumeration([[0, 3], [1, 2]])
        return total(10 ** dist.get_rank(), mine)

    assert phalanx.run(program, ranks=4) == [1001.0, 110.0, 110.0, 1001.0]


def test_local_synchronization_needs_only_the_members() -> None:
    def program() -> float | None:
        if dist.get_rank() == 0:
            return None
        group = dist.new_group([1, 2], use_local_synchronization=True)
        return total(dist.get_rank(), group)

    assert phalanx.run(program, ranks=3) == [None, 3.0, 3.0]


def test_group_descriptions() -> None:
    def program() -> str:
        return dist.new_group([0, 1], group_desc="pair").group_desc

    assert phalanx.run(program, ranks=2) == ["pair", "pair"]


@pytest.mark.parametrize("backend", [None, "gloo"])
def test_the_backend_has_its_usual_name(backend: str | None) -> None:
    def program() -> Any:
        group = dist.new_group([0, 1], backend="gloo")
        config = dist.get_backend_config()
        return dist.get_backend(), dist.get_backend(group), "cpu:gloo" in config

    assert phalanx.run(program, ranks=2, backend=backend)[0][1:] == ("gloo", True)
    if backend:
        assert phalanx.run(dist.get_backend, ranks=2, backend=backend) == ["gloo", "gloo"]


def test_the_methods_of_a_group_called_directly() -> None:
    """As C++ extensions and older programs do."""

    def program() -> Any:
        group, rank = dist.group.WORLD, dist.get_rank()
        tensor = torch.tensor([float(rank)])
        group.allreduce([tensor]).wait()
        gathered = [[torch.zeros(1), torch.zeros(1)]]
        group.allgather(gathered, [tensor + rank]).wait()
        group.barrier().wait()
        group.broadcast(tensor, 1).wait()
        return tensor.item(), [t.item() for t in gathered[0]]

    assert phalanx.run(program, ranks=2) == [(1.0, [1.0, 2.0])] * 2


# -- meshes -------------------------------------------------------------------------------


def test_a_mesh_of_one_dimension() -> None:
    def program() -> Any:
        mesh = init_device_mesh("cpu", (4,), mesh_dim_names=("data",))
        return mesh.get_local_rank(), total(1, mesh.get_group()), mesh["data"].size()

    assert phalanx.run(program, ranks=4) == [(rank, 4.0, 4) for rank in range(4)]


def test_a_mesh_of_two_dimensions() -> None:
    def program() -> Any:
        mesh = init_device_mesh("cpu", (2, 3), mesh_dim_names=("data", "model"))
        rank = dist.get_rank()
        return (
            tuple(mesh.get_coordinate()),
            total(rank, mesh.get_group("data")),
            total(rank, mesh["model"].get_group()),
        )

    results = phalanx.run(program, ranks=6)
    rows, columns = [3.0, 12.0], [3.0, 5.0, 7.0]
    for rank, result in enumerate(results):
        row, column = divmod(rank, 3)
        assert result == ((row, column), columns[column], rows[row])


def test_a_mesh_of_three_dimensions_sliced_and_flattened() -> None:
    def program() -> Any:
        mesh = init_device_mesh("cpu", (2, 2, 2), mesh_dim_names=("pp", "dp", "tp"))
        rank = dist.get_rank()
        plane = mesh["dp", "tp"]
        flat = plane._flatten("both")
        return (
            total(rank, mesh.get_group("pp")),
            plane.mesh.flatten().tolist(),
            total(rank, flat.get_group()),
            flat.get_local_rank(),
        )

    for rank, result in enumerate(phalanx.run(program, ranks=8)):
        half = rank // 4
        assert result[0] == 2 * (rank % 4) + 4
        assert result[1] == [4 * half + n for n in range(4)]
        assert result[2:] == (sum(result[1]), rank % 4)


def test_a_mesh_of_ranks_by_hand() -> None:
    def program() -> float:
        mesh = DeviceMesh("cpu", [[3, 1], [0, 2]], mesh_dim_names=("a", "b"))
        return total(10 ** dist.get_rank(), mesh.get_group("b"))

    assert phalanx.run(program, ranks=4) == [101.0, 1010.0, 101.0, 1010.0]


# -- the life of a group ------------------------------------------------------------------


def test_destroy_and_initialise_again() -> None:
    def program() -> list[float]:
        found = []
        for turn in range(3):
            dist.init_process_group("gloo")
            pair = dist.new_group([0, 2])
            found.append(total(10**turn))
            if pair != dist.GroupMember.NON_GROUP_MEMBER:
                found.append(total(1, pair))
            dist.destroy_process_group()
            assert not dist.is_initialized()
        return found

    whole = [3.0, 30.0, 300.0]
    pair = [3.0, 2.0, 30.0, 2.0, 300.0, 2.0]
    assert phalanx.run(program, ranks=3, init=False) == [pair, whole, pair]


def test_a_destroyed_group_is_refused() -> None:
    def program() -> None:
        group = dist.new_group([0, 1])
        dist.destroy_process_group(group)
        with pytest.raises(ValueError, match=r"all_reduce: group .* has been destroyed"):
            group.allreduce([torch.ones(1)])
        with pytest.raises(ValueError, match="is not initialized"):
            dist.all_reduce(torch.ones(1), group=group)
        assert total(1) == 2.0

    phalanx.run(program, ranks=2)


def test_nothing_is_left_after_the_last_group() -> None:
    def program() -> None:
        dist.destroy_process_group()
        with pytest.raises(ValueError, match="has not been initialized"):
            dist.all_reduce(torch.ones(1))

    phalanx.run(program, ranks=2)
    assert not dist.is_initialized()


def test_another_ranks_end_of_a_group_is_as_good_as_ones_own() -> None:
    """torch binds `group.WORLD` as a default argument when some rank imports a module."""
    ends: dict[int, Any] = {}

    def program() -> list[Any]:
        rank = dist.get_rank()
        ends[rank] = dist.group.WORLD
        dist.barrier()
        other = ends[1 - rank]
        tensor, gathered = torch.tensor(1.0 + rank), [torch.zeros(()) for _ in range(2)]
        dist.all_reduce(tensor, group=other)
        dist.gather(tensor, gathered if rank == 0 else None, dst=0, group=other)
        return [tensor.item(), other.rank(), dist.get_rank(other), other == ends[rank]]

    assert phalanx.run(program, ranks=2) == [[3.0, 0, 0, True], [3.0, 1, 1, True]]


def test_the_end_of_a_group_one_is_not_in_is_refused() -> None:
    ends: list[Any] = []

    def program() -> None:
        group = dist.new_group([0])
        if dist.get_rank() == 0:
            ends.append(group)
        dist.barrier()
        if dist.get_rank() == 1:
            with pytest.raises(RuntimeError, match="rank 1 uses rank 0's end of a group"):
                ends[0].allreduce([torch.ones(1)])

    phalanx.run(program, ranks=2)


def test_a_group_is_of_no_use_outside_its_run() -> None:
    ends: list[Any] = []

    def program() -> None:
        ends.append(dist.group.WORLD)

    phalanx.run(program, ranks=1)
    with pytest.raises((RuntimeError, ValueError), match=r"no rank of this run|destroyed"):
        ends[0].allreduce([torch.ones(1)])


# -- functional collectives ---------------------------------------------------------------


# torch before 2.13 has only the names that 2.13 warns about.
all_gather_functional = getattr(functional, "all_gather_single", functional.all_gather_tensor)
reduce_scatter_functional = getattr(
    functional, "reduce_scatter_single", functional.reduce_scatter_tensor
)


FUNCTIONAL: dict[str, tuple[Callable[[Tensor], Any], Callable[[int], Any]]] = {
    "all_reduce": (
        lambda t: functional.all_reduce(t, "sum", dist.group.WORLD),
        lambda rank: [3.0, 33.0],
    ),
    "all_reduce max": (
        lambda t: functional.all_reduce(t, "max", dist.group.WORLD),
        lambda rank: [2.0, 12.0],
    ),
    "broadcast": (
        lambda t: functional.broadcast(t, 2, dist.group.WORLD),
        lambda rank: [2.0, 12.0],
    ),
    "all_gather": (
        lambda t: all_gather_functional(t, 0, dist.group.WORLD),
        lambda rank: [0.0, 10.0, 1.0, 11.0, 2.0, 12.0],
    ),
    "reduce_scatter": (
        lambda t: reduce_scatter_functional(t.repeat(3), "sum", 0, dist.group.WORLD),
        lambda rank: [3.0, 33.0],
    ),
    "all_to_all": (
        lambda t: functional.all_to_all_single(
            t.repeat(3), [2, 2, 2], [2, 2, 2], dist.group.WORLD
        ),
        lambda rank: [0.0, 10.0, 1.0, 11.0, 2.0, 12.0],
    ),
    "all_reduce_coalesced": (
        lambda t: torch.cat(functional.all_reduce_coalesced([t, t], "sum", dist.group.WORLD)),
        lambda rank: [3.0, 33.0, 3.0, 33.0],
    ),
}


@pytest.mark.parametrize("name", FUNCTIONAL)
def test_functional_collectives(name: str) -> None:
    call, expected = FUNCTIONAL[name]

    def program() -> list[float]:
        rank = float(dist.get_rank())
        given = torch.tensor([rank, rank + 10])
        result = functional.wait_tensor(call(given)).tolist()
        assert given.tolist() == [rank, rank + 10]
        return result

    assert phalanx.run(program, ranks=3) == [expected(rank) for rank in range(3)]


def test_functional_collectives_on_a_mesh_dimension() -> None:
    def program() -> float:
        mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("a", "b"))
        given = torch.tensor([float(dist.get_rank())])
        return functional.all_reduce(given, "sum", mesh["b"].get_group()).item()

    assert phalanx.run(program, ranks=4) == [1.0, 1.0, 5.0, 5.0]


# -- what is refused ----------------------------------------------------------------------

ONE, TWO, SIX = torch.ones(1), torch.ones(2), torch.ones(6)

REFUSED: dict[str, tuple[Callable[[], Any], str]] = {
    "root of broadcast": (
        lambda: dist.broadcast(ONE, src=7),
        r"broadcast: rank 7 is not in this group, which has ranks 0\.\.2",
    ),
    "root of reduce": (lambda: dist.reduce(ONE, dst=-1), "reduce: rank -1 is not in"),
    "root of gather": (lambda: dist.gather(ONE, dst=3), "gather: rank 3 is not in"),
    "root of scatter": (lambda: dist.scatter(ONE, src=3), "scatter: rank 3 is not in"),
    "group root": (
        lambda: dist.broadcast(ONE, group_src=5),
        "broadcast: rank 5 is not in this group",
    ),
    "short list for all_gather": (
        lambda: dist.all_gather([ONE, ONE], ONE),
        "all_gather: the output list has 2 tensors, but the group has 3 ranks",
    ),
    "long list for reduce_scatter": (
        lambda: dist.reduce_scatter(ONE, [ONE] * 4),
        "reduce_scatter: the input list has 4 tensors, but the group has 3 ranks",
    ),
    "short list for all_to_all": (
        lambda: dist.all_to_all([ONE] * 3, [ONE] * 2),
        "all_to_all: input_tensor_list has 2 tensors, but the group has 3 ranks",
    ),
    "short output list for all_to_all": (
        lambda: dist.all_to_all([ONE] * 2, [ONE] * 3),
        "all_to_all: output_tensor_list has 2 tensors, but the group has 3 ranks",
    ),
    "wrong size of a scattered piece": (
        lambda: dist.reduce_scatter(TWO, [ONE] * 3),
        "reduce_scatter: the output has 2 elements, but input 0 has 1",
    ),
    "output of all_gather_into_tensor": (
        lambda: all_gather_flat(SIX, ONE),
        "all_gather_into_tensor: the larger tensor has 6 elements; .* must have 3",
    ),
    "input of reduce_scatter_tensor": (
        lambda: reduce_scatter_flat(ONE, SIX),
        "reduce_scatter_tensor: the larger tensor has 6 elements; .* must have 3",
    ),
    "a list from everyone": (
        lambda: dist.group.WORLD.gather([ONE] * 3, ONE, root=2),
        "gather: only the root .* gives gather_list",
    ),
    "two tensors to reduce": (
        lambda: dist.group.WORLD.reduce([ONE, ONE]),
        "reduce: takes one tensor from each rank, not 2",
    ),
    "no tensor": (
        lambda: dist.group.WORLD.allreduce([]),
        "all_reduce: the list of tensors is empty",
    ),
    "several dtypes": (
        lambda: dist.group.WORLD.allreduce_coalesced([ONE, ONE.int()]),
        "all_reduce_coalesced: all tensors must have one dtype",
    ),
    "a negative tag": (lambda: dist.send(ONE, dst=1, tag=-1), "send: tag -1 is negative"),
}
REFUSED_SPLITS: dict[str, tuple[Callable[[], Any], str]] = {
    "rows that do not divide": (
        lambda: dist.all_to_all_single(torch.ones(4), torch.ones(4)),
        "4 elements do not divide among 3 ranks; give input_split_sizes",
    ),
    "number of splits": (
        lambda: dist.all_to_all_single(torch.ones(4), torch.ones(4), [2, 2], [1, 1, 2]),
        "output_split_sizes has 2 entries for 3 ranks",
    ),
    "sum of splits": (
        lambda: dist.all_to_all_single(torch.ones(4), torch.ones(4), [1, 1, 2], [1, 1, 1]),
        r"input_split_sizes \[1, 1, 1\] sum to 3, but dimension 0 of the input has 4 rows",
    ),
    "rows of different size": (
        lambda: dist.all_to_all_single(torch.ones(3, 2), torch.ones(3, 4), [1] * 3, [1] * 3),
        "a row of the input has 4 elements, a row of the output 2",
    ),
    "different sizes": (
        lambda: dist.all_to_all_single(torch.ones(3, 2), torch.ones(3, 4)),
        "the input has 12 elements and the output 6; without split sizes",
    ),
    "a negative split": (
        lambda: dist.all_to_all_single(torch.ones(3), torch.ones(3), [1] * 3, [3, -1, 1]),
        r"input_split_sizes \[3, -1, 1\] has a negative one",
    ),
    "splits as a tensor": (
        lambda: dist.all_to_all_single(torch.ones(3), torch.ones(3), torch.ones(3, dtype=int)),
        "output_split_sizes is a tensor; give a list of whole numbers",
    ),
    "splits of a number": (
        lambda: dist.all_to_all_single(torch.tensor(1.0), torch.tensor(1.0)),
        "all_to_all_single: 1 elements do not divide among 3 ranks",
    ),
}


@pytest.mark.parametrize("what", [*REFUSED, *REFUSED_SPLITS])
def test_wrong_arguments_are_refused_at_the_caller(what: str) -> None:
    """On every rank alone: nobody waits for the others, and the group stays usable."""
    call, text = {**REFUSED, **REFUSED_SPLITS}[what]

    def program() -> float:
        if dist.get_rank() == 0:
            with pytest.raises(ValueError, match=text) as caught:
                call()
            assert isinstance(caught.value, RuntimeError)  # as on Gloo, for most of them
        return total(1)

    assert phalanx.run(program, ranks=3) == [3.0] * 3


def test_lists_that_only_the_root_gives() -> None:
    def program() -> float:
        if dist.get_rank() == 0:
            with pytest.raises(ValueError, match="gather_list has 2 tensors"):
                dist.gather(ONE, [ONE, ONE], dst=0)
            with pytest.raises(ValueError, match="scatter_list has 2 tensors"):
                dist.scatter(ONE, [ONE, ONE], src=0)
            with pytest.raises(ValueError, match=r"gather_list\[0\] has 2 elements, but .* 1"):
                dist.gather(ONE, [TWO, TWO, TWO], dst=0)
        return total(1)

    assert phalanx.run(program, ranks=3) == [3.0] * 3


def test_different_dtypes_of_input_and_output() -> None:
    def program() -> float:
        with pytest.raises(ValueError, match=r"output is torch\.float32 and"):
            all_gather_flat(torch.ones(2), torch.ones(1, dtype=torch.int64))
        return total(1)

    assert phalanx.run(program, ranks=2) == [2.0] * 2


def test_a_place_in_a_group_is_taken_once() -> None:
    def program() -> None:
        dist.init_process_group("gloo", store=store, rank=0, world_size=2)

    store = dist.HashStore()
    with pytest.raises(phalanx.RankFailedError, match="ranks 0 and 1 of this run both call"):
        phalanx.run(program, ranks=2, init=False)


def test_some_ranks_make_a_smaller_world_before_all_make_theirs() -> None:
    def program() -> list[float]:
        rank, found = int(os.environ["RANK"]), []
        if rank < 2:
            dist.init_process_group("gloo", rank=rank, world_size=2)
            found.append(total(1))
            dist.destroy_process_group()
        dist.init_process_group("gloo")
        return [*found, total(1)]

    assert phalanx.run(program, ranks=3, init=False) == [[2.0, 3.0], [2.0, 3.0], [3.0]]


def test_reports_name_ranks_of_the_run_where_a_program_numbers_them_otherwise() -> None:
    def program() -> None:
        rank = int(os.environ["RANK"])
        dist.init_process_group("gloo", rank=1 - rank, world_size=2)
        if rank == 1:
            dist.barrier()

    with pytest.raises(phalanx.DeadlockError, match="rank 0 returned; rank 1 waits for it"):
        phalanx.run(program, ranks=2, init=False)


def test_a_coalesced_work_speaks_for_all_its_parts() -> None:
    def program() -> list[Any]:
        group = dist.group.WORLD
        tensors = [torch.ones(1), torch.ones(2)]
        group._start_coalescing(torch.device("cpu"))
        for tensor in tensors:
            group.allreduce([tensor])
        work = group._end_coalescing(torch.device("cpu"))
        before = work.is_success()
        value = work.get_future().wait()
        return [before, [t.tolist() for t in value], work.is_success(), work.exception()]

    # Who asks lets the others run, so that all have come when the first one hears.
    assert phalanx.run(program, ranks=2) == [[True, [[2.0], [2.0, 2.0]], True, None]] * 2


def test_a_mismatch_inside_a_collective_of_objects_says_so() -> None:
    def program() -> None:
        objects = [1] * (1 + dist.get_rank())
        dist.broadcast_object_list(objects, src=0)

    with pytest.raises(phalanx.CollectiveMismatchError) as caught:
        phalanx.run(program, ranks=2)
    told = "inside broadcast_object_list: the sizes of its pickled objects\n"
    assert str(caught.value).count(told) == 2

    def tensors() -> None:
        broadcast_object_of = dist.broadcast
        broadcast_object_of(torch.ones(1 + dist.get_rank()), src=0)

    with pytest.raises(phalanx.CollectiveMismatchError) as caught:
        phalanx.run(tensors, ranks=2)
    assert "inside" not in str(caught.value)
