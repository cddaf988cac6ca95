"""Groups that are never destroyed: which are a leak, and which a program wants."""

from __future__ import annotations

import os
import warnings

import pytest
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh

import phalanx
from tests.support import assert_silent


def findings(program, ranks: int = 2, **options):
    with phalanx.World(ranks=ranks, **options) as world:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", phalanx.PhalanxWarning)
            world.run(program)
        return [each for each in world.findings if each.kind == "leak"]


def one_in_every_step() -> None:
    for _ in range(4):
        group = dist.new_group([0, 1])
        dist.barrier(group=group)


def in_a_function_called_in_every_step() -> None:
    for _ in range(4):
        make_and_use()


def make_and_use() -> None:
    dist.barrier(group=dist.new_group([0, 1]))


def subgroups_in_every_step() -> None:
    for _ in range(4):
        dist.new_subgroups(1)


def meshes_in_every_step() -> None:
    for _ in range(8):
        init_device_mesh("cpu", (2, 1), mesh_dim_names=("a", "b"))


@pytest.mark.parametrize(
    "program",
    [
        one_in_every_step,
        in_a_function_called_in_every_step,
        subgroups_in_every_step,
        meshes_in_every_step,
    ],
    ids=lambda program: program.__name__,
)
def test_groups_made_in_a_loop_and_lost_are_found_at_their_line(program) -> None:
    (finding,) = findings(program)
    assert finding.ranks == (0, 1) and finding.severity == "warning"
    assert finding.blocks[0].op.site.file.endswith("test_leak_in_ranks.py")


class Layer:
    def __init__(self) -> None:
        self.group = dist.new_group([0, 1])


def kept_in_a_list() -> None:
    groups = [dist.new_group([0, 1]) for _ in range(10)]
    for group in groups:
        dist.barrier(group=group)


def kept_in_objects() -> None:
    for layer in [Layer() for _ in range(10)]:
        dist.barrier(group=layer.group)


def kept_by_functions() -> None:
    uses = []
    for _ in range(10):
        group = dist.new_group([0, 1])
        uses.append(lambda group=group: dist.barrier(group=group))
    for use in uses:
        use()


def destroyed_each_time() -> None:
    for _ in range(10):
        dist.destroy_process_group(dist.new_group([0, 1]))


def one_for_each_purpose() -> None:
    groups = make(), make(), make(), make()
    for group in groups:
        dist.barrier(group=group)


def make() -> object:
    return dist.new_group([0, 1])


def of_other_ranks() -> None:
    for rank in range(2):
        dist.new_group([rank])
    dist.new_group([0, 1])


def a_mesh_or_two() -> None:
    for _ in range(3):
        init_device_mesh("cpu", (2, 1), mesh_dim_names=("a", "b"))


@pytest.mark.parametrize(
    "program",
    [
        kept_in_a_list,
        kept_in_objects,
        kept_by_functions,
        destroyed_each_time,
        one_for_each_purpose,
        of_other_ranks,
        a_mesh_or_two,
    ],
    ids=lambda program: program.__name__,
)
def test_groups_that_are_kept_or_destroyed_are_no_leak(program) -> None:
    assert_silent(program)


def test_runs_of_one_world_do_not_add_up() -> None:
    with phalanx.World(ranks=2) as world:
        for _ in range(5):
            world.run(make_and_use)
        assert not world.findings


# -- the world itself --------------------------------------------------------------------


def begin() -> None:
    dist.init_process_group("gloo")


def begin_and_end() -> None:
    dist.init_process_group("gloo")
    dist.destroy_process_group()


def test_nccl_asks_for_the_end_of_a_world_that_the_program_began() -> None:
    (finding,) = findings(begin, init=False, profile="nccl")
    assert finding.ranks == (0, 1) and "destroy_process_group" in finding.headline
    assert finding.blocks[0].op.site.function == "begin"


@pytest.mark.parametrize(
    ("program", "options"),
    [
        (begin, {"init": False}),
        (begin_and_end, {"init": False, "profile": "nccl"}),
        (dist.barrier, {"profile": "nccl"}),
    ],
    ids=["gloo", "ended", "a world that Phalanx made"],
)
def test_otherwise_a_world_may_be_left(program, options) -> None:
    assert findings(program, **options) == []


def end_on(*ranks: int):
    def program() -> None:
        dist.init_process_group("gloo")
        dist.barrier()
        if dist.get_rank() in ranks:
            dist.destroy_process_group()

    return program


@pytest.mark.parametrize(("ending", "left"), [((0,), (1, 2)), ((0, 2), (1,))])
def test_a_world_that_some_ranks_end_is_a_leak_of_the_others(ending, left) -> None:
    (finding,) = findings(end_on(*ending), ranks=3, init=False)
    assert finding.ranks == left and finding.severity == "warning"
    assert [(each.ranks, each.op.name) for each in finding.blocks] == [
        (ending, "destroy_process_group"),
        (left, "init_process_group"),
    ]


def two_worlds_of_one_rank_each() -> None:
    rank = os.environ["RANK"]
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    if rank == "0":
        dist.destroy_process_group()


def ended_and_begun_again() -> None:
    begin_and_end()
    begin()


@pytest.mark.parametrize(
    "program", [end_on(), end_on(0, 1), two_worlds_of_one_rank_each, ended_and_begun_again]
)
def test_all_may_end_a_world_or_none(program) -> None:
    assert findings(program, init=False) == []


def make_one() -> None:
    dist.new_group([0, 1])


def by_two_ways() -> None:
    for _ in range(3):
        make_one()
    for _ in range(5):
        make_one()


def test_a_line_that_is_reached_by_two_ways_counts_once() -> None:
    with phalanx.World(ranks=2) as world, pytest.warns(phalanx.PhalanxWarning):
        world.run(by_two_ways)
    assert "same ranks 8 times; 8 were alive at once" in world.findings[0].headline
