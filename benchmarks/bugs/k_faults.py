"""Class K: a rank fails, and what the others make of it."""

from __future__ import annotations

import os
import signal
import sys
from contextlib import suppress
from datetime import timedelta

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from benchmarks.bugs.programs import bug


@bug("K1", "rank-failed", ranks=3, faulty=(1,), what="a rank dies inside a step")
def dies_in_a_step(rank: int, world: int) -> None:
    for step in range(3):
        if rank == 1 and step == 1:
            raise RuntimeError("out of memory")  # <- here
        dist.all_reduce(torch.ones(2))


@bug(
    "K3",
    "mismatch",
    ranks=3,
    faulty=(1,),
    what="an error is swallowed: the next call meets the wrong one",
)
def swallowed(rank: int, world: int) -> None:
    try:
        if rank == 1:
            raise RuntimeError("bad sample")
        dist.all_reduce(torch.ones(2))  # <- here
    except RuntimeError:
        pass
    dist.broadcast(torch.ones(2), src=0)  # <- here


@bug("K21", "mismatch", ranks=4, faulty=(2,), what="a step is skipped where the loss is NaN")
def skipped_where_nan(rank: int, world: int) -> None:
    for step in range(3):
        loss = torch.tensor(float("nan") if (rank, step) == (2, 1) else 1.0)
        if loss.isnan():
            dist.barrier()  # <- here
            continue
        dist.all_reduce(loss)  # <- here
    dist.barrier()


@bug(
    "K22",
    "mismatch|deadlock",
    ranks=3,
    faulty=(0,),
    what="out of memory is caught, and the batch with its reduction left out",
)
def batch_left_out(rank: int, world: int) -> None:
    for step in range(3):
        try:
            if (rank, step) == (0, 1):
                raise MemoryError("batch too large")
            dist.all_reduce(torch.ones(4))  # <- here
        except MemoryError:
            continue
    dist.barrier()  # <- here


@bug("K23", "rank-failed", faulty=(1,), what="a rank ends by os._exit(3)")
def ends_by_exit(rank: int, world: int) -> None:
    dist.all_reduce(torch.ones(1))
    if rank == 1:
        os._exit(3)  # <- here
    dist.all_reduce(torch.ones(1))


@bug("K24", "rank-failed|mismatch", ranks=3, faulty=(2,), what="a finally that communicates")
def finally_communicates(rank: int, world: int) -> None:
    try:
        if rank == 2:
            raise ValueError("no such file")  # <- here
        dist.all_reduce(torch.ones(2))  # <- here
    finally:
        dist.barrier()  # <- here


@bug("K25", "rank-failed", faulty=(1,), what="an assertion fails on one rank of DDP")
def assertion_in_training(rank: int, world: int) -> None:
    model = DistributedDataParallel(nn.Linear(2, 1))
    for step in range(2):
        loss = model(torch.ones(1, 2)).sum()
        assert (rank, step) != (1, 1), "loss went up"  # <- here
        loss.backward()


@bug("K26", "mismatch", ranks=3, faulty=(1,), what="the data end early on one rank")
def data_end_early(rank: int, world: int) -> None:
    batches = iter(range(2 if rank == 1 else 3))
    while True:
        try:
            next(batches)
        except StopIteration:
            break
        dist.all_reduce(torch.ones(4))  # <- here
    dist.barrier()  # <- here


@bug("K27", "rank-failed", ranks=3, faulty=(0,), what="a rank leaves with sys.exit(1)")
def leaves_with_one(rank: int, world: int) -> None:
    dist.barrier()
    if rank == 0:
        sys.exit(1)  # <- here
    dist.all_reduce(torch.ones(1))


@bug("K28", "unmatched-message|unwaited-work|deadlock", faulty=(0,), what="a send is retried")
def retried(rank: int, world: int) -> None:
    if rank == 0:
        for _ in range(2):
            work = dist.isend(torch.ones(1), dst=1)  # <- here
        assert work is not None
    else:
        dist.recv(torch.empty(1), src=0)
    dist.barrier()


@bug(
    "K29",
    "deadlock|mismatch",
    ranks=3,
    faulty=(1,),
    what="survivors time out in a monitored barrier, swallow it and go on",
)
def survivors_go_on(rank: int, world: int) -> None:
    if rank == 1:
        return  # <- here
    with suppress(RuntimeError):
        dist.monitored_barrier(timeout=timedelta(seconds=0.5))  # <- here
    dist.all_reduce(torch.ones(1))  # <- here


@bug("K30", "rank-failed", ranks=4, faulty=(1, 3), what="two ranks fail alike")
def two_fail(rank: int, world: int) -> None:
    if rank % 2:
        raise KeyError("label")  # <- here
    dist.barrier()


@bug("K31", "rank-failed", ranks=3, faulty=(2,), what="a rank kills itself by a signal")
def killed(rank: int, world: int) -> None:
    dist.all_reduce(torch.ones(1))
    if rank == 2:
        os.kill(os.getpid(), signal.SIGKILL)  # <- here
    dist.all_reduce(torch.ones(1))


@bug(
    "K32", "mismatch|deadlock", ranks=3, faulty=(0,), what="a wrong call is caught and left out"
)
def wrong_call_caught(rank: int, world: int) -> None:
    with suppress(Exception):
        dist.broadcast(torch.ones(1), src=9 if rank == 0 else 1)  # <- here
    dist.all_reduce(torch.ones(2))  # <- here


@bug("K33", "rank-failed", ranks=4, faulty=(2,), what="a rank fails in a gradient hook")
def fails_in_hook(rank: int, world: int) -> None:
    model = DistributedDataParallel(nn.Linear(2, 1))

    def check(grad: torch.Tensor) -> None:
        if rank == 2:
            raise FloatingPointError("gradient is not finite")  # <- here

    model.module.weight.register_hook(check)
    model(torch.ones(1, 2)).sum().backward()


@bug("K34", "rank-failed", faulty=(1,), what="a rank fails while another waits for its message")
def fails_before_send(rank: int, world: int) -> None:
    if rank == 0:
        dist.recv(torch.empty(4), src=1)
    else:
        [][0]  # <- here


@bug("K35", "mismatch|deadlock", ranks=3, faulty=(1,), what="a step is tried again by one rank")
def tried_again(rank: int, world: int) -> None:
    for attempt in range(2):
        dist.all_reduce(torch.ones(2))  # <- here
        if rank != 1 or attempt == 1:
            break
    dist.barrier()  # <- here
