"""Class A: one rank's own arguments are wrong, whatever the others do."""

from __future__ import annotations

import torch
import torch.distributed as dist

from benchmarks.bugs.programs import bug

KIND = "invalid-call"


@bug("A1", KIND, faulty=(0, 1), what="broadcast from a root equal to the world size")
def root_out_of_range(rank: int, world: int) -> None:
    dist.broadcast(torch.ones(4), src=world)  # <- here


@bug("A3", KIND, ranks=3, faulty=(2,), what="a collective on a group the rank is not in")
def not_a_member(rank: int, world: int) -> None:
    pair = dist.new_group([0, 1])
    dist.all_reduce(torch.ones(4), group=pair)  # <- here


@bug("A4", KIND, faulty=(0, 1), what="all_gather into a list one too long")
def list_too_long(rank: int, world: int) -> None:
    outputs = [torch.empty(2) for _ in range(world + 1)]
    dist.all_gather(outputs, torch.ones(2))  # <- here


@bug("A6", KIND, faulty=(0, 1), what="reduce_scatter_tensor of 7 elements on 2 ranks")
def does_not_divide(rank: int, world: int) -> None:
    dist.reduce_scatter_tensor(torch.empty(3), torch.ones(7))  # <- here


@bug("A8", KIND, faulty=(0, 1), what="all_to_all_single splits do not sum to dimension 0")
def splits_do_not_add_up(rank: int, world: int) -> None:
    dist.all_to_all_single(  # <- here
        torch.empty(4), torch.ones(4), output_split_sizes=[2, 2], input_split_sizes=[2, 3]
    )


@bug("A10", KIND, faulty=(0, 1), what="all_gather into [t] * world_size")
def outputs_alias(rank: int, world: int) -> None:
    outputs = [torch.empty(2)] * world
    dist.all_gather(outputs, torch.full((2,), float(rank)))  # <- here


@bug("A21", KIND, faulty=(1,), what="a rank sends to itself")
def send_to_self(rank: int, world: int) -> None:
    if rank == 1:
        dist.send(torch.ones(1), dst=rank)  # <- here
    dist.barrier()


@bug("A22", KIND, faulty=(0,), what="a receive from a rank that does not exist")
def peer_out_of_range(rank: int, world: int) -> None:
    if rank == 0:
        dist.recv(torch.empty(1), src=world)  # <- here
    dist.barrier()


@bug("A23", KIND, faulty=(0,), what="gather without a list on the destination")
def no_list_on_destination(rank: int, world: int) -> None:
    dist.gather(torch.ones(2), gather_list=None, dst=0)  # <- here


@bug("A24", KIND, ranks=3, faulty=(0,), what="scatter of a list with one tensor too few")
def scatter_list_too_short(rank: int, world: int) -> None:
    parts = [torch.ones(2) for _ in range(world - 1)] if rank == 0 else None
    dist.scatter(torch.empty(2), parts, src=0)  # <- here


@bug("A25", KIND, faulty=(1,), what="a rank that is not the source gives scatter a list")
def scatter_list_on_non_root(rank: int, world: int) -> None:
    dist.scatter(torch.empty(2), [torch.ones(2), torch.ones(2)], src=0)  # <- here


@bug("A26", KIND, ranks=3, faulty=(1, 2), what="reduce in a group to a rank not in it")
def destination_not_in_group(rank: int, world: int) -> None:
    pair = dist.new_group([1, 2])
    if rank:
        dist.reduce(torch.ones(2), dst=0, group=pair)  # <- here


@bug("A27", KIND, ranks=4, faulty=(2, 3), what="broadcast in a group from a rank not in it")
def source_not_in_group(rank: int, world: int) -> None:
    low, high = dist.new_group([0, 1]), dist.new_group([2, 3])
    dist.broadcast(torch.ones(2), src=0, group=low if rank < 2 else high)  # <- here


@bug("A28", KIND, faulty=(0, 1), what="all_gather_into_tensor into too small an output")
def output_too_small(rank: int, world: int) -> None:
    dist.all_gather_into_tensor(torch.empty(3), torch.ones(2))  # <- here


@bug("A29", KIND, ranks=3, faulty=(0, 1, 2), what="all_to_all_single of 4 elements on 3 ranks")
def even_splits_impossible(rank: int, world: int) -> None:
    dist.all_to_all_single(torch.empty(4), torch.ones(4))  # <- here


@bug("A30", KIND, ranks=3, faulty=(1,), what="all_to_all with one input too few on one rank")
def too_few_inputs(rank: int, world: int) -> None:
    inputs = [torch.ones(1) for _ in range(world - (rank == 1))]
    outputs = [torch.empty(1) for _ in range(world - (rank == 1))]
    dist.all_to_all(outputs, inputs)  # <- here


@bug("A31", KIND, faulty=(0, 1), what="a float where a tensor belongs")
def not_a_tensor(rank: int, world: int) -> None:
    loss = torch.ones(1).item()
    dist.all_reduce(loss)  # <- here


@bug("A32", KIND, faulty=(0, 1), what="bitwise AND of floats")
def reduce_op_without_dtype(rank: int, world: int) -> None:
    dist.all_reduce(torch.ones(2), op=dist.ReduceOp.BAND)  # <- here


@bug("A33", KIND, faulty=(0,), what="a transposed view where the backend wants it contiguous")
def not_contiguous(rank: int, world: int) -> None:
    if rank == 0:
        dist.send(torch.ones(3, 2).t(), dst=1)  # <- here
    else:
        dist.recv(torch.empty(2, 3), src=0)


@bug("A34", KIND, faulty=(0, 1), what="a group of ranks of which one does not exist")
def member_out_of_range(rank: int, world: int) -> None:
    dist.new_group([0, world])  # <- here


@bug("A35", KIND, faulty=(0, 1), what="reduce_scatter with a list one too short")
def reduce_scatter_list_short(rank: int, world: int) -> None:
    dist.reduce_scatter(torch.empty(2), [torch.ones(2)] * (world - 1))  # <- here


@bug("A36", KIND, faulty=(0, 1), what="a rank of the group that the group has not")
def group_rank_out_of_range(rank: int, world: int) -> None:
    both = dist.new_group([0, 1])
    dist.broadcast(torch.ones(2), group=both, group_src=2)  # <- here


@bug("A37", KIND, faulty=(0, 1), what="dtypes of input and outputs differ in one call")
def dtypes_differ_in_a_call(rank: int, world: int) -> None:
    outputs = [torch.empty(2, dtype=torch.float64) for _ in range(world)]
    dist.all_gather(outputs, torch.ones(2))  # <- here


@bug("A38", KIND, faulty=(0, 1), what="a blocking send inside a batch of P2POps")
def batch_of_blocking_ops(rank: int, world: int) -> None:
    peer = 1 - rank
    ops = [dist.P2POp(dist.send, torch.ones(1), peer)]  # <- here
    dist.batch_isend_irecv(ops)


@bug("A39", KIND, faulty=(0, 1), what="an empty batch of point to point operations")
def empty_batch(rank: int, world: int) -> None:
    for work in dist.batch_isend_irecv([]):  # <- here
        work.wait()


@bug("A40", KIND, faulty=(0, 1), what="all_gather_object into a list that is too short")
def object_list_too_short(rank: int, world: int) -> None:
    names: list[object] = [None] * (world - 1)
    dist.all_gather_object(names, f"host{rank}")  # <- here


@bug("A41", KIND, faulty=(0, 1), what="input and output of an all_to_all overlap")
def input_overlaps_output(rank: int, world: int) -> None:
    buffer = torch.arange(4.0)
    dist.all_to_all_single(buffer, buffer)  # <- here


@bug("A42", KIND, faulty=(0, 1), what="gathered tensors are views that overlap each other")
def outputs_overlap(rank: int, world: int) -> None:
    buffer = torch.empty(5)
    dist.all_gather([buffer[0:3], buffer[2:5]], torch.ones(3))  # <- here


@bug("A43", KIND, faulty=(0, 1), what="both ways of naming the root in one call")
def root_named_twice(rank: int, world: int) -> None:
    dist.broadcast(torch.ones(1), src=0, group_src=0)  # <- here


@bug("A44", KIND, faulty=(0, 1), what="a negative destination")
def negative_destination(rank: int, world: int) -> None:
    dist.reduce(torch.ones(2), dst=-1)  # <- here


@bug("A45", KIND, faulty=(1,), what="a receive into a tensor whose elements share memory")
def into_expanded(rank: int, world: int) -> None:
    if rank == 0:
        dist.send(torch.ones(4), dst=1)
    else:
        dist.recv(torch.zeros(1).expand(4), src=0)  # <- here


@bug("A46", KIND, ranks=3, faulty=(2,), what="a barrier of a group by a rank that is not in it")
def barrier_by_stranger(rank: int, world: int) -> None:
    pair = dist.new_group([0, 1])
    dist.barrier(group=pair)  # <- here


@bug("A47", KIND, faulty=(0, 1), what="operations of different groups in one batch")
def batch_of_two_groups(rank: int, world: int) -> None:
    other, peer = dist.new_group([0, 1]), 1 - rank
    ops = [
        dist.P2POp(dist.isend, torch.ones(1), peer),
        dist.P2POp(dist.irecv, torch.empty(1), peer, group=other),
    ]
    dist.batch_isend_irecv(ops)  # <- here


@bug("A48", KIND, faulty=(0, 1), what="a group in which a rank stands twice")
def member_twice(rank: int, world: int) -> None:
    dist.new_group([0, 1, 1])  # <- here


@bug("A49", KIND, faulty=(0,), what="a gather of objects without a list on the destination")
def objects_without_list(rank: int, world: int) -> None:
    dist.gather_object({"rank": rank}, None, dst=0)  # <- here


@bug("A50", KIND, faulty=(0, 1), what="input and output of a flat gather differ in dtype")
def flat_gather_dtypes(rank: int, world: int) -> None:
    output = torch.empty(4, dtype=torch.float64)
    dist.all_gather_into_tensor(output, torch.ones(2))  # <- here


@bug("A51", KIND, faulty=(0, 1), what="the maximum of complex numbers")
def maximum_of_complex(rank: int, world: int) -> None:
    dist.all_reduce(torch.ones(2, dtype=torch.complex64), op=dist.ReduceOp.MAX)  # <- here


@bug("A52", KIND, faulty=(0,), what="the parts of a scatter differ in size")
def parts_differ(rank: int, world: int) -> None:
    parts = [torch.ones(2), torch.ones(3)] if rank == 0 else None
    dist.scatter(torch.empty(2), parts, src=0)  # <- here


@bug("A53", KIND, ranks=3, faulty=(0,), what="a message to a rank that is not in the group")
def peer_not_in_group(rank: int, world: int) -> None:
    pair = dist.new_group([0, 1])
    if rank == 0:
        dist.send(torch.ones(1), dst=2, group=pair)  # <- here


@bug("A54", KIND, faulty=(0, 1), what="output splits for another number of ranks")
def splits_for_others(rank: int, world: int) -> None:
    dist.all_to_all_single(torch.empty(4), torch.ones(4), [1, 1, 2], [2, 2])  # <- here
