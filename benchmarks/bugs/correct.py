"""Programs that are right and look odd: a tool that says anything about them is wrong."""

from __future__ import annotations

import threading
import time
from datetime import timedelta

import torch
import torch.distributed as dist
import torch.distributed._functional_collectives as funcol

from benchmarks.bugs.programs import fine, start


def _done(*works: dist.Work | None) -> None:
    for work in works:
        assert work is not None
        work.wait()


def _store() -> dist.Store:
    store: dist.Store = dist.distributed_c10d._get_default_store()
    return store


@fine("X1", ranks=3, what="uneven transposed splits")
def uneven_splits(rank: int, world: int) -> None:
    sent = [rank + peer + 1 for peer in range(world)]
    received = torch.empty(sum(sent))
    dist.all_to_all_single(received, torch.ones(sum(sent)), sent, sent)


@fine("X2", ranks=4, what="point to point between some ranks, then a barrier by all")
def some_then_all(rank: int, world: int) -> None:
    if rank == 1:
        dist.send(torch.ones(2), dst=3)
    elif rank == 3:
        dist.recv(torch.empty(2), src=1)
    dist.barrier()


@fine("X3", ranks=4, what="disjoint groups do different things")
def disjoint_groups(rank: int, world: int) -> None:
    low, high = dist.new_group([0, 1]), dist.new_group([2, 3])
    if rank < 2:
        dist.all_reduce(torch.ones(2), group=low)
    else:
        for _ in range(3):
            dist.broadcast(torch.ones(5), src=2, group=high)
    dist.barrier()


@fine("X4", what="waits in a different order on each rank")
def waits_in_any_order(rank: int, world: int) -> None:
    works = [dist.all_reduce(torch.ones(2), async_op=True) for _ in range(3)]
    _done(*(works if rank == 0 else reversed(works)))


@fine("X5", what="waiting twice")
def waits_twice(rank: int, world: int) -> None:
    total = torch.ones(2)
    work = dist.all_reduce(total, async_op=True)
    _done(work, work)
    total.add_(1)


@fine("X6", what="tags received out of order")
def tags_out_of_order(rank: int, world: int) -> None:
    if rank == 0:
        _done(*[dist.isend(torch.full((1,), float(t)), dst=1, tag=t) for t in (1, 2, 3)])
    else:
        for tag in (3, 1, 2):
            part = torch.empty(1)
            dist.recv(part, src=0, tag=tag)
            assert part.item() == tag


@fine("X7", ranks=4, what="receives from any source, used commutatively")
def any_source_summed(rank: int, world: int) -> None:
    if rank:
        dist.send(torch.ones(1), dst=0)
        return
    total = torch.zeros(1)
    for _ in range(world - 1):
        part = torch.empty(1)
        dist.recv(part)
        total += part
    assert total.item() == world - 1


@fine("X8", ranks=3, what="empty tensors")
def empty_tensors(rank: int, world: int) -> None:
    dist.all_reduce(torch.empty(0))
    sent = [1 if peer == 0 else 0 for peer in range(world)]
    received = [1] * world if rank == 0 else [0] * world
    dist.all_to_all_single(torch.empty(sum(received)), torch.ones(1), received, sent)


@fine("X9", what="the same collective from different lines")
def different_lines(rank: int, world: int) -> None:
    total = torch.ones(1)
    if rank == 0:
        total.fill_(3)
        dist.all_reduce(total)
    else:
        dist.all_reduce(total)
    dist.all_reduce(total)


@fine("X10", what="stacked against flat gather output")
def stacked_and_flat(rank: int, world: int) -> None:
    shape = (1, 3) if rank == 0 else (3,)
    output = torch.empty(world * shape[0], *shape[1:])
    dist.all_gather_into_tensor(output, torch.ones(shape))


@fine("X11", ranks=3, what="None for the list on ranks that are not the root")
def none_on_others(rank: int, world: int) -> None:
    parts = [torch.ones(2) for _ in range(world)]
    dist.scatter(torch.empty(2), parts if rank == 1 else None, src=1)
    dist.gather(torch.ones(2), parts if rank == 2 else None, dst=2)


@fine("X12", ranks=3, what="objects of different size")
def objects_of_any_size(rank: int, world: int) -> None:
    gathered: list[object] = [None] * world
    dist.all_gather_object(gathered, "x" * 1000 * rank)
    shared = [list(range(500))] if rank == 0 else [None]
    dist.broadcast_object_list(shared, src=0)
    assert shared[0] is not None


@fine("X13", ranks=3, what="a slow rank")
def slow_rank(rank: int, world: int) -> None:
    if rank == 1:
        time.sleep(0.3)
    dist.all_reduce(torch.ones(1))


@fine("X14", what="get_future().then, and the future waited for")
def future_then(rank: int, world: int) -> None:
    work = dist.all_reduce(torch.ones(2), async_op=True)
    assert work is not None
    half = work.get_future().then(lambda done: done.value()[0] / 2)
    assert half.wait().tolist() == [1, 1]


@fine("X15", ranks=4, what="non-members skip a group's calls")
def non_members_skip(rank: int, world: int) -> None:
    odd = dist.new_group([1, 3])
    if rank % 2:
        dist.all_reduce(torch.ones(2), group=odd)
    dist.barrier()


@fine("X16", ranks=3, what="a rank leaves after its last operation", bare=True)
def leaves_when_done(rank: int, world: int) -> None:
    start()
    pair = dist.new_group([0, 1])
    if rank < 2:
        dist.all_reduce(torch.ones(1), group=pair)
        dist.destroy_process_group()
    else:
        dist.destroy_process_group()


@fine("X17", what="a legal all_gather in place")
def gathered_in_place(rank: int, world: int) -> None:
    full = torch.zeros(world * 2)
    mine = full[rank * 2 : rank * 2 + 2]
    mine.fill_(rank + 1)
    dist.all_gather_into_tensor(full, mine)
    assert full.tolist() == [1, 1, 2, 2]


@fine("X18", what="two threads with a group each")
def a_group_for_each_thread(rank: int, world: int) -> None:
    groups = [dist.new_group([0, 1]), dist.new_group([0, 1])]

    def reduce_on(group: dist.ProcessGroup) -> None:
        for _ in range(3):
            dist.all_reduce(torch.ones(1), group=group)

    helpers = [threading.Thread(target=reduce_on, args=(group,)) for group in groups]
    for helper in helpers:
        helper.start()
    for helper in helpers:
        helper.join()


@fine("X19", ranks=4, what="a batched ring", profile="nccl")
def batched_ring(rank: int, world: int) -> None:
    for _ in range(2):
        ops = [
            dist.P2POp(dist.isend, torch.ones(2), (rank + 1) % world),
            dist.P2POp(dist.irecv, torch.empty(2), (rank - 1) % world),
        ]
        _done(*dist.batch_isend_irecv(ops))


@fine("X20", what="the input of a gather is read in flight")
def input_read(rank: int, world: int) -> None:
    mine, full = torch.ones(2), torch.empty(4)
    work = dist.all_gather_into_tensor(full, mine, async_op=True)
    mine.sum().item()
    _done(work)


@fine("X21", what="a store key set late")
def key_set_late(rank: int, world: int) -> None:
    if rank == 0:
        time.sleep(0.2)
        _store().set("late", "1")
    else:
        _store().wait(["late"], timedelta(seconds=3))
        assert _store().get("late") == b"1"


@fine("X22", what="dtypes that change between calls")
def dtypes_change(rank: int, world: int) -> None:
    for dtype in (torch.float32, torch.float64, torch.int64):
        dist.all_reduce(torch.ones(2, dtype=dtype))


@fine("X23", what="repeated init and destroy", bare=True)
def initialised_again(rank: int, world: int) -> None:
    for _ in range(3):
        start()
        dist.all_reduce(torch.ones(1))
        dist.destroy_process_group()


@fine("X24", ranks=3, what="rank 0 alone talks to the store")
def store_on_one(rank: int, world: int) -> None:
    if rank == 0:
        _store().set("log", "begun")
        assert _store().get("log") == b"begun"
        _store().add("steps", 1)
    dist.barrier()


@fine("X25", what="a send and a receive that cross, posted without blocking")
def posted_then_waited(rank: int, world: int) -> None:
    peer = 1 - rank
    received = dist.irecv(torch.empty(2), src=peer)
    dist.send(torch.ones(2), dst=peer)
    _done(received)


@fine("X26", what="works waited for one step later: two buffers in turn")
def double_buffering(rank: int, world: int) -> None:
    buffers, works = [torch.zeros(2), torch.zeros(2)], [None, None]
    for step in range(6):
        turn = step % 2
        work: dist.Work | None = works[turn]
        if work is not None:
            work.wait()
        buffers[turn].fill_(step)
        works[turn] = dist.all_reduce(buffers[turn], async_op=True)
    _done(*works)


@fine("X27", ranks=3, what="different slices of one tensor in two operations in flight")
def slices_in_flight(rank: int, world: int) -> None:
    flat = torch.ones(8)
    works = [dist.all_reduce(flat[:4], async_op=True), dist.all_reduce(flat[4:], async_op=True)]
    _done(*works)
    assert flat.sum().item() == 8 * world


@fine("X28", what="one tensor sent to two receivers, and read meanwhile", ranks=3)
def sent_twice(rank: int, world: int) -> None:
    message = torch.ones(4)
    if rank == 0:
        works = [dist.isend(message, dst=1), dist.isend(message, dst=2)]
        message.sum()
        _done(*works)
    else:
        dist.recv(message, src=0)


@fine("X29", what="the result of a functional collective is used")
def functional_used(rank: int, world: int) -> None:
    result = funcol.all_reduce(torch.ones(2), "sum", group=dist.group.WORLD)
    assert (result + 1).tolist() == [3, 3]


@fine("X30", ranks=4, what="overlapping groups, in the same order everywhere", profile="nccl")
def overlapping_groups(rank: int, world: int) -> None:
    groups = [dist.new_group([0, 1, 2]), dist.new_group([1, 2, 3])]
    for group, members in zip(groups, ([0, 1, 2], [1, 2, 3]), strict=True):
        if rank in members:
            dist.all_reduce(torch.ones(1), group=group)
    dist.barrier()


@fine("X31", ranks=3, what="groups made and destroyed in every step")
def destroyed_in_every_step(rank: int, world: int) -> None:
    for _ in range(12):
        group = dist.new_group([0, 1, 2])
        dist.all_reduce(torch.ones(1), group=group)
        dist.destroy_process_group(group)


@fine("X32", what="a helper reduces this and that: one line, other tensors")
def one_helper(rank: int, world: int) -> None:
    def average(value: float) -> float:
        tensor = torch.tensor(value)
        dist.all_reduce(tensor)
        return tensor.item() / world

    for value in (1.0, 2.0, 3.0):
        average(value + rank)


@fine("X33", what="a coalescing manager, waited for")
def coalesced(rank: int, world: int) -> None:
    tensors = [torch.ones(2), torch.ones(3)]
    with dist._coalescing_manager(async_ops=True) as manager:
        for tensor in tensors:
            dist.all_reduce(tensor)
    manager.wait()
    assert tensors[1].tolist() == [2, 2, 2]


@fine("X34", ranks=4, what="a tree of sends, by rank")
def tree(rank: int, world: int) -> None:
    value = torch.ones(1)
    step = 1
    while step < world:
        if rank % (2 * step) == step:
            dist.send(value, dst=rank - step)
            break
        part = torch.empty(1)
        dist.recv(part, src=rank + step)
        value += part
        step *= 2
    dist.barrier()


@fine("X35", what="an error that all ranks catch alike")
def caught_by_all(rank: int, world: int) -> None:
    try:
        raise RuntimeError("bad batch on every rank")
    except RuntimeError:
        dist.barrier()
    dist.all_reduce(torch.ones(1))


@fine("X36", what="is_completed polled, then waited for")
def polled(rank: int, world: int) -> None:
    work = dist.all_reduce(torch.ones(1), async_op=True)
    assert work is not None
    while not work.is_completed():
        time.sleep(0.001)
    work.wait()


@fine("X37", ranks=3, what="a counter in the store that only counts arrivals")
def counted_arrivals(rank: int, world: int) -> None:
    _store().add("arrived", 1)
    dist.barrier()
    assert _store().add("arrived", 0) == world


@fine("X38", what="one thread after the other uses the group")
def thread_in_turn(rank: int, world: int) -> None:
    dist.all_reduce(torch.ones(1))
    helper = threading.Thread(target=lambda: dist.all_reduce(torch.ones(1)))
    helper.start()
    helper.join()
    dist.all_reduce(torch.ones(1))


@fine("X39", ranks=3, what="roots take turns, each from its own line")
def roots_take_turns(rank: int, world: int) -> None:
    for root in range(world):
        tensor = torch.full((2,), float(rank))
        if rank == root:
            dist.broadcast(tensor, src=root)
        else:
            dist.broadcast(tensor, src=root)
        assert tensor.tolist() == [root, root]


@fine("X40", what="a probe of each size: broadcast the shape, then the data")
def shape_first(rank: int, world: int) -> None:
    shape = torch.tensor([3, 2]) if rank == 0 else torch.empty(2, dtype=torch.int64)
    dist.broadcast(shape, src=0)
    dist.broadcast(torch.ones(*shape.tolist()), src=0)


@fine("X41", ranks=3, what="uneven all_gather, by padding and by counts")
def padded(rank: int, world: int) -> None:
    mine = torch.ones(rank + 1)
    sizes = [torch.empty(1, dtype=torch.int64) for _ in range(world)]
    dist.all_gather(sizes, torch.tensor([len(mine)]))
    longest = int(max(sizes))
    outputs = [torch.empty(longest) for _ in range(world)]
    dist.all_gather(outputs, torch.nn.functional.pad(mine, (0, longest - len(mine))))


@fine("X42", what="two groups in the same order, asynchronous", profile="nccl")
def groups_in_order(rank: int, world: int) -> None:
    groups = [dist.new_group([0, 1]), dist.new_group([0, 1])]
    _done(*[dist.all_reduce(torch.ones(1), group=group, async_op=True) for group in groups])


@fine("X43", ranks=4, what="groups in opposite order with a wait in between", profile="nccl")
def ordered_by_waits(rank: int, world: int) -> None:
    first, second = dist.new_group([0, 1, 2, 3]), dist.new_group([0, 1, 2, 3])
    for a, b in ((first, second), (second, first)):
        dist.all_reduce(torch.ones(1), group=a)
        dist.all_reduce(torch.ones(1), group=b)


@fine("X44", ranks=3, what="roots of a subgroup named in both ways, meaning the same")
def same_root_both_ways(rank: int, world: int) -> None:
    group = dist.new_group([1, 2])
    if rank:
        dist.broadcast(torch.ones(1), src=2, group=group)
        dist.broadcast(torch.ones(1), group=group, group_src=1)


@fine("X45", what="a tensor is written after its own wait, others still in flight")
def written_after_own_wait(rank: int, world: int) -> None:
    first, second = torch.ones(2), torch.ones(2)
    works = [dist.all_reduce(first, async_op=True), dist.all_reduce(second, async_op=True)]
    _done(works[0])
    first.mul_(2)
    _done(works[1])


@fine("X46", ranks=3, what="a monitored barrier in time")
def monitored(rank: int, world: int) -> None:
    dist.monitored_barrier(timeout=timedelta(seconds=3))
    dist.barrier()


@fine("X47", ranks=3, what="answers of any source, each told by who sent it")
def any_source_by_sender(rank: int, world: int) -> None:
    if rank:
        dist.send(torch.full((1,), float(rank)), dst=0)
        return
    results = torch.zeros(world)
    for _ in range(world - 1):
        part = torch.empty(1)
        source = dist.recv(part)
        results[source] = part.item()
    assert results.tolist() == [0, 1, 2]


@fine("X48", ranks=3, what="a rank that takes another number of local steps")
def local_steps(rank: int, world: int) -> None:
    for _ in range(2):
        for _ in range(rank + 1):
            torch.ones(2).sum()
        dist.all_reduce(torch.ones(1))


@fine("X49", what="alternating lines: even steps here, odd steps there")
def alternating_lines(rank: int, world: int) -> None:
    for step in range(6):
        if (step + rank) % 2:
            dist.all_reduce(torch.ones(1))
        else:
            dist.all_reduce(torch.ones(1))


@fine("X50", what="a destroyed group's tensors are used on")
def used_after_group(rank: int, world: int) -> None:
    group = dist.new_group([0, 1])
    total = torch.ones(2)
    work = dist.all_reduce(total, group=group, async_op=True)
    _done(work)
    dist.destroy_process_group(group)
    total.add_(1)
