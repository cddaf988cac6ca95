"""Roots named by a rank of the world and by a rank of the group, on one group."""

from __future__ import annotations

import warnings

import pytest
import torch
import torch.distributed as dist

import phalanx
from tests.support import assert_silent


def in_a_group(program):
    def body() -> None:
        group = dist.new_group([1, 2, 3])
        if dist.get_rank():
            program(group, torch.ones(2))

    return body


def findings(program):
    with phalanx.World(ranks=4) as world:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", phalanx.PhalanxWarning)
            world.run(in_a_group(program))
        return [each for each in world.findings if each.kind == "rank-space"]


def both_spellings(group, tensor) -> None:
    dist.broadcast(tensor, group=group, group_src=1)
    dist.reduce(tensor, dst=1, group=group)


def in_every_step(group, tensor) -> None:
    for _ in range(5):
        both_spellings(group, tensor)


def a_method_of_the_group(group, tensor) -> None:
    group.broadcast(tensor, 1).wait()
    dist.broadcast(tensor, src=1, group=group)


def computed_in_the_call(group, tensor) -> None:
    dist.broadcast(tensor, src=dist.get_global_rank(group, 1), group=group)
    dist.reduce(tensor, dst=1, group=group)


def destroyed_afterwards(group, tensor) -> None:
    both_spellings(group, tensor)
    dist.destroy_process_group(group)


@pytest.mark.parametrize(
    "program",
    [
        both_spellings,
        in_every_step,
        a_method_of_the_group,
        computed_in_the_call,
        destroyed_afterwards,
    ],
    ids=lambda program: program.__name__,
)
def test_one_number_that_means_two_ranks_is_found(program) -> None:
    (finding,) = findings(program)
    assert finding.severity == "warning" and "root 1 is rank 1 in" in finding.headline
    assert "but rank 2 in broadcast" in finding.headline
    assert [block.ranks for block in finding.blocks] == [(1, 2, 3)] * 2


def by_get_group_rank(group, tensor) -> None:
    root = dist.get_group_rank(group, 2)
    dist.broadcast(tensor, src=root, group=group)


def in_the_call(group, tensor) -> None:
    dist.reduce(tensor, dist.get_group_rank(group, 2), group=group)


@pytest.mark.parametrize("program", [by_get_group_rank, in_the_call])
def test_the_answer_of_get_group_rank_is_no_rank_of_the_world(program) -> None:
    (finding,) = findings(program)
    assert "takes 1, which get_group_rank said, for rank 1" in finding.headline
    assert [block.ranks for block in finding.blocks] == [(1, 2, 3)]


def given_as_what_it_is(group, tensor) -> None:
    root = dist.get_group_rank(group, 2)
    dist.broadcast(tensor, group=group, group_src=root)


def of_another_group(group, tensor) -> None:
    root = dist.get_group_rank(dist.group.WORLD, 1)
    dist.broadcast(tensor, src=root, group=group)


def made_one_of_the_world(group, tensor) -> None:
    root = dist.get_group_rank(group, 2)
    root = dist.get_global_rank(group, root)
    dist.broadcast(tensor, src=root, group=group)


def both_on_purpose(group, tensor) -> None:
    dist.broadcast(tensor, src=2, group=group)
    dist.broadcast(tensor, group=group, group_src=2)
    dist.reduce(tensor, dst=3, group=group)
    dist.reduce(tensor, group=group, group_dst=0)


def in_the_world(group, tensor) -> None:
    for _ in range(3):
        dist.broadcast(tensor, src=1, group=group)
        dist.reduce(tensor, dst=1, group=group)


def in_the_group(group, tensor) -> None:
    dist.broadcast(tensor, group=group, group_src=1)
    dist.reduce(tensor, group=group, group_dst=1)


def other_numbers(group, tensor) -> None:
    dist.broadcast(tensor, group=group, group_src=0)
    dist.reduce(tensor, dst=2, group=group)


def the_same_rank_in_both(group, tensor) -> None:
    dist.broadcast(tensor, group=group, group_src=0)
    dist.reduce(tensor, dst=1, group=group)


def every_root_in_turn(group, tensor) -> None:
    for root in range(3):
        dist.broadcast(tensor, group=group, group_src=root)
    dist.reduce(tensor, dst=1, group=group)


def every_rank_in_turn(group, tensor) -> None:
    for root in (1, 2, 3):
        dist.broadcast(tensor, src=root, group=group)
    dist.reduce(tensor, group=group, group_dst=1)


@pytest.mark.parametrize(
    "program",
    [
        in_the_world,
        in_the_group,
        other_numbers,
        the_same_rank_in_both,
        every_root_in_turn,
        every_rank_in_turn,
        given_as_what_it_is,
        of_another_group,
        made_one_of_the_world,
        both_on_purpose,
    ],
    ids=lambda program: program.__name__,
)
def test_one_space_or_no_doubt_is_left_alone(program) -> None:
    assert_silent(in_a_group(program), ranks=4)


def test_groups_whose_ranks_are_those_of_the_world_are_left_alone() -> None:
    def body() -> None:
        tensor = torch.ones(2)
        dist.broadcast(tensor, group_src=1)
        dist.reduce(tensor, dst=1)

    assert_silent(body, ranks=3)
