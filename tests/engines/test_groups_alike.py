"""Groups that ranks make, use and destroy unlike; and programs that only look like it."""

from __future__ import annotations

import os
import warnings
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh

import phalanx
from phalanx.core.strand import here
from phalanx.model import Finding, Mismatch, Verdict
from tests.support import assert_silent


def refused(body: Callable[[], Any], ranks: int) -> Finding:
    with pytest.raises(phalanx.CollectiveMismatchError) as caught:
        phalanx.run(body, ranks=ranks)
    assert isinstance(caught.value.verdict, Finding)
    return caught.value.verdict


def findings(body: Callable[[], Any], ranks: int) -> list[Verdict]:
    with warnings.catch_warnings(), phalanx.World(ranks=ranks) as world:
        warnings.simplefilter("ignore", phalanx.PhalanxWarning)
        world.run(body)
        return [each for each in world.findings if each.kind == "mismatch"]


def test_new_group_by_two_of_four_ranks() -> None:
    def body() -> None:
        if dist.get_rank() < 2:
            pair = dist.new_group([0, 1])
            dist.all_reduce(torch.ones(1), group=pair)
        dist.barrier()

    verdict = refused(body, ranks=4)
    assert verdict.ranks == (2, 3)
    assert verdict.blocks[0].ranks == (0, 1)
    site = verdict.blocks[0].op.site
    assert site is not None and "dist.new_group([0, 1])" in site.source


def test_a_group_of_all_made_and_used_by_some() -> None:
    def body() -> None:
        if dist.get_rank() < 2:
            dist.all_reduce(torch.ones(1), group=dist.new_group())

    assert refused(body, ranks=4).ranks == (2, 3)


def test_groups_made_in_another_order_by_one() -> None:
    def body() -> None:
        pairs = [[0, 1], [1, 2]]
        if dist.get_rank() == 1:
            pairs.reverse()
        groups = [dist.new_group(pair) for pair in pairs]
        dist.barrier()
        del groups

    verdict = refused(body, ranks=3)
    assert verdict.ranks == (1,)
    assert {block.ranks for block in verdict.blocks} == {(0, 2), (1,)}


def test_other_members_while_the_rest_never_come() -> None:
    def body() -> None:
        rank = dist.get_rank()
        if rank < 2:
            dist.new_group([0, 1] if rank else [0, 2])
        else:
            dist.recv(torch.empty(1), src=0)

    assert "new_group" in refused(body, ranks=3).headline


def test_the_default_group_meets_another_of_the_same_ranks() -> None:
    def body() -> None:
        twin = dist.new_group([0, 1, 2])
        dist.all_reduce(torch.ones(1), group=twin if dist.get_rank() == 1 else None)

    verdict = refused(body, ranks=3)
    assert verdict.ranks == (1,)
    assert verdict.headline.startswith('rank 1 called all_reduce on "group 1"')


def test_two_groups_of_the_same_ranks_in_opposite_order_are_a_deadlock() -> None:
    def body() -> None:
        groups = [dist.new_group([0, 1]), dist.new_group([0, 1])]
        if dist.get_rank():
            groups.reverse()
        dist.all_reduce(torch.ones(1), group=groups[0])
        dist.all_reduce(torch.ones(1), group=groups[1])

    with pytest.raises(phalanx.DeadlockError) as caught:
        phalanx.run(body, ranks=2)
    assert caught.value.verdict.cycle == (0, 1)


def test_a_message_on_another_group() -> None:
    def body() -> None:
        twin = dist.new_group([0, 1])
        if dist.get_rank() == 0:
            dist.send(torch.ones(1), dst=1)
        else:
            dist.recv(torch.ones(1), src=0, group=twin)

    assert refused(body, ranks=2).headline == (
        'rank 0 sent on "world" where rank 1 receives on "group 1"'
    )


def destroy_in_order(*, opposite: bool) -> None:
    groups = [dist.new_group(), dist.new_group()]
    dist.barrier()
    if opposite and dist.get_rank():
        groups.reverse()
    for group in groups:
        dist.destroy_process_group(group)


def test_groups_destroyed_in_opposite_orders() -> None:
    (verdict,) = findings(lambda: destroy_in_order(opposite=True), ranks=2)
    assert verdict.severity == "warning"
    assert findings(lambda: destroy_in_order(opposite=False), ranks=2) == []


def test_a_group_that_one_member_keeps() -> None:
    def body() -> None:
        group = dist.new_group()
        dist.barrier(group=group)
        if dist.get_rank():
            dist.destroy_process_group(group)
        dist.barrier()

    (verdict,) = findings(body, ranks=3)
    assert verdict.ranks == (0,)


def test_dimensions_of_a_mesh_mixed_up_by_one() -> None:
    def body(inner: str, outer: str) -> None:
        mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("dp", "tp"))
        dims = (outer, inner) if dist.get_rank() == 3 else (inner, outer)
        for count, dim in enumerate(dims, 1):
            dist.all_reduce(torch.ones(count), group=mesh.get_group(dim))

    with pytest.raises(phalanx.CollectiveMismatchError) as caught:
        phalanx.run(body, "tp", "dp", ranks=4)
    verdict = caught.value.verdict
    assert isinstance(verdict, Mismatch) and verdict.ranks == (3,)
    assert verdict.hint is not None
    assert verdict.hint.endswith('ranks 0-2 called on "mesh_tp", rank 3 on "mesh_dp"')


# -- what must stay silent ------------------------------------------------------------------


def test_groups_that_only_their_members_make() -> None:
    def body() -> None:
        rank = dist.get_rank()
        mine = [0, 1] if rank < 2 else [2, 3]
        group = dist.new_group(mine, use_local_synchronization=True)
        dist.all_reduce(torch.ones(1), group=group)
        if rank == 0:
            alone = dist.new_group([0], use_local_synchronization=True)
            dist.all_reduce(torch.ones(1), group=alone)

    assert findings(body, ranks=4) == []


def test_meshes_and_subgroups() -> None:
    def body() -> None:
        mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("dp", "tp"))
        dist.all_reduce(torch.ones(1), group=mesh.get_group("tp"))
        own, _ = dist.new_subgroups(group_size=2)
        dist.all_reduce(torch.ones(1), group=own)

    assert findings(body, ranks=4) == []


def test_a_group_destroyed_by_some_at_the_end() -> None:
    def body() -> None:
        group = dist.new_group()
        dist.barrier(group=group)
        if dist.get_rank() == 0:
            dist.destroy_process_group(group)

    assert findings(body, ranks=2) == []


def test_default_groups_of_some_ranks_each() -> None:
    def body() -> None:
        rank = int(os.environ["RANK"])
        half = rank // 2
        dist.init_process_group(
            "gloo", init_method=f"tcp://127.0.0.1:{29500 + half}", rank=rank % 2, world_size=2
        )
        for _ in range(1 + half):
            dist.barrier(group=dist.new_group())
        dist.destroy_process_group()

    assert_silent(body, ranks=4, init=False)


def test_init_and_destroy_again() -> None:
    def body() -> None:
        for turn in range(3):
            dist.init_process_group("gloo")
            for _ in range(turn):
                dist.barrier(group=dist.new_group())
            dist.destroy_process_group()

    assert_silent(body, init=False)


def test_groups_of_worlds_that_follow_each_other() -> None:
    def body() -> None:
        dist.destroy_process_group()
        for turn in range(2):
            dist.init_process_group("gloo")
            groups = [dist.new_group([0, 1]) for _ in range(2)]
            for _ in range(2 + 8 * turn):
                dist.barrier()
            if turn == 0 or dist.get_rank() == 0:
                for group in groups[:: 1 - 2 * turn]:
                    dist.destroy_process_group(group)
            dist.destroy_process_group()

    assert findings(body, ranks=2) == []


def test_names_that_are_given_again() -> None:
    def body() -> None:
        for turn in range(3):
            groups = [dist.new_group([0, 1], use_local_synchronization=True) for _ in range(2)]
            for group in groups[:: 1 - 2 * (turn % 2)]:
                dist.destroy_process_group(group)
            dist.barrier()

    assert findings(body, ranks=2) == []


def test_a_member_whose_past_is_forgotten_is_not_accused() -> None:
    """The journal of rank 1 has room for few events, and no longer says what became of the
    first group there."""

    def body() -> None:
        early = dist.new_group([0, 1])
        if dist.get_rank() == 1:
            dist.destroy_process_group(early)
            strand = here.strand
            assert strand is not None
            strand.local.ring.rare.clear()
        dist.barrier()
        if dist.get_rank() == 0:
            dist.destroy_process_group(early)
        dist.barrier()

    assert findings(body, ranks=2) == []


def test_a_group_split_into_other_parts_by_one() -> None:
    def body() -> None:
        part = [0, 1, 2] if dist.get_rank() != 2 else [1, 2, 3]
        group = dist.group.WORLD
        assert group is not None
        if dist.get_rank() != 3:
            dist.barrier(group=group.split_group(part))

    verdict = refused(body, ranks=4)
    assert 'off "world" where' in verdict.headline
    assert {block.op.name for block in verdict.blocks} == {"split_group"}


def test_a_group_split_into_parts() -> None:
    def body() -> None:
        group = dist.group.WORLD
        assert group is not None
        for parts in ([[0, 1], [2, 3]], [[0, 3], [1, 2]], [[0], [1, 2, 3]], [[0, 1], [2]]):
            own = [part for part in parts if dist.get_rank() in part]
            made = group.split_group(own[0] if own else parts[0])
            if own:
                dist.barrier(group=made)

    assert findings(body, ranks=4) == []
