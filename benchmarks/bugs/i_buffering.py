"""Class I: programs that live from buffering, or from an order that only some backends keep."""

from __future__ import annotations

import torch
import torch.distributed as dist

from benchmarks.bugs.programs import bug

HAZARD = "backend-hazard"


def _done(*works: dist.Work | None) -> None:
    for work in works:
        assert work is not None
        work.wait()


@bug("I1", "deadlock|backend-hazard", faulty=(0, 1), what="both ranks send, then receive")
def both_send_first(rank: int, world: int) -> None:
    peer = 1 - rank
    dist.send(torch.ones(4), dst=peer)  # <- here
    dist.recv(torch.empty(4), src=peer)


@bug(
    "I2",
    HAZARD,
    profile="nccl",
    faulty=(0, 1),
    what="unbatched isend/irecv that NCCL makes a hang of",
)
def unbatched(rank: int, world: int) -> None:
    peer = 1 - rank
    sent = dist.isend(torch.ones(4), dst=peer)  # <- here
    received = dist.irecv(torch.empty(4), src=peer)  # <- here
    _done(sent, received)


@bug(
    "I21",
    "deadlock|backend-hazard",
    ranks=4,
    faulty=range(4),
    what="a ring in which all send first",
)
def ring_sends_first(rank: int, world: int) -> None:
    dist.send(torch.ones(4), dst=(rank + 1) % world)  # <- here
    dist.recv(torch.empty(4), src=(rank - 1) % world)


@bug("I22", HAZARD, profile="nccl", what="two groups in opposite order, asynchronous")
def groups_crossed(rank: int, world: int) -> None:
    first, second = dist.new_group([0, 1]), dist.new_group([0, 1])
    order = (first, second) if rank == 0 else (second, first)
    _done(*[dist.all_reduce(torch.ones(4), group=g, async_op=True) for g in order])  # <- here


@bug("I23", HAZARD, profile="nccl", what="messages told apart by tags, which NCCL ignores")
def told_apart_by_tags(rank: int, world: int) -> None:
    small, large = torch.ones(4), torch.zeros(4)
    if rank == 0:
        _done(
            dist.isend(small, dst=1, tag=1),  # <- here
            dist.isend(large, dst=1, tag=2),  # <- here
        )
    else:
        _done(
            dist.irecv(large, src=0, tag=2),  # <- here
            dist.irecv(small, src=0, tag=1),  # <- here
        )


@bug(
    "I24",
    "backend-hazard|invalid-call",
    ranks=3,
    profile="nccl",
    faulty=(0,),
    what="a receive from any",
)
def from_any_source(rank: int, world: int) -> None:
    if rank == 0:
        total = torch.zeros(1)
        for _ in range(world - 1):
            part = torch.empty(1)
            dist.recv(part)  # <- here
            total += part
    else:
        dist.send(torch.ones(1), dst=0)


@bug(
    "I25",
    HAZARD,
    ranks=4,
    profile="nccl",
    faulty=(0, 1),
    what="the first batched call is made by a subset",
)
def first_batch_by_some(rank: int, world: int) -> None:
    if rank < 2:
        peer = 1 - rank
        ops = [
            dist.P2POp(dist.isend, torch.ones(1), peer),
            dist.P2POp(dist.irecv, torch.empty(1), peer),
        ]
        _done(*dist.batch_isend_irecv(ops))  # <- here
    dist.barrier()


@bug(
    "I26",
    HAZARD,
    profile="nccl",
    faulty=(0, 1),
    what="an isend, then a blocking recv, on both ranks",
)
def isend_then_recv(rank: int, world: int) -> None:
    peer = 1 - rank
    sent = dist.isend(torch.ones(4), dst=peer)  # <- here
    dist.recv(torch.empty(4), src=peer)  # <- here
    _done(sent)


@bug("I27", HAZARD, ranks=4, profile="nccl", what="world and subgroup in opposite order")
def world_and_subgroup(rank: int, world: int) -> None:
    pair = dist.new_group([0, 1])
    gradient, metric = torch.ones(4), torch.ones(1)
    if rank == 0:
        works = [
            dist.all_reduce(gradient, async_op=True),  # <- here
            dist.all_reduce(metric, group=pair, async_op=True),  # <- here
        ]
    elif rank == 1:
        works = [
            dist.all_reduce(metric, group=pair, async_op=True),  # <- here
            dist.all_reduce(gradient, async_op=True),  # <- here
        ]
    else:
        works = [dist.all_reduce(gradient, async_op=True)]
    _done(*works)


@bug("I28", HAZARD, ranks=3, profile="nccl", what="three groups in a circle of orders")
def circle_of_groups(rank: int, world: int) -> None:
    pairs = [dist.new_group([0, 1]), dist.new_group([1, 2]), dist.new_group([0, 2])]
    mine = {0: (0, 2), 1: (1, 0), 2: (2, 1)}[rank]
    works = []
    for i in mine:
        works.append(dist.all_reduce(torch.ones(1), group=pairs[i], async_op=True))  # <- here
    _done(*works)


@bug(
    "I29",
    HAZARD,
    ranks=4,
    profile="nccl",
    faulty=range(4),
    what="a halo exchange without a batch",
)
def halo_exchange(rank: int, world: int) -> None:
    left, right = (rank - 1) % world, (rank + 1) % world
    halo = torch.empty(2)
    _done(
        dist.isend(torch.ones(1), dst=right),  # <- here
        dist.isend(torch.ones(1), dst=left),  # <- here
        dist.irecv(halo[:1], src=left),  # <- here
        dist.irecv(halo[1:], src=right),  # <- here
    )


@bug("I30", HAZARD, profile="nccl", what="a collective between the two halves of an exchange")
def collective_in_between(rank: int, world: int) -> None:
    both = dist.new_group([0, 1])
    if rank == 0:
        sent = dist.isend(torch.ones(1), dst=1)  # <- here
        dist.all_reduce(torch.ones(1), group=both)  # <- here
        _done(sent)
    else:
        dist.all_reduce(torch.ones(1), group=both)  # <- here
        dist.recv(torch.empty(1), src=0)  # <- here


@bug(
    "I31",
    "deadlock|backend-hazard",
    ranks=4,
    faulty=range(4),
    what="pairs swap large buffers, each sending first",
)
def pairs_swap(rank: int, world: int) -> None:
    peer = rank ^ 1
    dist.send(torch.ones(1 << 16), dst=peer)  # <- here
    dist.recv(torch.empty(1 << 16), src=peer)
    dist.barrier()


@bug(
    "I32",
    HAZARD,
    ranks=3,
    profile="nccl",
    faulty=range(3),
    what="a pipeline forward and back, unbatched",
)
def pipeline_unbatched(rank: int, world: int) -> None:
    if rank < world - 1:
        ahead = dist.isend(torch.ones(2), dst=rank + 1)  # <- here
        back = dist.irecv(torch.empty(2), src=rank + 1)  # <- here
        _done(ahead, back)
    if rank > 0:
        back = dist.isend(torch.ones(2), dst=rank - 1)  # <- here
        ahead = dist.irecv(torch.empty(2), src=rank - 1)  # <- here
        _done(ahead, back)


@bug("I33", HAZARD, ranks=4, profile="nccl", what="rows and columns in opposite order, async")
def rows_and_columns(rank: int, world: int) -> None:
    rows = [dist.new_group([0, 1]), dist.new_group([2, 3])]
    columns = [dist.new_group([0, 2]), dist.new_group([1, 3])]
    mine = [rows[rank // 2], columns[rank % 2]]
    if rank in (0, 3):
        mine.reverse()
    works = []
    for group in mine:
        works.append(dist.all_reduce(torch.ones(1), group=group, async_op=True))  # <- here
    _done(*works)
