"""Class D: a tensor is used while an operation on it is in flight."""

from __future__ import annotations

import torch
import torch.distributed as dist

from benchmarks.bugs.programs import bug

KIND = "in-flight-buffer"


def _done(*works: dist.Work | None) -> None:
    for work in works:
        assert work is not None
        work.wait()


@bug("D1", KIND, faulty=(0, 1), what="in-place add to the input of an all_reduce in flight")
def add_in_flight(rank: int, world: int) -> None:
    grad = torch.ones(4)
    work = dist.all_reduce(grad, async_op=True)  # <- here
    grad.add_(1)  # <- here
    _done(work)


@bug("D3", KIND, faulty=(0, 1), what="one tensor in two operations in flight")
def in_two_operations(rank: int, world: int) -> None:
    grad = torch.ones(4)
    first = dist.all_reduce(grad, async_op=True)  # <- here
    second = dist.all_reduce(grad, op=dist.ReduceOp.MAX, async_op=True)  # <- here
    _done(first, second)


@bug("D4", KIND, faulty=(0,), what="one buffer refilled for four isends")
def refilled_buffer(rank: int, world: int) -> None:
    buffer = torch.empty(2)
    if rank == 0:
        works = []
        for step in range(4):
            buffer.fill_(step)  # <- here
            works.append(dist.isend(buffer, dst=1))  # <- here
        _done(*works)
    else:
        for _ in range(4):
            dist.recv(buffer, src=0)


@bug("D21", KIND, faulty=(0, 1), what="the result of an all_reduce is read before the wait")
def read_before_wait(rank: int, world: int) -> None:
    loss = torch.ones(1)
    work = dist.all_reduce(loss, async_op=True)  # <- here
    loss.item()  # <- here
    _done(work)


@bug("D22", KIND, faulty=(1,), what="the buffer of an irecv is read before the wait")
def read_before_received(rank: int, world: int) -> None:
    buffer = torch.zeros(4)
    if rank == 0:
        dist.send(torch.ones(4), dst=1)
    else:
        work = dist.irecv(buffer, src=0)  # <- here
        (buffer * 2).sum()  # <- here
        _done(work)


@bug("D23", KIND, faulty=(0,), what="a view of an isend's buffer is written")
def view_written(rank: int, world: int) -> None:
    buffer = torch.ones(4)
    if rank == 0:
        work = dist.isend(buffer, dst=1)  # <- here
        buffer[1:3].zero_()  # <- here
        _done(work)
    else:
        dist.recv(buffer, src=0)


@bug("D24", KIND, faulty=(0, 1), what="the memory of an input is written through NumPy")
def written_through_numpy(rank: int, world: int) -> None:
    grad = torch.ones(4)
    raw = grad.numpy()
    work = dist.all_reduce(grad, async_op=True)  # <- here
    raw += 1  # <- here
    _done(work)


@bug("D25", KIND, faulty=(0, 1), what="the storage is freed while a gather reads it")
def storage_freed(rank: int, world: int) -> None:
    shard = torch.ones(2)
    full = torch.empty(4)
    work = dist.all_gather_into_tensor(full, shard, async_op=True)  # <- here
    shard.untyped_storage().resize_(0)  # <- here
    _done(work)


@bug("D26", KIND, faulty=(0, 1), what="gathered tensors are used before the wait")
def gathered_too_early(rank: int, world: int) -> None:
    outputs = [torch.zeros(2) for _ in range(world)]
    work = dist.all_gather(outputs, torch.ones(2), async_op=True)  # <- here
    torch.cat(outputs).sum()  # <- here
    _done(work)


@bug("D27", KIND, faulty=(1,), what="two irecvs into views that overlap")
def overlapping_receives(rank: int, world: int) -> None:
    buffer = torch.empty(6)
    if rank == 0:
        dist.send(torch.ones(4), dst=1)
        dist.send(torch.ones(4), dst=1)
    else:
        first = dist.irecv(buffer[:4], src=0)  # <- here
        second = dist.irecv(buffer[2:], src=0)  # <- here
        _done(first, second)


@bug("D28", KIND, faulty=(0, 1), what="the optimizer steps before the gradients have arrived")
def step_before_wait(rank: int, world: int) -> None:
    model = torch.nn.Linear(2, 1, bias=False)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    model(torch.ones(1, 2)).sum().backward()
    grads = [p.grad for p in model.parameters() if p.grad is not None]
    works = [dist.all_reduce(grad, async_op=True) for grad in grads]  # <- here
    optimizer.step()  # <- here
    _done(*works)


@bug("D29", KIND, ranks=3, faulty=(0,), what="the root of a broadcast refills its tensor")
def root_refills(rank: int, world: int) -> None:
    weights = torch.ones(4)
    work = dist.broadcast(weights, src=0, async_op=True)  # <- here
    if rank == 0:
        weights.copy_(torch.zeros(4))  # <- here
    _done(work)


@bug("D30", KIND, faulty=(0, 1), what="one tensor is reduced and received into at once")
def reduced_and_received(rank: int, world: int) -> None:
    buffer = torch.ones(4)
    peer = 1 - rank
    work = dist.all_reduce(buffer, async_op=True)  # <- here
    sent = dist.isend(torch.ones(4), peer)
    received = dist.irecv(buffer, peer)  # <- here
    _done(work, sent, received)


@bug("D31", KIND, faulty=(0, 1), what="a write with out= into a tensor in flight")
def written_by_out(rank: int, world: int) -> None:
    total = torch.ones(4)
    work = dist.all_reduce(total, async_op=True)  # <- here
    torch.add(torch.ones(4), 1, out=total)  # <- here
    _done(work)


@bug("D32", KIND, faulty=(0, 1), what="a write through .data, which no version counts")
def written_through_data(rank: int, world: int) -> None:
    parameter = torch.nn.Parameter(torch.ones(4))
    work = dist.all_reduce(parameter.data, async_op=True)  # <- here
    parameter.data.mul_(0.5)  # <- here
    _done(work)


@bug("D33", KIND, faulty=(0, 1), what="gradients set to zero by foreach while in flight")
def zeroed_in_flight(rank: int, world: int) -> None:
    grads = [torch.ones(2), torch.ones(3)]
    works = [dist.all_reduce(grad, async_op=True) for grad in grads]  # <- here
    torch._foreach_zero_(grads)  # <- here
    _done(*works)


@bug("D34", KIND, faulty=(0, 1), what="the input of a reduce_scatter is refilled")
def reduce_scatter_input(rank: int, world: int) -> None:
    full, shard = torch.ones(4), torch.empty(2)
    work = dist.reduce_scatter_tensor(shard, full, async_op=True)  # <- here
    full.zero_()  # <- here
    _done(work)


@bug("D35", KIND, faulty=(1,), what="of two works the other one is waited for")
def other_work_waited(rank: int, world: int) -> None:
    first, second = torch.ones(2), torch.ones(2)
    works = [dist.all_reduce(first, async_op=True), dist.all_reduce(second, async_op=True)]
    if rank == 0:
        _done(*works)
    else:
        _done(works[0])
        second.sum()  # <- here
        _done(works[1])


@bug("D36", KIND, faulty=(0,), what="an isend's buffer resized in flight")
def resized_in_flight(rank: int, world: int) -> None:
    if rank == 0:
        buffer = torch.ones(4)
        work = dist.isend(buffer, dst=1)  # <- here
        buffer.resize_(1024)  # <- here
        _done(work)
    else:
        dist.recv(torch.empty(4), src=0)


@bug("D37", KIND, faulty=(0, 1), what="double buffering that swaps one step too late")
def swapped_too_late(rank: int, world: int) -> None:
    buffers = [torch.zeros(4), torch.zeros(4)]
    works: list[dist.Work | None] = []
    for step in range(4):
        buffer = buffers[(step // 2) % 2]
        buffer.fill_(step)  # <- here
        works.append(dist.all_reduce(buffer, async_op=True))  # <- here
        if len(works) == 2:
            _done(works.pop(0))
    _done(*works)


@bug("D38", KIND, faulty=(0, 1), what="the output of an all_to_all is unpacked too early")
def unpacked_too_early(rank: int, world: int) -> None:
    tokens, received = torch.ones(4, 2), torch.zeros(4, 2)
    work = dist.all_to_all_single(received, tokens, async_op=True)  # <- here
    received.view(2, 2, 2).sum(0)  # <- here
    _done(work)


@bug("D39", KIND, faulty=(1,), what="two irecvs into one buffer")
def received_into_twice(rank: int, world: int) -> None:
    buffer = torch.empty(4)
    if rank == 0:
        dist.send(torch.ones(4), dst=1)
        dist.send(torch.ones(4), dst=1)
    else:
        works = [dist.irecv(buffer, src=0), dist.irecv(buffer, src=0)]  # <- here
        _done(*works)


@bug("D40", KIND, faulty=(0, 1), what="the input of a gather in flight is overwritten")
def gather_input_written(rank: int, world: int) -> None:
    mine, full = torch.ones(2), torch.empty(4)
    work = dist.all_gather_into_tensor(full, mine, async_op=True)  # <- here
    mine[0] = 5  # <- here
    _done(work)


@bug("D41", KIND, ranks=3, faulty=(1, 2), what="a broadcast's target is read before the wait")
def broadcast_target_read(rank: int, world: int) -> None:
    weights = torch.zeros(4)
    work = dist.broadcast(weights, src=0, async_op=True)  # <- here
    if rank:
        weights.clone()  # <- here
    _done(work)


@bug("D42", KIND, faulty=(0, 1), what="interleaved elements of one tensor in two operations")
def interleaved(rank: int, world: int) -> None:
    buffer = torch.ones(6)
    first = dist.all_reduce(buffer[:4], async_op=True)  # <- here
    second = dist.all_reduce(buffer[3:], async_op=True)  # <- here
    _done(first, second)


@bug("D43", KIND, faulty=(0,), what="a message is built in place by indices while it is sent")
def indexed_write(rank: int, world: int) -> None:
    if rank == 0:
        message = torch.zeros(8)
        work = dist.isend(message, dst=1)  # <- here
        message[torch.tensor([1, 3])] = 1.0  # <- here
        _done(work)
    else:
        dist.recv(torch.empty(8), src=0)


@bug("D44", KIND, faulty=(0, 1), what="a running mean is updated while its copy is reduced")
def running_mean(rank: int, world: int) -> None:
    layer = torch.nn.BatchNorm1d(2)
    mean = layer.running_mean
    assert mean is not None
    work = dist.all_reduce(mean, async_op=True)  # <- here
    layer(torch.ones(4, 2))  # <- here
    _done(work)
