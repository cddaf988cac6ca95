"""Programs with one mistake each, and correct ones that look like mistakes.

The letters are those of the list of bugs that the checks were measured on. Each takes a group
of all ranks but the last, or None for the world, so that the same mistake is made on both.
"""

from __future__ import annotations

import time
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

Group = Any


def subgroup() -> Group:
    return dist.new_group(list(range(dist.get_world_size() - 1)))


def on_the_world(mistake: Any) -> None:
    mistake(None)


def on_a_subgroup(mistake: Any) -> None:
    group = subgroup()
    if dist.get_rank(group) >= 0:
        mistake(group)


# -- parameters that must match -----------------------------------------------------------


def e1_roots(group: Group) -> None:
    dist.all_reduce(torch.ones(1), group=group)
    dist.broadcast(torch.ones(3), src=dist.get_rank(), group=group)


def e2_dtypes(group: Group) -> None:
    odd = dist.get_rank(group) == 1
    dist.all_reduce(torch.ones(3, dtype=torch.bfloat16 if odd else torch.float32), group=group)


def e5_reduce_ops(group: Group) -> None:
    odd = dist.get_rank(group) == 0
    op = dist.ReduceOp.MAX if odd else dist.ReduceOp.SUM
    dist.all_reduce(torch.ones(3), op=op, group=group)


def e7_counts(group: Group) -> None:
    dist.all_reduce(torch.ones(6 if dist.get_rank(group) == 1 else 4), group=group)


def e7_counts_asynchronously(group: Group) -> None:
    tensor = torch.ones(6 if dist.get_rank(group) == 1 else 4)
    dist.all_reduce(tensor, group=group, async_op=True).wait()


def e9_splits(group: Group) -> None:
    size = dist.get_world_size(group)
    out = [1] * size
    rows = [2, *out[1:]] if dist.get_rank(group) == 0 else out
    data = torch.ones(sum(rows), 2)
    dist.all_to_all_single(torch.zeros(size, 2), data, out, rows, group=group)


def e11_message_sizes(group: Group) -> None:
    if dist.get_rank(group) == 0:
        dist.send(torch.ones(3), dst=1, group=group)
    elif dist.get_rank(group) == 1:
        dist.recv(torch.ones(5), src=0, group=group)


def e11_message_sizes_asynchronously(group: Group) -> None:
    if dist.get_rank(group) == 0:
        dist.isend(torch.ones(3), dst=1, group=group).wait()
    elif dist.get_rank(group) == 1:
        dist.irecv(torch.ones(5), src=0, group=group).wait()


def e14_tags(group: Group) -> None:
    if dist.get_rank(group) == 0:
        dist.send(torch.ones(3), dst=1, tag=1, group=group)
    elif dist.get_rank(group) == 1:
        dist.recv(torch.ones(3), src=0, tag=2, group=group)


# -- order of calls -----------------------------------------------------------------------


def f1_operations(group: Group) -> None:
    dist.barrier(group=group)
    if dist.get_rank(group) == 1:
        rows = [torch.ones(2) for _ in range(dist.get_world_size(group))]
        dist.all_gather(rows, torch.ones(2), group=group)
    else:
        dist.all_reduce(torch.ones(2), group=group)


def f2_skipped(group: Group) -> None:
    if dist.get_rank(group) != 1:
        dist.all_reduce(torch.ones(1), group=group)
    dist.barrier(group=group)


def f12_nobody_sends(group: Group) -> None:
    if dist.get_rank(group) == 1:
        dist.recv(torch.ones(3), src=0, group=group)
    dist.barrier(group=group)


def f12_nobody_sends_to_any(group: Group) -> None:
    if dist.get_rank(group) == 1:
        dist.recv(torch.ones(3), group=group)
    dist.barrier(group=group)


def f14_ring(group: Group) -> None:
    rank, size = dist.get_rank(group), dist.get_world_size(group)
    dist.recv(torch.ones(3), src=(rank - 1) % size, group=group)
    dist.send(torch.ones(3), dst=(rank + 1) % size, group=group)


def f15_crossed(group: Group) -> None:
    members = dist.get_process_group_ranks(group or dist.group.WORLD)
    first = dist.new_group(members, use_local_synchronization=True)
    second = dist.new_group(members, use_local_synchronization=True)
    groups = (first, second) if dist.get_rank(group) else (second, first)
    for each in groups:
        dist.all_reduce(torch.ones(1), group=each)


def b4_returned(group: Group) -> None:
    dist.barrier(group=group)
    if dist.get_rank(group) != 1:
        dist.all_reduce(torch.ones(2), group=group)


def k1_failed(group: Group) -> None:
    if dist.get_rank(group) == dist.get_world_size(group) - 1:
        raise ValueError("no batch")
    dist.all_reduce(torch.ones(2), group=group)


MISTAKES = [
    e1_roots,
    e2_dtypes,
    e5_reduce_ops,
    e7_counts,
    e7_counts_asynchronously,
    e9_splits,
    e11_message_sizes,
    e11_message_sizes_asynchronously,
    e14_tags,
    f1_operations,
    f2_skipped,
    f12_nobody_sends,
    f12_nobody_sends_to_any,
    f14_ring,
    f15_crossed,
    b4_returned,
    k1_failed,
]


# -- below DDP and functional collectives -------------------------------------------------


def ddp_with_an_unused_parameter() -> None:
    """One rank's backward never comes to a parameter, and the others wait for its bucket."""
    model = nn.ModuleList([nn.Linear(2, 2), nn.Linear(2, 2)])
    ddp = DistributedDataParallel(_Either(model))
    ddp(torch.ones(1, 2), dist.get_rank() == 1).sum().backward()
    dist.barrier()


class _Either(nn.Module):
    def __init__(self, parts: nn.ModuleList) -> None:
        super().__init__()
        self.parts = parts

    def forward(self, data: torch.Tensor, short: bool) -> torch.Tensor:
        first = self.parts[0](data)
        return first if short else self.parts[1](first)


def ddp_of_different_models() -> None:
    DistributedDataParallel(nn.Linear(2, 3 if dist.get_rank() == 1 else 2))


def functional_counts() -> None:
    from torch.distributed import _functional_collectives as functional

    tensor = torch.ones(6 if dist.get_rank() == 1 else 4)
    functional.all_reduce(tensor, "sum", dist.group.WORLD) + 1


def functional_skipped() -> None:
    from torch.distributed import _functional_collectives as functional

    if dist.get_rank() != 1:
        functional.all_reduce(torch.ones(4), "sum", dist.group.WORLD) + 1


# -- correct programs ---------------------------------------------------------------------


def uneven_lists() -> int:
    rank, size = dist.get_rank(), dist.get_world_size()
    rows = [each + 1 for each in range(size)]
    out = torch.zeros(size * (rank + 1))
    dist.all_to_all_single(out, torch.ones(sum(rows)), [rank + 1] * size, rows)
    return int(out.sum())


def some_exchange_then_all() -> None:
    rank = dist.get_rank()
    if rank == 0:
        dist.send(torch.ones(2), 1)
    elif rank == 1:
        dist.recv(torch.ones(2), 0)
    dist.barrier()


def disjoint_groups() -> None:
    groups = [dist.new_group([0, 1]), dist.new_group([2, 3])]
    if dist.get_rank() < 2:
        dist.all_reduce(torch.ones(2), group=groups[0])
    else:
        for _ in range(3):
            dist.broadcast(torch.ones(1), src=2, group=groups[1])
    dist.barrier()


def waits_in_any_order() -> float:
    tensors = [torch.ones(2) * each for each in range(3)]
    works = [dist.all_reduce(each, async_op=True) for each in tensors]
    order = [0, 1, 2] if dist.get_rank() % 2 else [2, 0, 1]
    for at in order:
        works[at].wait()
        works[at].wait()
    return float(sum(each.sum() for each in tensors))


def tags_out_of_order() -> list[float]:
    rank = dist.get_rank()
    one, two = torch.ones(1), torch.ones(1) * 2
    if rank == 0:
        works = [dist.isend(one, 1, tag=1), dist.isend(two, 1, tag=2)]
    elif rank == 1:
        works = [dist.irecv(two, 0, tag=2), dist.irecv(one, 0, tag=1)]
    else:
        works = []
    for work in works:
        work.wait()
    return [one.item(), two.item()]


def any_source() -> float:
    rank, size = dist.get_rank(), dist.get_world_size()
    total, each = torch.zeros(1), torch.zeros(1)
    if rank == 0:
        for _ in range(2 * (size - 1)):
            dist.recv(each)
            total += each
    else:
        dist.send(torch.ones(1) * rank, 0)
        dist.send(torch.ones(1) * rank, 0)
    dist.barrier()
    return float(total)


def any_source_then_the_other() -> int:
    """Which one comes first is the backend's choice; the rest is asked for by name."""
    rank = dist.get_rank()
    data = torch.zeros(1)
    first = -1
    if rank == 0:
        first = dist.recv(data)
        for source in {1, 2, 3} - {first}:
            dist.recv(data, src=source)
    else:
        dist.send(torch.ones(1), 0)
    dist.barrier()
    return int(first)


def empty_and_changing() -> None:
    dist.all_reduce(torch.ones(0))
    for dtype in (torch.float32, torch.int64, torch.float64):
        dist.all_reduce(torch.ones(3, dtype=dtype))


def from_different_lines() -> None:
    tensor = torch.ones(2)
    if dist.get_rank() % 2:
        dist.all_reduce(tensor)
    else:
        dist.all_reduce(tensor)


def lists_of_the_root_only() -> None:
    rank, size = dist.get_rank(), dist.get_world_size()
    parts = [torch.ones(2) for _ in range(size)] if rank == 1 else None
    dist.gather(torch.ones(2), parts, dst=1)
    dist.scatter(torch.ones(2), parts, src=1)


def objects() -> list[Any]:
    rank, size = dist.get_rank(), dist.get_world_size()
    found: list[Any] = [None] * size
    dist.all_gather_object(found, "x" * (rank * 50 + 1))
    dist.broadcast_object_list([rank, {"a": [rank] * 20}], src=2)
    return [len(each) for each in found]


def leaves_early() -> None:
    work = None
    if dist.get_rank() == 0:
        work = dist.isend(torch.ones(1), 1)
        work.wait()
    elif dist.get_rank() == 1:
        dist.recv(torch.ones(1), 0)


def batched_ring() -> float:
    rank, size = dist.get_rank(), dist.get_world_size()
    mine, other = torch.ones(3) * rank, torch.zeros(3)
    works = dist.batch_isend_irecv(
        [
            dist.P2POp(dist.isend, mine, (rank + 1) % size),
            dist.P2POp(dist.irecv, other, (rank - 1) % size),
        ]
    )
    for work in works:
        work.wait()
    return float(other[0])


def futures() -> float:
    tensor = torch.ones(2)
    future = dist.all_reduce(tensor, async_op=True).get_future()
    done = future.then(lambda result: result.value()[0] * 10)
    return float(done.wait()[0])


def groups_of_threads() -> None:
    import threading

    groups = [dist.new_group(), dist.new_group()]

    def work(at: int) -> None:
        for _ in range(10):
            dist.all_reduce(torch.ones(at + 1), group=groups[at])

    threads = [threading.Thread(target=work, args=(at,)) for at in range(2)]
    order = threads if dist.get_rank() % 2 else threads[::-1]
    for thread in order:
        thread.start()
    for thread in order:
        thread.join()


def store_that_goes() -> None:
    """A group that met over a file, which is removed before the group is used."""
    import os
    import tempfile
    import time

    rank, size = dist.get_rank(), dist.get_world_size()
    path = [tempfile.mktemp() if rank == 0 else None]
    dist.broadcast_object_list(path, 0)
    store = dist.distributed_c10d._get_default_store()
    dist.barrier()
    dist.destroy_process_group()
    dist.init_process_group("gloo", init_method=f"file://{path[0]}", rank=rank, world_size=size)
    time.sleep(0.3)  # until all have connected
    if rank == 0:
        os.remove(str(path[0]))
    time.sleep(0.3)
    dist.all_reduce(torch.ones(1))
    assert not os.path.exists(str(path[0]))
    dist.barrier()
    dist.destroy_process_group()
    store = dist.PrefixStore("afterwards", store)
    dist.init_process_group("gloo", store=store, rank=rank, world_size=size)


def many_forms_of_threads() -> None:
    """Threads have forms forgotten that others are about to use."""
    import threading

    from phalanx.engines.remote import watcher

    groups = [dist.new_group() for _ in range(3)]
    failed: list[BaseException] = []

    def work(group: dist.ProcessGroup) -> None:
        try:
            for size in range(1, 150):
                dist.all_reduce(torch.ones(size), group=group)
        except BaseException as error:
            failed.append(error)

    most, watcher.MOST_FORMS = watcher.MOST_FORMS, 2
    try:
        threads = [threading.Thread(target=work, args=(group,)) for group in groups]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    finally:
        watcher.MOST_FORMS = most
    if failed:
        raise failed[0]


def thread_without_python_frames() -> None:
    """As autograd's threads for a GPU: native code calls the operator."""
    import _thread
    import time

    tensor = torch.ones(2)
    _thread.start_new_thread(dist.group.WORLD.allreduce, ([tensor],))
    limit = time.monotonic() + 50  # of a busy machine
    while tensor[0] != dist.get_world_size():
        assert time.monotonic() < limit
        time.sleep(0.01)
    dist.barrier()


def thread_unknown_to_threading() -> None:
    """Rank 0 waits for what rank 1 sends when it has got what a thread of rank 0 sends."""
    import _thread
    import time

    group, begun, done = dist.new_group([0, 1]), _thread.allocate_lock(), []
    begun.acquire()

    def send_later() -> None:
        begun.release()
        time.sleep(0.2)
        dist.send(torch.ones(1), 1, group=group)
        done.append(True)

    if dist.get_rank() == 0:
        _thread.start_new_thread(send_later, ())
        begun.acquire()
        dist.recv(torch.ones(1), 1)
        while not done:
            time.sleep(0.01)
    elif dist.get_rank() == 1:
        dist.recv(torch.ones(1), 0, group=group)
        dist.send(torch.ones(1), 0)
    dist.barrier()


def late_key() -> None:
    import time

    store = dist.distributed_c10d._get_default_store()
    if dist.get_rank() == 0:
        time.sleep(0.3)
        store.set("late", "here")
    else:
        store.wait(["late"])
    dist.barrier()


def once_more() -> None:
    """All ranks destroy their group and make it again."""
    from torch.distributed import distributed_c10d as c10d

    rank, size = dist.get_rank(), dist.get_world_size()
    for turn in range(2):
        store = dist.PrefixStore(f"again {turn}", c10d._get_default_store())
        dist.barrier()
        kept = c10d._get_default_store()
        dist.destroy_process_group()
        dist.init_process_group("gloo", store=store, rank=rank, world_size=size)
        dist.all_reduce(torch.ones(2))
        del kept


def monitored() -> None:
    dist.monitored_barrier()
    dist.all_reduce(torch.ones(1))


def ddp_training() -> float:
    torch.manual_seed(1)
    model = DistributedDataParallel(nn.Sequential(nn.Linear(3, 3), nn.Linear(3, 1)))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for _ in range(4):
        optimizer.zero_grad()
        model(torch.ones(2, 3) * dist.get_rank()).sum().backward()
        optimizer.step()
    return float(sum(each.detach().sum() for each in model.parameters()))


def ddp_join() -> None:
    model = DistributedDataParallel(nn.Linear(2, 1))
    with model.join():
        for _ in range(dist.get_rank() + 1):
            model(torch.ones(1, 2)).sum().backward()


def ddp_with_different_parts() -> None:
    either = _Either(nn.ModuleList([nn.Linear(2, 2), nn.Linear(2, 2)]))
    model = DistributedDataParallel(either, find_unused_parameters=True)
    for _ in range(3):
        model(torch.ones(1, 2), dist.get_rank() == 1).sum().backward()


def functional() -> float:
    from torch.distributed import _functional_collectives as functional

    total = functional.all_reduce(torch.ones(3), "sum", dist.group.WORLD)
    rows = functional.all_reduce(total + 1, "max", dist.group.WORLD)
    return float((rows + 0).sum())


def sparse_by_the_group() -> None:
    rank = dist.get_rank()
    sparse = torch.sparse_coo_tensor([[0, rank]], [1.0, 2.0], (4,), check_invariants=True)
    if rank:
        time.sleep(0.1)  # rank 0 waits
    dist.group.WORLD.allreduce([sparse]).wait()
    assert float(sparse.to_dense().sum()) == 3 * dist.get_world_size()


CORRECT = [
    sparse_by_the_group,
    uneven_lists,
    some_exchange_then_all,
    disjoint_groups,
    waits_in_any_order,
    tags_out_of_order,
    any_source,
    any_source_then_the_other,
    empty_and_changing,
    from_different_lines,
    lists_of_the_root_only,
    objects,
    leaves_early,
    batched_ring,
    futures,
    groups_of_threads,
    store_that_goes,
    many_forms_of_threads,
    thread_unknown_to_threading,
    thread_without_python_frames,
    late_key,
    once_more,
    monitored,
    ddp_training,
    ddp_join,
    ddp_with_different_parts,
    functional,
]
