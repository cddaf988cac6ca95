"""More programs that are right and look odd: idioms that come near to what checks look for."""

from __future__ import annotations

import queue
import tempfile
import threading
import time
from contextlib import suppress
from datetime import timedelta

import torch
import torch.distributed as dist
import torch.distributed._functional_collectives as funcol
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.nn.parallel import DistributedDataParallel

from benchmarks.bugs.programs import fine, start


def _done(*works: dist.Work | None) -> None:
    for work in works:
        assert work is not None
        work.wait()


def _store() -> dist.Store:
    store: dist.Store = dist.distributed_c10d._get_default_store()
    return store


@fine("X101", ranks=3, what="tickets from a counter: who takes which shard is open on purpose")
def tickets(rank: int, world: int) -> None:
    for _ in range(2):
        shard = _store().add("next", 1)
        _store().set(f"result/{shard}", "done")
    dist.barrier()
    for shard in range(1, 2 * world + 1):
        assert _store().get(f"result/{shard}") == b"done"


@fine("X102", ranks=3, what="a leader elected by compare_set")
def elected(rank: int, world: int) -> None:
    _store().compare_set("leader", "", str(rank))
    dist.barrier()
    leader = int(_store().get("leader"))
    dist.broadcast(torch.ones(2), src=leader)


@fine("X103", what="a work that another thread waits for")
def waited_elsewhere(rank: int, world: int) -> None:
    total = torch.ones(2)
    work = dist.all_reduce(total, async_op=True)
    assert work is not None
    waiter = threading.Thread(target=work.wait)
    waiter.start()
    waiter.join()
    total.add_(1)


@fine("X104", what="gradients reduced in hooks, all waited for before the step")
def reduced_in_hooks(rank: int, world: int) -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    works: list[dist.Work | None] = []

    def launch(parameter: torch.Tensor) -> None:
        assert parameter.grad is not None
        works.append(dist.all_reduce(parameter.grad, async_op=True))

    for parameter in model.parameters():
        parameter.register_post_accumulate_grad_hook(launch)
    for _ in range(3):
        model(torch.ones(1, 2)).sum().backward()
        _done(*works)
        works.clear()
        optimizer.step()
        optimizer.zero_grad()


@fine("X105", what="a thread uses the group while the main one waits for its signal")
def handed_over(rank: int, world: int) -> None:
    finished = threading.Event()

    def work() -> None:
        dist.all_reduce(torch.ones(1))
        finished.set()

    helper = threading.Thread(target=work)
    helper.start()
    finished.wait()
    dist.all_reduce(torch.ones(1))
    helper.join()


@fine("X106", what="one thread communicates for the rank, fed by a queue")
def communication_thread(rank: int, world: int) -> None:
    orders: queue.Queue[torch.Tensor | None] = queue.Queue()

    def serve() -> None:
        while (tensor := orders.get()) is not None:
            dist.all_reduce(tensor)

    server = threading.Thread(target=serve)
    server.start()
    for _ in range(3):
        orders.put(torch.ones(2))
    orders.put(None)
    server.join()
    dist.barrier()


@fine("X107", ranks=3, what="requests from any source, answered by name, told apart by tags")
def served(rank: int, world: int) -> None:
    if rank:
        dist.send(torch.full((1,), float(rank)), dst=0, tag=1)
        answer = torch.empty(1)
        dist.recv(answer, src=0, tag=2)
        assert answer.item() == rank * 2
        return
    for _ in range(world - 1):
        request = torch.empty(1)
        source = dist.recv(request, tag=1)
        dist.send(request * 2, dst=source, tag=2)


@fine("X108", what="a part of a tensor is written while another part is in flight")
def other_part_written(rank: int, world: int) -> None:
    flat = torch.ones(8)
    work = dist.all_reduce(flat[:4], async_op=True)
    flat[4:].add_(1)
    flat[4:].sum()
    _done(work)
    assert flat[:4].tolist() == [2.0] * 4


@fine("X109", what="buckets of flat views, reduced, waited for, read through the parameters")
def buckets(rank: int, world: int) -> None:
    flat = torch.ones(10)
    views = [flat[:4].view(2, 2), flat[4:6], flat[6:]]
    works = [dist.all_reduce(flat[:6], async_op=True), dist.all_reduce(flat[6:], async_op=True)]
    for work in works:
        _done(work)
    assert all((view == world).all() for view in views)


@fine("X110", ranks=4, what="groups made by their members alone, synchronised locally")
def local_synchronization(rank: int, world: int) -> None:
    first = rank // 2 * 2
    pair = dist.new_group([first, first + 1], use_local_synchronization=True)
    dist.all_reduce(torch.ones(1), group=pair)
    dist.barrier()


@fine("X111", ranks=8, what="many groups from one line at the start, as for a grid")
def many_groups(rank: int, world: int) -> None:
    rows = [dist.new_group([i, i + 1]) for i in range(0, world, 2)]
    columns = [dist.new_group(list(range(i, world, 2))) for i in range(2)]
    dist.all_reduce(torch.ones(1), group=rows[rank // 2])
    dist.all_reduce(torch.ones(1), group=columns[rank % 2])


@fine("X112", what="a script that never destroys its group", bare=True)
def never_destroys(rank: int, world: int) -> None:
    start()
    dist.all_reduce(torch.ones(1))


@fine("X113", what="a future waited for instead of the work")
def future_waited(rank: int, world: int) -> None:
    totals = [torch.ones(2), torch.ones(3)]
    works = [dist.all_reduce(total, async_op=True) for total in totals]
    torch.futures.wait_all([work.get_future() for work in works if work is not None])
    assert totals[1].tolist() == [2, 2, 2]


@fine("X114", what="functional results waited for by hand, and one that goes into another")
def functional_chain(rank: int, world: int) -> None:
    world_group = dist.group.WORLD
    first = funcol.all_reduce(torch.ones(2), "sum", group=world_group)
    second = funcol.all_reduce(first * 2, "sum", group=world_group)
    assert funcol.wait_tensor(second).tolist() == [8, 8]


@fine("X115", what="a store's wait that runs out of time and is caught")
def caught_timeout(rank: int, world: int) -> None:
    if rank == 0:
        with suppress(Exception):
            _store().wait(["never"], timedelta(seconds=0.2))
    dist.barrier()


@fine("X116", ranks=3, what="branches by rank with lines of their own, in the same order")
def branches_in_order(rank: int, world: int) -> None:
    if rank == 0:
        mean, variance = torch.ones(4), torch.zeros(4)
        dist.broadcast(mean, src=0)
        dist.broadcast(variance, src=0)
    else:
        first, second = torch.empty(4), torch.empty(4)
        dist.broadcast(first, src=0)
        dist.broadcast(second, src=0)


@fine("X117", what="a pipeline with receives posted ahead")
def posted_ahead(rank: int, world: int) -> None:
    if rank == 0:
        for step in range(4):
            dist.send(torch.full((2,), float(step)), dst=1)
        return
    buffers = [torch.empty(2) for _ in range(4)]
    works = [dist.irecv(buffer, src=0) for buffer in buffers]
    for step, (work, buffer) in enumerate(zip(works, buffers, strict=True)):
        _done(work)
        assert buffer.tolist() == [step, step]


@fine("X118", what="the same tensor reduced again after its wait")
def reduced_again(rank: int, world: int) -> None:
    total = torch.ones(2)
    for _ in range(3):
        _done(dist.all_reduce(total, async_op=True))
        total /= world


@fine("X119", ranks=4, what="subgroups take different numbers of steps, then meet")
def own_pace(rank: int, world: int) -> None:
    groups = [dist.new_group([0, 1]), dist.new_group([2, 3])]
    for _ in range(2 + 3 * (rank // 2)):
        dist.all_reduce(torch.ones(1), group=groups[rank // 2])
    dist.barrier()


@fine("X120", what="the two halves of a ring by parity: no buffering needed")
def by_parity(rank: int, world: int) -> None:
    peer = 1 - rank
    if rank % 2:
        dist.recv(torch.empty(2), src=peer)
        dist.send(torch.ones(2), dst=peer)
    else:
        dist.send(torch.ones(2), dst=peer)
        dist.recv(torch.empty(2), src=peer)


@fine("X121", what="a checkpoint written by all ranks together")
def checkpoint(rank: int, world: int) -> None:
    folder = [tempfile.mkdtemp()] if rank == 0 else [None]
    dist.broadcast_object_list(folder, src=0)
    model = DistributedDataParallel(nn.Linear(2, 1))
    if rank == 0:
        torch.save(model.module.state_dict(), f"{folder[0]}/model.pt")
    dist.barrier()
    model.module.load_state_dict(torch.load(f"{folder[0]}/model.pt"))


@fine("X122", ranks=4, what="a grid's groups, used by each rank in its own order of need")
def grid_in_turn(rank: int, world: int) -> None:
    grid = init_device_mesh("cpu", (2, 2), mesh_dim_names=("dp", "tp"))
    for _ in range(2):
        dist.all_reduce(torch.ones(2), group=grid.get_group("tp"))
        dist.all_reduce(torch.ones(2), group=grid.get_group("dp"))
    dist.barrier()


@fine("X123", what="a slow thread beside the rank that never communicates")
def quiet_thread(rank: int, world: int) -> None:
    loader = threading.Thread(target=lambda: time.sleep(0.1))
    loader.start()
    for _ in range(5):
        dist.all_reduce(torch.ones(1))
    loader.join()


@fine("X124", what="the buffer of a send that was waited for is used for the next")
def buffer_reused(rank: int, world: int) -> None:
    buffer = torch.empty(2)
    for step in range(4):
        if rank == 0:
            buffer.fill_(step)
            _done(dist.isend(buffer, dst=1))
        else:
            dist.recv(buffer, src=0)
            assert buffer.tolist() == [step, step]


@fine("X125", what="a gradient's tensor is let go while its reduction is in flight")
def let_go(rank: int, world: int) -> None:
    works = [dist.all_reduce(torch.ones(1000), async_op=True) for _ in range(3)]
    _done(*works)


@fine("X127", what="a loop in which loss and accuracy change places in every step, everywhere")
def changing_places(rank: int, world: int) -> None:
    loss, accuracy = torch.ones(1), torch.zeros(1)
    for step in range(4):
        if step % 2:
            dist.all_reduce(loss)
            dist.all_reduce(accuracy)
        else:
            dist.all_reduce(accuracy)
            dist.all_reduce(loss)


@fine("X128", ranks=3, what="a rank's own numbers: each broadcasts its part, in turn")
def parts_in_turn(rank: int, world: int) -> None:
    parts = [torch.zeros(2) for _ in range(world)]
    parts[rank].fill_(rank + 1)
    works = [dist.broadcast(part, src=root, async_op=True) for root, part in enumerate(parts)]
    _done(*works)
    assert [part[0].item() for part in parts] == [1, 2, 3]


@fine("X129", ranks=3, what="group ranks spelled both ways, in two groups")
def both_spellings(rank: int, world: int) -> None:
    group = dist.new_group([1, 2])
    if rank:
        root = dist.get_global_rank(group, 0)
        dist.broadcast(torch.ones(1), src=root, group=group)
        dist.reduce(torch.ones(1), dst=1, group=group)
        dist.all_reduce(torch.ones(1), group=group)
    dist.broadcast(torch.ones(1), src=1)


@fine("X130", ranks=3, what="rank 1 fails a try on its own and all know before they go on")
def agreed_on_failure(rank: int, world: int) -> None:
    failed = torch.zeros(1)
    try:
        if rank == 1:
            raise ValueError("bad sample")
    except ValueError:
        failed.fill_(1)
    dist.all_reduce(failed, op=dist.ReduceOp.MAX)
    if not failed.item():
        dist.all_reduce(torch.ones(4))
    dist.barrier()


@fine("X131", ranks=4, what="batched pairs after a barrier of all", profile="nccl")
def batched_after_barrier(rank: int, world: int) -> None:
    dist.all_reduce(torch.ones(1))
    peer = rank ^ 1
    ops = [
        dist.P2POp(dist.isend, torch.ones(1), peer),
        dist.P2POp(dist.irecv, torch.empty(1), peer),
    ]
    _done(*dist.batch_isend_irecv(ops))


@fine("X132", ranks=3, what="a chain of blocking sends and receives", profile="nccl")
def chain(rank: int, world: int) -> None:
    dist.all_reduce(torch.ones(1))
    value = torch.ones(2)
    if rank > 0:
        dist.recv(value, src=rank - 1)
    if rank < world - 1:
        dist.send(value, dst=rank + 1)
