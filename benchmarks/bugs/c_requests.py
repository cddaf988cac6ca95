"""Class C: a Work that nobody waits for."""

from __future__ import annotations

import torch
import torch.distributed as dist
import torch.distributed._functional_collectives as funcol

from benchmarks.bugs.programs import bug

KIND = "unwaited-work"


@bug("C2", KIND, faulty=(0, 1), what="the Work of an asynchronous all_reduce is dropped")
def work_dropped(rank: int, world: int) -> None:
    dist.all_reduce(torch.ones(4), async_op=True)  # <- here
    dist.barrier()


@bug("C3", KIND, faulty=(0, 1), what="a coalescing manager is never waited for")
def coalesced_not_waited(rank: int, world: int) -> None:
    tensors = [torch.ones(2), torch.ones(3)]
    with dist._coalescing_manager(async_ops=True):  # <- here
        for tensor in tensors:
            dist.all_reduce(tensor)  # <- here
    dist.barrier()


@bug(
    "C6",
    "in-flight-buffer|unwaited-work",
    faulty=(0, 1),
    what="a loop keeps the last Work only, then reads all results",
)
def last_work_only(rank: int, world: int) -> None:
    grads = [torch.full((2,), float(i)) for i in range(4)]
    for grad in grads:
        work = dist.all_reduce(grad, async_op=True)  # <- here
    work.wait()
    sum(grad.sum() for grad in grads)  # <- here


@bug("C21", KIND, faulty=(0,), what="the Work of an isend is dropped")
def isend_dropped(rank: int, world: int) -> None:
    if rank == 0:
        dist.isend(torch.ones(4), dst=1)  # <- here
    else:
        dist.recv(torch.empty(4), src=0)
    dist.barrier()


@bug(
    "C22",
    "unwaited-work|in-flight-buffer",
    faulty=(1,),
    what="an irecv is not waited for, and its buffer is used",
)
def irecv_not_waited(rank: int, world: int) -> None:
    buffer = torch.zeros(4)
    if rank == 0:
        dist.send(torch.ones(4), dst=1)
    else:
        dist.irecv(buffer, src=0)  # <- here
        buffer.mul_(2)  # <- here
    dist.barrier()


@bug("C23", KIND, faulty=(0, 1), what="the result of a functional all_reduce is dropped")
def functional_dropped(rank: int, world: int) -> None:
    tensor = torch.ones(4)
    funcol.all_reduce(tensor, "sum", group=dist.group.WORLD)  # <- here
    dist.barrier()


@bug("C24", KIND, faulty=(0, 1), what="of a batch of requests only the first is waited for")
def first_of_batch(rank: int, world: int) -> None:
    peer = 1 - rank
    ops = [
        dist.P2POp(dist.isend, torch.ones(2), peer),
        dist.P2POp(dist.irecv, torch.empty(2), peer),
    ]
    works = dist.batch_isend_irecv(ops)  # <- here
    works[0].wait()
    dist.barrier()


@bug("C25", KIND, faulty=(1,), what="one of two ranks does not wait")
def one_rank_does_not_wait(rank: int, world: int) -> None:
    work = dist.all_reduce(torch.ones(4), async_op=True)  # <- here
    if rank == 0 and work is not None:
        work.wait()
    dist.barrier()


@bug("C26", KIND, faulty=(0, 1), what="works are collected in a list and forgotten")
def list_forgotten(rank: int, world: int) -> None:
    pending = []
    for _ in range(3):
        pending.append(dist.all_reduce(torch.ones(4), async_op=True))  # <- here
    dist.barrier()


@bug("C27", KIND, faulty=(0, 1), what="an asynchronous barrier that nobody waits for")
def barrier_not_waited(rank: int, world: int) -> None:
    dist.barrier(async_op=True)  # <- here
    torch.ones(4).sum()


@bug(
    "C28",
    "unwaited-work|in-flight-buffer",
    faulty=(0, 1),
    what="a prefetched all_gather whose wait an early return skips",
)
def early_return(rank: int, world: int) -> None:
    full = torch.empty(4)

    def prefetch(skip: bool) -> None:
        work = dist.all_gather_into_tensor(full, torch.ones(2), async_op=True)  # <- here
        if skip:
            return
        assert work is not None
        work.wait()

    prefetch(True)
    dist.barrier()


@bug("C29", KIND, ranks=3, faulty=(2,), what="the wait sits under the wrong if")
def wait_under_if(rank: int, world: int) -> None:
    for step in range(2):
        work = dist.broadcast(torch.ones(4), src=0, async_op=True)  # <- here
        if rank != 2 or step == 0:
            assert work is not None
            work.wait()


@bug(
    "C31",
    "unmatched-message|unwaited-work",
    faulty=(0,),
    what="an isend that nobody ever receives",
)
def isend_without_receiver(rank: int, world: int) -> None:
    if rank == 0:
        dist.isend(torch.ones(4), dst=1)  # <- here
    dist.barrier()


@bug(
    "C32",
    "unmatched-message|unwaited-work",
    faulty=(1,),
    what="an irecv posted once too often at the end of a pipeline",
)
def irecv_once_too_often(rank: int, world: int) -> None:
    for step in range(2):
        if rank == 0:
            dist.send(torch.ones(4), dst=1)
        elif step == 0:
            dist.recv(torch.empty(4), src=0)
            ahead = dist.irecv(torch.empty(4), src=0)
        else:
            assert ahead is not None
            ahead.wait()
            dist.irecv(torch.empty(4), src=0)  # <- here
    dist.barrier()


@bug("C33", KIND, ranks=3, faulty=(0, 1, 2), what="an asynchronous all_to_all is dropped")
def all_to_all_dropped(rank: int, world: int) -> None:
    received = torch.empty(3)
    dist.all_to_all_single(received, torch.ones(3), async_op=True)  # <- here
    dist.all_reduce(torch.ones(1))


@bug("C34", KIND, faulty=(0, 1), what="the Work is kept in an object that nobody asks again")
def kept_in_an_object(rank: int, world: int) -> None:
    class Bucket:
        def launch(self, tensor: torch.Tensor) -> None:
            self.work = dist.all_reduce(tensor, async_op=True)  # <- here

    bucket = Bucket()
    bucket.launch(torch.ones(4))
    dist.barrier()


@bug("C35", KIND, faulty=(0,), what="a receiver waits, its sender does not, in every step")
def sender_never_waits(rank: int, world: int) -> None:
    for step in range(3):
        if rank == 0:
            dist.isend(torch.full((2,), float(step)), dst=1)  # <- here
        else:
            work = dist.irecv(torch.empty(2), src=0)
            assert work is not None
            work.wait()


@bug("C36", KIND, faulty=(0, 1), what="an exception between a call and its wait is swallowed")
def exception_before_wait(rank: int, world: int) -> None:
    try:
        work = dist.all_reduce(torch.ones(4), async_op=True)  # <- here
        int("not a number")
        assert work is not None
        work.wait()
    except ValueError:
        pass
    dist.barrier()
