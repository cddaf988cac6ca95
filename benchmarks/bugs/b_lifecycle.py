"""Class B: groups that are made, used and destroyed at the wrong time."""

from __future__ import annotations

import sys

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh

from benchmarks.bugs.programs import bug, start


@bug("B2", "invalid-call", faulty=(0, 1), what="a group used after it was destroyed")
def use_after_destroy(rank: int, world: int) -> None:
    both = dist.new_group([0, 1])
    dist.all_reduce(torch.ones(1), group=both)
    dist.destroy_process_group(both)
    dist.all_reduce(torch.ones(1), group=both)  # <- here


@bug(
    "B4",
    "deadlock",
    ranks=3,
    faulty=(2,),
    what="a rank returns while others still communicate",
    bare=True,
)
def returns_early(rank: int, world: int) -> None:
    start()
    dist.all_reduce(torch.ones(1))
    if rank == 2:
        return
    dist.all_reduce(torch.ones(1))  # <- here


@bug("B5", "mismatch|deadlock", what="two groups destroyed in different orders")
def destroyed_in_other_order(rank: int, world: int) -> None:
    groups = [dist.new_group([0, 1]), dist.new_group([0, 1])]
    for group in groups:
        dist.all_reduce(torch.ones(1), group=group)
    for group in groups if rank == 0 else reversed(groups):
        dist.destroy_process_group(group)  # <- here


@bug("B21", "leak", faulty=(0, 1), what="a new group in every step, never destroyed")
def group_in_every_step(rank: int, world: int) -> None:
    for _ in range(12):
        group = dist.new_group([0, 1])  # <- here
        dist.all_reduce(torch.ones(1), group=group)


@bug("B22", "leak", ranks=4, faulty=range(4), what="a device mesh in every step")
def mesh_in_every_step(rank: int, world: int) -> None:
    for _ in range(12):
        mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("dp", "tp"))  # <- here
        dist.all_reduce(torch.ones(1), group=mesh.get_group("tp"))


@bug("B23", "invalid-call", faulty=(0, 1), bare=True, what="a call after the final destroy")
def call_after_the_end(rank: int, world: int) -> None:
    start()
    dist.all_reduce(torch.ones(1))
    dist.destroy_process_group()
    dist.barrier()  # <- here


@bug("B24", "invalid-call", faulty=(0, 1), bare=True, what="initialised twice")
def initialised_twice(rank: int, world: int) -> None:
    start()
    dist.init_process_group("gloo")  # <- here


@bug(
    "B25",
    "deadlock|mismatch",
    ranks=3,
    faulty=(0,),
    bare=True,
    what="a rank destroys the default group while the others still reduce",
)
def destroyed_under_others(rank: int, world: int) -> None:
    start()
    for step in range(3):
        if rank == 0 and step == 2:
            break
        dist.all_reduce(torch.ones(1))  # <- here
    dist.destroy_process_group()  # <- here


@bug(
    "B26",
    "deadlock|rank-failed",
    faulty=(1,),
    what="a rank leaves by sys.exit(0) while another waits in a barrier",
)
def leaves_by_exit(rank: int, world: int) -> None:
    dist.all_reduce(torch.ones(1))
    if rank == 1:
        sys.exit(0)  # <- here
    dist.barrier()  # <- here


@bug("B27", "invalid-call", faulty=(0, 1), bare=True, what="a group of the world before")
def group_of_the_world_before(rank: int, world: int) -> None:
    start()
    old = dist.new_group([0, 1])
    dist.destroy_process_group()
    start()
    dist.all_reduce(torch.ones(1), group=old)  # <- here
    dist.destroy_process_group()


@bug(
    "B28",
    "mismatch|leak|deadlock",
    ranks=3,
    faulty=(1,),
    what="one member does not destroy a group that the others destroy, then all go on",
)
def one_does_not_destroy(rank: int, world: int) -> None:
    group = dist.new_group([0, 1, 2])
    dist.all_reduce(torch.ones(1), group=group)
    if rank != 1:
        dist.destroy_process_group(group)  # <- here
    dist.all_reduce(torch.ones(1))


@bug("B29", "leak", bare=True, profile="nccl", what="no destroy_process_group at the end")
def never_destroyed(rank: int, world: int) -> None:
    start()
    dist.all_reduce(torch.ones(1))


@bug("B30", "invalid-call", faulty=(0, 1), bare=True, what="a collective before init")
def before_init(rank: int, world: int) -> None:
    dist.all_reduce(torch.ones(1))  # <- here


@bug(
    "B31",
    "unwaited-work|in-flight-buffer|invalid-call",
    faulty=(0, 1),
    what="a group is destroyed while an operation on it is in flight",
)
def destroyed_in_flight(rank: int, world: int) -> None:
    group = dist.new_group([0, 1])
    total = torch.ones(4)
    work = dist.all_reduce(total, group=group, async_op=True)  # <- here
    dist.destroy_process_group(group)  # <- here
    del work
    dist.barrier()


@bug("B32", "invalid-call", faulty=(0, 1), what="a group destroyed twice")
def destroyed_twice(rank: int, world: int) -> None:
    group = dist.new_group([0, 1])
    dist.destroy_process_group(group)
    dist.destroy_process_group(group)  # <- here


@bug("B33", "invalid-call", faulty=(0, 1), bare=True, what="a new group after the end")
def new_group_after_the_end(rank: int, world: int) -> None:
    start()
    dist.destroy_process_group()
    dist.new_group([0, 1])  # <- here


@bug(
    "B34",
    "deadlock|unmatched-message|unwaited-work",
    ranks=3,
    bare=True,
    faulty=None,
    what="a rank leaves before the message for it is sent",
)
def leaves_before_message(rank: int, world: int) -> None:
    start()
    dist.barrier()
    if rank == 0:
        dist.send(torch.ones(4), dst=2)  # <- here
    dist.destroy_process_group()


@bug("B35", "invalid-call", faulty=(0, 1), bare=True, what="the default group destroyed first")
def default_destroyed_first(rank: int, world: int) -> None:
    start()
    group = dist.new_group([0, 1])
    dist.destroy_process_group()
    dist.all_reduce(torch.ones(1), group=group)  # <- here


@bug("B36", "leak|mismatch", ranks=3, faulty=(1,), bare=True, what="one rank never destroys")
def one_never_destroys(rank: int, world: int) -> None:
    start()
    dist.all_reduce(torch.ones(1))
    if rank != 1:
        dist.destroy_process_group()  # <- here


@bug(
    "B37", "deadlock", ranks=3, faulty=(2,), bare=True, what="a monitored barrier, one returned"
)
def monitored_without_one(rank: int, world: int) -> None:
    start()
    dist.barrier()
    if rank != 2:
        dist.monitored_barrier()  # <- here
