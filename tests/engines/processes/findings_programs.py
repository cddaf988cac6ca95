"""Programs with what checks find besides calls that do not fit, for threads and processes.

Each is named by the kind that it gives; those in `SILENT` are in order. They run on 4 ranks.
"""

from __future__ import annotations

import threading
import time
import warnings

import torch
import torch.distributed as dist


def finish(work: dist.Work | None) -> None:
    assert work is not None
    work.wait()


# -- in-flight-buffer ---------------------------------------------------------------------


def in_flight_written() -> None:
    tensor = torch.ones(4)
    work = dist.all_reduce(tensor, async_op=True)
    if dist.get_rank() == 1:
        tensor.add_(1)
    work.wait()


def in_flight_written_through_a_view() -> None:
    tensor = torch.ones(4, 4)
    work = dist.all_reduce(tensor, async_op=True)
    if dist.get_rank() == 2:
        tensor[1].zero_()
    work.wait()


def in_flight_read() -> None:
    tensor = torch.ones(4)
    work = dist.all_reduce(tensor, async_op=True)
    if dist.get_rank() == 1:
        tensor.sum()
    work.wait()


def in_flight_output_read() -> None:
    rows = [torch.zeros(4) for _ in range(4)]
    work = dist.all_gather(rows, torch.ones(4), async_op=True)
    if dist.get_rank() == 3:
        torch.stack(rows)
    work.wait()


def in_flight_changed_by_numpy() -> None:
    tensor = torch.ones(4)
    memory = tensor.numpy()
    if dist.get_rank() == 0:
        work = dist.isend(tensor, 1)
        memory[0] = 7
        finish(work)
    elif dist.get_rank() == 1:
        dist.recv(tensor, 0)


def in_flight_twice() -> None:
    tensor = torch.ones(4)
    if dist.get_rank() == 0:
        first = dist.irecv(tensor, 1, tag=1)
        second = dist.irecv(tensor, 1, tag=2)
        finish(first)
        finish(second)
    elif dist.get_rank() == 1:
        dist.send(tensor, 0, tag=1)
        dist.send(tensor, 0, tag=2)


# -- making groups ------------------------------------------------------------------------


def groups_of_other_members() -> None:
    dist.new_group([0, 1] if dist.get_rank() < 3 else [0, 2])
    dist.barrier()


def groups_in_another_order() -> None:
    pairs = [[0, 1], [2, 3]]
    if dist.get_rank() == 2:
        pairs.reverse()
    for pair in pairs:
        dist.new_group(pair)


def group_not_made_by_a_member() -> None:
    if dist.get_rank() != 1:
        dist.new_group([0, 1])
    dist.barrier()


def group_not_made_by_an_outsider() -> None:
    if dist.get_rank() != 3:
        dist.new_group([0, 1])


# -- deadlocks ----------------------------------------------------------------------------


def partial_deadlock() -> None:
    rank = dist.get_rank()
    if rank < 2:
        dist.recv(torch.ones(1), 1 - rank)
    else:
        for _ in range(100):
            time.sleep(0.05)


def another_group_of_the_same_ranks() -> None:
    group = dist.new_group(list(range(4)))
    dist.all_reduce(torch.ones(1), group=group if dist.get_rank() == 2 else None)


# -- invalid calls ------------------------------------------------------------------------


def invalid_root() -> None:
    dist.barrier()
    dist.broadcast(torch.ones(2), src=7)


def invalid_list() -> None:
    dist.all_gather([torch.ones(2) for _ in range(3)], torch.ones(2))


def invalid_dtype() -> None:
    dist.all_reduce(torch.ones(2, dtype=torch.complex64), op=dist.ReduceOp.MAX)


def invalid_peer() -> None:
    dist.send(torch.ones(2), dst=dist.get_rank())


def invalid_source() -> None:
    """Of which Gloo dies, now and then."""
    dist.recv(torch.ones(2), src=4)


def invalid_room() -> None:
    """Elements that share memory."""
    dist.recv(torch.zeros(1).expand(4), src=(dist.get_rank() + 1) % 4)


def invalid_overlap() -> None:
    whole = torch.zeros(8)
    rows = [whole[at : at + 4] for at in range(4)]
    dist.all_gather(rows, torch.ones(4))


def invalid_place() -> None:
    """The input is another rank's part of the output."""
    whole, at = torch.zeros(8), (dist.get_rank() + 1) % 4
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", FutureWarning)
        dist.all_gather_into_tensor(whole, whole[2 * at : 2 * at + 2])


def invalid_splits() -> None:
    """Gloo has no objection and would send what is beyond the end."""
    dist.all_to_all_single(torch.empty(8), torch.ones(8), [2, 2, 2, 2], [2, 2, 2, 3])


def invalid_even_splits() -> None:
    dist.all_to_all_single(torch.empty(7), torch.ones(7))


def invalid_scatter_list() -> None:
    chunks = list(torch.arange(10.0).chunk(5)) if dist.get_rank() == 0 else None
    dist.scatter(torch.empty(2), chunks, src=0)


def invalid_reduce_op() -> None:
    dist.all_reduce(torch.ones(2), op=dist.ReduceOp.BAND)


def group_after_its_end() -> None:
    """Gloo's still works."""
    group = dist.new_group([0, 1, 2, 3])
    dist.all_reduce(torch.ones(2), group=group)
    dist.destroy_process_group(group)
    dist.all_reduce(torch.ones(2), group=group)


def layouts_of_memory() -> None:
    image = torch.ones(2, 3, 4, 4)
    if dist.get_rank() == 1:
        image = image.to(memory_format=torch.channels_last)
    dist.all_reduce(image)


# -- threads ------------------------------------------------------------------------------


def threads_on_one_group() -> None:
    if dist.get_rank() == 1:
        helper = threading.Thread(target=lambda: dist.all_reduce(torch.ones(1)), daemon=True)
        helper.start()
        time.sleep(0.3)
        dist.all_reduce(torch.ones(1))
    else:
        time.sleep(1)
        for _ in range(2):
            dist.all_reduce(torch.ones(1))


def in_flight_from_backward() -> None:
    """What a hook of backward began is in flight when backward has ended."""
    parameter = torch.nn.Parameter(torch.ones(4))
    works: list[dist.Work | None] = []
    parameter.register_post_accumulate_grad_hook(
        lambda p: works.append(dist.all_reduce(p.grad, async_op=True))
    )
    parameter.sum().backward()
    assert parameter.grad is not None
    if dist.get_rank() == 1:
        parameter.grad.zero_()
    for work in works:
        finish(work)


def unwaited_and_read() -> None:
    tensor = torch.ones(4)
    dist.all_reduce(tensor, async_op=True)
    if dist.get_rank() == 1:
        tensor.sum()
    dist.barrier()


ERRORS = (
    unwaited_and_read,
    in_flight_from_backward,
    in_flight_written,
    in_flight_written_through_a_view,
    in_flight_read,
    in_flight_output_read,
    in_flight_changed_by_numpy,
    in_flight_twice,
    groups_of_other_members,
    groups_in_another_order,
    group_not_made_by_a_member,
    group_not_made_by_an_outsider,
    partial_deadlock,
    another_group_of_the_same_ranks,
    invalid_root,
    invalid_list,
    invalid_dtype,
    invalid_peer,
    invalid_source,
    invalid_room,
    invalid_overlap,
    invalid_place,
    invalid_splits,
    invalid_even_splits,
    invalid_reduce_op,
    group_after_its_end,
    layouts_of_memory,
    threads_on_one_group,
)


# -- warnings -----------------------------------------------------------------------------


def unwaited_dropped() -> None:
    for _ in range(3):
        dist.all_reduce(torch.ones(4), async_op=True)
    dist.barrier()


def unwaited_kept() -> object:
    works = [dist.all_reduce(torch.ones(4), async_op=True)]
    dist.barrier()
    return len(works)


def unwaited_and_ordered() -> None:
    tensor = torch.ones(4)
    dist.all_reduce(tensor, async_op=True)
    dist.barrier()
    if dist.get_rank() == 1:
        tensor.sum()
    dist.barrier()


def unwaited_of_a_group_that_ended() -> None:
    tensor = torch.ones(4)
    group = dist.new_group([0, 1, 2, 3])
    dist.all_reduce(tensor, group=group, async_op=True)
    dist.destroy_process_group(group)
    tensor.sum()


def unwaited_receive() -> None:
    if dist.get_rank() == 0:
        dist.send(torch.ones(2), 1)
    elif dist.get_rank() == 1:
        dist.irecv(torch.ones(2), 0)
    dist.barrier()


def result_in_a_copy() -> None:
    tensor = torch.ones(2, 3).t()
    dist.all_reduce(tensor.contiguous())
    tensor.sum()


def result_of_a_broadcast_in_a_copy() -> None:
    tensor = torch.ones(4)
    dist.broadcast(tensor[[0, 2]], src=1)
    tensor.sum()


def message_in_a_copy() -> None:
    tensor = torch.ones(4)
    if dist.get_rank() == 0:
        dist.send(tensor[:2].clone(), 1)
    elif dist.get_rank() == 1:
        dist.recv(tensor[[0, 2]], 0)
    tensor.sum()


def unmatched_send() -> None:
    if dist.get_rank() == 0:
        dist.isend(torch.ones(2), 1, tag=9)
    dist.barrier()


def crossed_in_a_loop() -> None:
    named = [("weight", torch.ones(2)), ("bias", torch.ones(2))]
    if dist.get_rank() == 1:
        named.reverse()
    for _, tensor in named:
        dist.all_reduce(tensor)


def crossed_lines() -> None:
    loss, count = torch.ones(1), torch.ones(1)
    if dist.get_rank() == 2:
        dist.all_reduce(count)
        dist.all_reduce(loss)
    else:
        dist.all_reduce(loss)
        dist.all_reduce(count)


def race_of_messages() -> None:
    """Rank 3 sends while rank 1's message may still be on its way."""
    rank = dist.get_rank()
    if rank == 0:
        dist.barrier()
        dist.recv(torch.ones(1), tag=3)
        dist.recv(torch.ones(1), 3, tag=3)
    else:
        if rank == 3:
            dist.barrier()
            time.sleep(0.2)
            dist.send(torch.ones(1), 0, tag=3)
        if rank == 1:
            work = dist.isend(torch.ones(1), 0, tag=3)
            dist.barrier()
            finish(work)
        if rank == 2:
            dist.barrier()


def root_of_the_world_and_of_the_group() -> None:
    group = dist.new_group([1, 2, 3])
    if dist.get_rank():
        dist.broadcast(torch.ones(1), src=1, group=group)
        dist.broadcast(torch.ones(1), group_src=1, group=group)
        dist.destroy_process_group(group)  # torch names groups of members only by their number


def call_of_an_outsider() -> None:
    group = dist.new_group([0, 1])
    dist.all_reduce(torch.ones(1), group=group)
    if dist.get_rank(group) >= 0:
        dist.destroy_process_group(group)


def groups_made_in_a_loop() -> None:
    for _ in range(3):
        group = dist.new_group([0, 1, 2, 3])
    dist.barrier(group=group)


def groups_destroyed_in_opposite_orders() -> None:
    groups = [dist.new_group([0, 1, 2, 3]) for _ in range(2)]
    for group in groups if dist.get_rank() != 2 else groups[::-1]:
        dist.destroy_process_group(group)


def group_that_one_member_keeps() -> None:
    group = dist.new_group([0, 1, 2, 3])
    if dist.get_rank() != 3:
        dist.destroy_process_group(group)
    dist.barrier()


WARNINGS = (
    unwaited_dropped,
    unwaited_kept,
    unwaited_and_ordered,
    unwaited_of_a_group_that_ended,
    unwaited_receive,
    result_in_a_copy,
    result_of_a_broadcast_in_a_copy,
    message_in_a_copy,
    unmatched_send,
    crossed_in_a_loop,
    crossed_lines,
    race_of_messages,
    root_of_the_world_and_of_the_group,
    call_of_an_outsider,
    groups_made_in_a_loop,
    groups_destroyed_in_opposite_orders,
)


# -- what NCCL may hang on ----------------------------------------------------------------


def hazard_opposite_orders() -> None:
    one, other = dist.new_group(list(range(4))), dist.new_group(list(range(4)))
    groups = [one, other] if dist.get_rank() else [other, one]
    for work in [dist.all_reduce(torch.ones(1), group=g, async_op=True) for g in groups]:
        work.wait()


def hazard_unbatched() -> None:
    rank = dist.get_rank()
    dist.barrier()
    if rank < 2:
        sent = dist.isend(torch.ones(1), 1 - rank)
        dist.recv(torch.ones(1), 1 - rank)
        finish(sent)


def hazard_first_batch() -> None:
    rank = dist.get_rank()
    if rank < 2:
        name = dist.isend if rank == 0 else dist.irecv
        for work in dist.batch_isend_irecv([dist.P2POp(name, torch.ones(1), 1 - rank)]):
            work.wait()
    dist.barrier()


HAZARDS = (hazard_opposite_orders, hazard_unbatched, hazard_first_batch)


# -- in order -----------------------------------------------------------------------------


def waits_of_all_kinds() -> None:
    tensor = torch.ones(4)
    dist.all_reduce(tensor, async_op=True).wait()
    tensor.add_(1)
    work = dist.all_reduce(tensor, async_op=True)
    while not work.is_completed():
        pass
    tensor.add_(1)
    work = dist.all_reduce(tensor, async_op=True)
    work.get_future().wait()
    tensor.add_(1)
    work = dist.all_reduce(tensor, async_op=True)
    work.wait()
    work.wait()


def wait_in_cpp() -> None:
    """As libraries call it that have their own DDP."""
    tensors = [torch.full((3,), float(dist.get_rank())), torch.ones(1000) * dist.get_rank()]
    dist._broadcast_coalesced(dist.group.WORLD, tensors, 256, 1)
    assert all(torch.equal(tensor, torch.ones_like(tensor)) for tensor in tensors)


def input_read_in_flight() -> None:
    mine, rows = torch.ones(4), [torch.zeros(4) for _ in range(4)]
    work = dist.all_gather(rows, mine, async_op=True)
    assert mine.sum() == 4
    work.wait()
    assert torch.stack(rows).sum() == 16


def reductions_in_place() -> None:
    """Gloo writes to tensors that only the root gets a result in."""
    for size in (4, 100_000):
        tensor = torch.ones(size)
        dist.reduce(tensor, 0, async_op=True).wait()
        part = torch.zeros(size)
        whole = [torch.ones(size) for _ in range(4)]
        dist.reduce_scatter(part, whole, async_op=True).wait()


def rings_in_batches() -> None:
    rank = dist.get_rank()
    out, into = torch.ones(3), torch.zeros(3)
    for _ in range(2):
        ops = [
            dist.P2POp(dist.isend, out, (rank + 1) % 4),
            dist.P2POp(dist.irecv, into, (rank - 1) % 4),
        ]
        for work in dist.batch_isend_irecv(ops):
            work.wait()


def late_outsider() -> None:
    """Ranks outside of a group do not wait for its members, nor these for them."""
    rank = dist.get_rank()
    if rank == 3:
        dist.recv(torch.ones(1), 0)
    group = dist.new_group([0, 1])
    if rank == 0:
        dist.send(torch.ones(1), 3)
    if rank < 2:
        dist.all_reduce(torch.ones(1), group=group)


def groups_of_members_only() -> None:
    rank = dist.get_rank()
    mine = [0, 1] if rank < 2 else [2, 3]
    group = dist.new_group(mine, use_local_synchronization=True)
    dist.all_reduce(torch.ones(1), group=group)


def own_data_in_own_order() -> None:
    data = {key: torch.full((1,), float(key)) for key in range(4)}
    for key in sorted(data, key=lambda key: (key + dist.get_rank()) % 4):
        dist.all_reduce(data[key].clone())


def answers_of_any_source() -> None:
    """Whoever was heard is told so before another one may send."""
    rank, answer = dist.get_rank(), torch.ones(1)
    if rank == 0:
        for _ in range(3):
            dist.recv(answer)
    else:
        dist.send(answer, 0)
    dist.barrier()
    if rank == 1:
        dist.send(answer, 0)
    elif rank == 0:
        dist.recv(answer, 1)


def a_group_for_each_thread() -> None:
    group = dist.new_group(list(range(4)))
    helper = threading.Thread(target=lambda: dist.all_reduce(torch.ones(1), group=group))
    helper.start()
    dist.all_reduce(torch.ones(1))
    helper.join()


def groups_that_are_kept_or_destroyed() -> None:
    kept = [dist.new_group([0, 1, 2, 3]) for _ in range(4)]
    for _ in range(4):
        group = dist.new_group([0, 1, 2, 3])
        dist.all_reduce(torch.ones(1), group=group)
        dist.destroy_process_group(group)
    for group in kept:
        dist.barrier(group=group)


def groups_left_to_the_end_by_some() -> None:
    group = dist.new_group([0, 1, 2, 3])
    dist.barrier(group=group)
    if dist.get_rank() == 0:
        dist.destroy_process_group(group)


def call_by_members_only() -> None:
    group = dist.new_group([0, 1])
    if dist.get_rank(group) >= 0:
        dist.all_reduce(torch.ones(1), group=group)
        dist.destroy_process_group(group)


SILENT = (
    groups_that_are_kept_or_destroyed,
    call_by_members_only,
    answers_of_any_source,
    a_group_for_each_thread,
    waits_of_all_kinds,
    wait_in_cpp,
    input_read_in_flight,
    reductions_in_place,
    rings_in_batches,
    late_outsider,
    groups_of_members_only,
    own_data_in_own_order,
)
