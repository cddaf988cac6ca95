"""Class H: a rank of the world where a rank of the group is meant, and the other way round."""

from __future__ import annotations

import torch
import torch.distributed as dist

from benchmarks.bugs.programs import bug


@bug(
    "H21",
    "rank-space",
    ranks=4,
    what="src=1 here, group_src=1 there, of one group",
)
def both_spellings(rank: int, world: int) -> None:
    group = dist.new_group([1, 2, 3])
    if rank:
        dist.broadcast(torch.ones(2), group=group, group_src=1)  # <- here
        dist.broadcast(torch.ones(2), src=1, group=group)  # <- here


@bug("H22", "mismatch|rank-space", ranks=4, what="ranks disagree on what 1 means")
def ranks_disagree(rank: int, world: int) -> None:
    group = dist.new_group([1, 2, 3])
    tensor = torch.ones(2)
    if rank == 1:
        dist.broadcast(tensor, src=1, group=group)  # <- here
    elif rank:
        dist.broadcast(tensor, group=group, group_src=1)  # <- here


@bug(
    "H23",
    "rank-space|mismatch",
    ranks=4,
    what="the root is taken from the rank in the group",
)
def root_by_group_rank(rank: int, world: int) -> None:
    group = dist.new_group([1, 2, 3])
    if rank:
        tensor = torch.ones(2)
        dist.broadcast(tensor, src=dist.get_global_rank(group, 1), group=group)  # <- here
        leader = 1  # of the group
        dist.reduce(tensor, dst=leader, group=group)  # <- here


@bug("H24", "deadlock|rank-space|invalid-call", ranks=4, what="a peer by its rank in the group")
def peer_by_group_rank(rank: int, world: int) -> None:
    group = dist.new_group([1, 2, 3])
    if rank == 1:
        dist.send(torch.ones(1), dst=2, group=group)  # <- here
    elif rank == 3:
        dist.recv(torch.empty(1), src=1, group=group)  # <- here


@bug("H25", "invalid-call", ranks=4, faulty=(2, 3), what="the group's rank 0 as src=0")
def zero_is_not_in_it(rank: int, world: int) -> None:
    groups = [dist.new_group([0, 1]), dist.new_group([2, 3])]
    dist.reduce(torch.ones(1), dst=0, group=groups[rank // 2])  # <- here


@bug("H26", "rank-space|invalid-call", ranks=4, what="get_group_rank's answer given as src")
def group_rank_as_source(rank: int, world: int) -> None:
    group = dist.new_group([1, 2, 3])
    if rank:
        root = dist.get_group_rank(group, 2)
        dist.broadcast(torch.ones(2), src=root, group=group)  # <- here
