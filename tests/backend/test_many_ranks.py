"""What must not grow with the number of ranks: calls, collections, tables, groups of a mesh."""

from __future__ import annotations

import gc
import json
import sys
from collections import Counter

import pytest
import torch
import torch.distributed as dist
from torch.distributed import distributed_c10d
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh

import phalanx
from phalanx.backend.torch_private import private_meshes
from phalanx.system import collect_for
from tests.forked_programs import run_forked
from tests.support import assert_silent

shares_meshes = pytest.mark.skipif(
    not private_meshes.is_known, reason="this version of torch makes groups of a mesh otherwise"
)

CALLS = """
import json, sys
from pathlib import Path

import torch
import torch.distributed as dist

import phalanx

ours, times, counts = str(Path(phalanx.__file__).parent), 5, {}

def program(calls):
    def count(frame, event, _):
        if event == "call" and frame.f_code.co_filename.startswith(ours):
            calls.append(frame.f_code.co_name)

    tensor = torch.ones(4)
    for _ in range(20):
        dist.all_reduce(tensor)
    sys.setprofile(count)
    for _ in range(times):
        dist.all_reduce(tensor)
    sys.setprofile(None)

for ranks in (32, 128):
    calls = []
    phalanx.run(program, calls, ranks=ranks)
    counts[ranks] = len(calls) / ranks / times
print(json.dumps(counts))
"""


def test_an_all_reduce_of_many_ranks_takes_no_more_calls_of_ours_for_each() -> None:
    counts = json.loads(run_forked([sys.executable, "-c", CALLS], timeout=50).stdout)
    assert 0 < counts["128"] <= counts["32"] + 0.5, counts


def test_ranks_that_wait_start_no_collections() -> None:
    started: list[int] = []

    def note(phase: str, info: dict[str, int]) -> None:
        if phase == "start":
            started.append(info["generation"])

    def program() -> None:
        tensor = torch.ones(4)
        for _ in range(3):
            dist.all_reduce(tensor)
        dist.barrier()
        if dist.get_rank() == 0:
            gc.callbacks.append(note)
        for _ in range(6):
            dist.all_reduce(tensor)
        if dist.get_rank() == 0:
            gc.callbacks.remove(note)

    before = gc.get_threshold()
    phalanx.run(program, ranks=256)
    assert len(started) <= 1, Counter(started)
    assert gc.get_threshold() == before


def test_what_somebody_else_sets_for_the_collector_stays() -> None:
    before = gc.get_threshold()
    try:
        put_back = collect_for(64)
        assert gc.get_threshold() == (before[0] * 4, *before[1:])
        put_back()
        assert gc.get_threshold() == before
        put_back = collect_for(64)
        gc.set_threshold(123, 4, 5)
        put_back()
        assert gc.get_threshold() == (123, 4, 5)
    finally:
        gc.set_threshold(*before)


def test_ranks_have_one_table_of_the_places_of_a_group() -> None:
    def program() -> tuple[int, dict[int, int]]:
        group = dist.new_group([2, 0])
        tables = distributed_c10d._world.pg_group_ranks
        world = tables[dist.group.WORLD]
        if dist.get_rank() in (0, 2):
            assert tables[group] == {0: 0, 2: 1}
        return id(world), dict(world)

    found = phalanx.run(program, ranks=5)
    assert len({ident for ident, _ in found}) == 1
    assert found[0][1] == {rank: rank for rank in range(5)}


@shares_meshes
def test_ranks_of_a_mesh_make_their_own_groups_only() -> None:
    made: Counter[int] = Counter()
    helper = distributed_c10d._new_group_with_tag.__code__

    def program() -> tuple[list[str], str, int]:
        def count(frame, event, _):
            made[rank] += event == "call" and frame.f_code is helper

        rank = dist.get_rank()
        sys.setprofile(count)
        mesh = init_device_mesh("cpu", (3, 3, 2), mesh_dim_names=("a", "b", "c"))
        sys.setprofile(None)
        names = [mesh.get_group(dim).group_name for dim in range(3)]
        for dim in range(3):
            tensor = torch.ones(1)
            dist.all_reduce(tensor, group=mesh.get_group(dim))
            assert tensor.item() == mesh.size(dim)
            assert rank in dist.get_process_group_ranks(mesh.get_group(dim))
        ends = dist.new_group([0, 17])
        last = ends.group_name if rank in (0, 17) else ""
        return names, last, id(mesh._flatten_rank_map)

    found = phalanx.run(program, ranks=18)
    assert sorted(made.values()) == [3] * 17 + [6 + 6 + 9]
    names = [
        [str(1 + rank % 6), str(7 + rank // 6 * 2 + rank % 2), str(13 + rank // 2)]
        for rank in range(18)
    ]
    assert [each[0] for each in found] == names, "numbers of groups are as torch gives them"
    assert [each[1] for each in found if each[1]] == ["22", "22"]
    assert len({each[2] for each in found}) == 1


def test_meshes_made_twice_in_two_places_and_by_part_of_a_program_are_silent() -> None:
    def program() -> None:
        rank = dist.get_rank()
        if rank % 2:
            first = init_device_mesh("cpu", (2, 2), mesh_dim_names=("dp", "tp"))
        else:
            first = init_device_mesh("cpu", (2, 2), mesh_dim_names=("dp", "tp"))
        second = init_device_mesh("cpu", (2, 2), mesh_dim_names=("dp", "tp"))
        flat = init_device_mesh("cpu", (4,))
        for mesh, dim in ((first, 0), (second, 1), (flat, 0)):
            tensor = torch.ones(1)
            dist.all_reduce(tensor, group=mesh.get_group(dim))
            assert tensor.item() == mesh.size(dim)
        assert first.get_group(0).group_name != second.get_group(0).group_name

    assert_silent(program, ranks=4)


def test_a_rank_with_another_mesh_is_found() -> None:
    def program() -> None:
        rows = [[0, 2], [1, 3]] if dist.get_rank() == 2 else [[0, 1], [2, 3]]
        DeviceMesh("cpu", rows)

    with pytest.raises(phalanx.CollectiveMismatchError) as caught:
        phalanx.run(program, ranks=4)
    verdict = caught.value.verdict
    assert verdict.ranks == (2,) and "new_group" in verdict.headline
