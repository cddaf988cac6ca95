"""Class G: results that depend on who comes first."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor

import torch
import torch.distributed as dist

from benchmarks.bugs.programs import bug


@bug(
    "G2",
    "message-race|deadlock",
    ranks=3,
    faulty=(0,),
    what="a receive from any source takes the message a later one from rank 1 needs",
)
def any_source_takes_it(rank: int, world: int) -> None:
    if rank == 0:
        dist.recv(torch.empty(1))  # <- here
        dist.recv(torch.empty(1), src=1)  # <- here
    else:
        dist.send(torch.ones(1), dst=0)  # <- here


@bug(
    "G4", "thread-race", faulty=(0, 1), what="a background thread uses the main thread's group"
)
def background_thread(rank: int, world: int) -> None:
    def heartbeat() -> None:
        for _ in range(3):
            dist.all_reduce(torch.ones(1))  # <- here

    helper = threading.Thread(target=heartbeat)
    helper.start()
    for _ in range(3):
        dist.all_reduce(torch.ones(1))  # <- here
    helper.join()


@bug(
    "G21", "message-race", ranks=3, faulty=(0,), what="results are kept in the order of arrival"
)
def order_of_arrival(rank: int, world: int) -> None:
    if rank:
        dist.send(torch.full((1,), float(rank)), dst=0)
        return
    results = []
    for _ in range(world - 1):
        part = torch.empty(1)
        dist.recv(part)  # <- here
        results.append(part.item())
    torch.tensor(results).diff()


@bug(
    "G22",
    "message-race",
    faulty=(0, 1),
    what="check, then set: both ranks may find the key missing",
)
def check_then_set(rank: int, world: int) -> None:
    store = dist.distributed_c10d._get_default_store()
    if not store.check(["leader"]):  # <- here
        store.set("leader", str(rank))  # <- here
    dist.barrier()
    store.get("leader")


@bug("G23", "message-race", ranks=3, what="a key that two ranks set is read by a third")
def key_set_twice(rank: int, world: int) -> None:
    store = dist.distributed_c10d._get_default_store()
    if rank < 2:
        store.set("best", str(rank))  # <- here
    else:
        store.get("best")  # <- here
    dist.barrier()


@bug("G24", "thread-race", faulty=(0, 1), what="two workers of a pool reduce on one group")
def pool_of_workers(rank: int, world: int) -> None:
    def reduce_one(value: float) -> None:
        dist.all_reduce(torch.tensor(value))  # <- here

    with ThreadPoolExecutor(2) as pool:
        list(pool.map(reduce_one, [1.0, 2.0, 3.0, 4.0]))


@bug(
    "G25",
    "thread-race",
    faulty=(0, 1),
    what="a checkpoint thread gathers objects while training goes on",
)
def checkpoint_thread(rank: int, world: int) -> None:
    def save() -> None:
        names: list[object] = [None] * world
        dist.all_gather_object(names, f"shard{rank}")  # <- here

    saver = threading.Thread(target=save)
    saver.start()
    dist.all_gather_object([None] * world, "step")  # <- here
    saver.join()


@bug(
    "G27",
    "thread-race",
    faulty=(0, 1),
    what="a thread posts sends on the group on which the main one does",
)
def threads_send(rank: int, world: int) -> None:
    peer = 1 - rank

    def exchange(value: float) -> None:
        if rank == 0:
            dist.send(torch.full((1,), value), dst=peer)  # <- here
        else:
            dist.recv(torch.empty(1), src=peer)  # <- here

    helper = threading.Thread(target=exchange, args=(1.0,))
    helper.start()
    exchange(2.0)
    helper.join()


@bug(
    "G28",
    "message-race|mismatch|deadlock",
    ranks=3,
    faulty=(0,),
    what="any-source receives of two phases that nothing separates",
)
def phases_not_separated(rank: int, world: int) -> None:
    if rank == 0:
        phases = []
        for _ in range(2):
            for _ in range(world - 1):
                part = torch.empty(1)
                dist.recv(part)  # <- here
                phases.append(part.item())
        return
    for phase in range(2):
        dist.send(torch.full((1,), float(phase)), dst=0)


@bug(
    "G30",
    "message-race|deadlock",
    ranks=3,
    faulty=(0,),
    what="any source first, then one rank by name twice",
)
def any_source_then_named(rank: int, world: int) -> None:
    if rank == 0:
        dist.recv(torch.empty(1))  # <- here
        dist.recv(torch.empty(1), src=2)  # <- here
        dist.recv(torch.empty(1), src=1)  # <- here
    else:
        for _ in range(3 - rank):
            dist.send(torch.ones(1), dst=0)  # <- here


@bug(
    "G31",
    "thread-race",
    faulty=(0, 1),
    what="a thread broadcasts metrics while the main one has a barrier",
)
def metrics_thread(rank: int, world: int) -> None:
    def report() -> None:
        dist.broadcast(torch.ones(2), src=0)  # <- here

    reporter = threading.Thread(target=report)
    reporter.start()
    dist.broadcast(torch.zeros(2), src=1)  # <- here
    reporter.join()


@bug(
    "G32",
    "thread-race",
    ranks=3,
    faulty=range(3),
    what="asynchronous calls of two threads on one group",
)
def asynchronous_threads(rank: int, world: int) -> None:
    works: list[dist.Work | None] = []

    def reduce_some() -> None:
        for _ in range(2):
            works.append(dist.all_reduce(torch.ones(2), async_op=True))  # <- here

    helper = threading.Thread(target=reduce_some)
    helper.start()
    reduce_some()
    helper.join()
    for work in works:
        assert work is not None
        work.wait()


@bug("G33", "thread-race", faulty=(0, 1), what="a callback reduces while the main thread does")
def callback_communicates(rank: int, world: int) -> None:
    def follow_up(done: torch.futures.Future[list[torch.Tensor]]) -> None:
        dist.all_reduce(torch.ones(1))  # <- here

    work = dist.all_reduce(torch.ones(1), async_op=True)
    assert work is not None
    following = work.get_future().then(follow_up)
    dist.all_reduce(torch.zeros(1))  # <- here
    following.wait()
