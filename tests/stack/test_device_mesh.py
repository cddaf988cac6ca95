"""DeviceMesh of one to three dimensions: ranks, groups, slices, flattening."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh

import phalanx


@pytest.mark.parametrize("shape", [(8,), (2, 4), (4, 2), (2, 2, 2)])
def test_coordinates_groups_and_sums(shape: tuple[int, ...]) -> None:
    names = ("a", "b", "c")[: len(shape)]

    def program() -> tuple[Any, ...]:
        mesh = init_device_mesh("cpu", shape, mesh_dim_names=names)
        sums = []
        for dim, name in enumerate(names):
            value = torch.tensor(10**dim * dist.get_rank())
            dist.all_reduce(value, group=mesh.get_group(name))
            sums.append(value.item())
            assert mesh.get_local_rank(name) == mesh.get_coordinate()[dim]
            assert mesh[name].get_group() is mesh.get_group(dim)
            assert dist.get_process_group_ranks(mesh.get_group(dim)) == mesh[name].mesh.tolist()
        assert len(mesh.get_all_groups()) == len(shape)
        return tuple(mesh.get_coordinate()), tuple(sums), mesh.size(), mesh.ndim

    whole = torch.arange(8).view(shape)
    for rank, (place, sums, size, ndim) in enumerate(phalanx.run(program, ranks=8)):
        assert size == 8 and ndim == len(shape)
        assert whole[place] == rank
        for dim, total in enumerate(sums):
            line = whole[(*place[:dim], slice(None), *place[dim + 1 :])]
            assert total == 10**dim * line.sum()


# torch's: later versions want the flattened mesh kept by the program
@pytest.mark.filterwarnings("ignore:Slicing a flattened dim")
def test_slices_of_two_dimensions_and_flattening() -> None:
    def program() -> tuple[int, int, list[int]]:
        mesh = init_device_mesh("cpu", (2, 2, 2), mesh_dim_names=("pp", "dp", "tp"))
        plane = mesh["dp", "tp"]
        flat = plane._flatten("dp_tp")
        value = torch.tensor(dist.get_rank())
        dist.all_reduce(value, group=flat.get_group())
        again = torch.tensor(dist.get_rank())
        dist.all_reduce(again, group=mesh["dp_tp"].get_group())
        assert mesh["pp", "dp"].mesh.shape == (2, 2)
        return int(value), int(again), plane.mesh.flatten().tolist()

    for rank, (value, again, ranks) in enumerate(phalanx.run(program, ranks=8)):
        half = [0, 1, 2, 3] if rank < 4 else [4, 5, 6, 7]
        assert value == again == sum(half)
        assert ranks == half


def test_a_mesh_of_some_ranks_and_one_from_a_group() -> None:
    def program() -> tuple[Any, int]:
        mesh = DeviceMesh("cpu", [1, 3], mesh_dim_names=("odd",))
        group = dist.new_group([0, 2])
        place = mesh.get_coordinate()
        if dist.get_rank() % 2 == 0:
            assert place is None
            made = DeviceMesh.from_group(group, "cpu", mesh_dim_names=("even",))
            mesh = made
        value = torch.tensor(dist.get_rank())
        dist.all_reduce(value, group=mesh.get_group())
        return mesh.mesh.tolist(), int(value)

    assert phalanx.run(program, ranks=4) == [
        ([0, 2], 2),
        ([1, 3], 4),
        ([0, 2], 2),
        ([1, 3], 4),
    ]


def test_wrong_meshes_are_torchs_errors() -> None:
    def program() -> list[str]:
        texts = []
        for make in (
            lambda: init_device_mesh("cpu", (3,)),
            lambda: init_device_mesh("cpu", (2,), mesh_dim_names=("a", "b")),
            lambda: init_device_mesh("cpu", (2,), mesh_dim_names=("a",))["b"],
        ):
            try:
                make()
            except (RuntimeError, KeyError) as error:
                texts.append(type(error).__name__)
        return texts

    found = phalanx.run(program, ranks=2)
    assert found[0] == found[1] == ["RuntimeError", "RuntimeError", "KeyError"]


def test_the_mesh_in_use_is_each_ranks_own() -> None:
    """`with mesh:` sets a current mesh, which torch keeps once per process."""

    def program() -> list[int]:
        from torch.distributed.device_mesh import _mesh_resources

        pairs = [DeviceMesh("cpu", [0, 1]), DeviceMesh("cpu", [2, 3])]
        with pairs[dist.get_rank() // 2]:
            dist.barrier()
            found: list[int] = _mesh_resources.get_current_mesh().mesh.tolist()
        return found

    assert phalanx.run(program, ranks=4) == [[0, 1], [0, 1], [2, 3], [2, 3]]
