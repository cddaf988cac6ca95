"""Class J: right at the size it was tried with, wrong at another."""

from __future__ import annotations

import torch
import torch.distributed as dist

from benchmarks.bugs.programs import bug


@bug("J2", "mismatch|deadlock", ranks=4, faulty=(3,), what="no tokens, so no all_to_all")
def no_tokens(rank: int, world: int) -> None:
    tokens = torch.ones(0 if rank == 3 else 4)
    if tokens.numel():
        dist.all_to_all_single(torch.empty(4), tokens)  # <- here
    dist.barrier()  # <- here


@bug("J21", "mismatch", ranks=5, faulty=(4,), what="an empty shard is not gathered")
def empty_shard(rank: int, world: int) -> None:
    shard = torch.arange(8.0)[rank * 2 : rank * 2 + 2]
    if len(shard):
        dist.all_gather([torch.empty(2) for _ in range(world)], shard)  # <- here
    dist.all_reduce(torch.ones(1))  # <- here


@bug("J22", "mismatch|deadlock", ranks=8, faulty=(7,), what="the last rank has an epoch less")
def last_rank_shorter(rank: int, world: int) -> None:
    samples = list(range(31))[rank::world]
    for _ in samples:
        dist.all_reduce(torch.ones(4))  # <- here
    dist.barrier()  # <- here


@bug("J23", "invalid-call", ranks=6, faulty=range(6), what="a world size written down as 4")
def world_size_of_four(rank: int, world: int) -> None:
    dist.all_gather([torch.empty(1) for _ in range(4)], torch.ones(1))  # <- here


@bug("J24", "invalid-call", ranks=5, faulty=(4,), what="a neighbour that the last rank has not")
def no_right_neighbour(rank: int, world: int) -> None:
    if rank == 0:
        dist.send(torch.ones(1), dst=1)
    else:
        dist.recv(torch.empty(1), src=rank - 1)
        dist.send(torch.ones(1), dst=rank + 1)  # <- here


@bug("J25", "mismatch", ranks=6, faulty=(5,), what="the last chunk is shorter in a flat gather")
def last_chunk_shorter(rank: int, world: int) -> None:
    chunk = torch.arange(17.0).chunk(world)[rank]
    dist.all_gather_into_tensor(torch.empty(world * len(chunk)), chunk)  # <- here


@bug("J26", "invalid-call", ranks=5, faulty=(4,), what="pairs of an odd number of ranks")
def odd_one_out(rank: int, world: int) -> None:
    peer = rank ^ 1
    if rank < peer:
        dist.send(torch.ones(1), dst=peer)  # <- here
    else:
        dist.recv(torch.empty(1), src=peer)


@bug(
    "J27",
    "mismatch|deadlock",
    ranks=8,
    what="each rank makes only its own subgroup",
)
def own_subgroup_only(rank: int, world: int) -> None:
    first = rank // 2 * 2
    pair = dist.new_group([first, first + 1])  # <- here
    dist.all_reduce(torch.ones(1), group=pair)  # <- here


@bug("J28", "mismatch", ranks=16, faulty=(11,), what="one of sixteen ranks takes a branch")
def one_of_sixteen(rank: int, world: int) -> None:
    for step in range(4):
        if rank == 11 and step == 3:
            dist.broadcast(torch.ones(2), src=0)  # <- here
        dist.all_reduce(torch.ones(2))  # <- here


@bug("J29", "mismatch", ranks=8, faulty=(6,), what="tokens sent by counts nobody exchanged")
def counts_not_exchanged(rank: int, world: int) -> None:
    splits = [1] * world
    if rank == 6:
        splits[0], splits[1] = 2, 0
    dist.all_to_all_single(  # <- here
        torch.empty(world),
        torch.ones(world),
        output_split_sizes=[1] * world,
        input_split_sizes=splits,
    )


@bug("J30", "deadlock", ranks=64, faulty=(63,), what="63 ranks wait for one that has returned")
def one_of_many_returns(rank: int, world: int) -> None:
    dist.barrier()
    if rank != world - 1:
        dist.all_reduce(torch.ones(1))  # <- here
