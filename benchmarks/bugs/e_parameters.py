"""Class E: calls that meet, with parameters that do not fit each other."""

from __future__ import annotations

import torch
import torch.distributed as dist

from benchmarks.bugs.programs import bug

KIND = "mismatch"


@bug("E1", KIND, ranks=3, what="each rank broadcasts from itself")
def own_root(rank: int, world: int) -> None:
    dist.broadcast(torch.ones(4), src=rank)  # <- here


@bug("E2", KIND, ranks=3, faulty=(1,), what="float32 meets bfloat16")
def other_dtype(rank: int, world: int) -> None:
    dtype = torch.bfloat16 if rank == 1 else torch.float32
    dist.all_reduce(torch.ones(4, dtype=dtype))  # <- here


@bug("E5", KIND, ranks=3, faulty=(2,), what="SUM meets MAX")
def other_reduce_op(rank: int, world: int) -> None:
    op = dist.ReduceOp.MAX if rank == 2 else dist.ReduceOp.SUM
    dist.all_reduce(torch.ones(4), op=op)  # <- here


@bug("E7", KIND, ranks=3, faulty=(0,), what="4 elements meet 6")
def other_count(rank: int, world: int) -> None:
    dist.all_reduce(torch.ones(6 if rank == 0 else 4))  # <- here


@bug("E9", KIND, what="splits that are not transposes of each other")
def splits_not_transposed(rank: int, world: int) -> None:
    splits = [1, 3] if rank == 0 else [2, 2]
    dist.all_to_all_single(  # <- here
        torch.empty(4), torch.ones(4), output_split_sizes=[2, 2], input_split_sizes=splits
    )


@bug("E11", KIND, what="3 elements sent, 5 received")
def message_size(rank: int, world: int) -> None:
    if rank == 0:
        dist.send(torch.ones(3), dst=1)  # <- here
    else:
        dist.recv(torch.empty(5), src=0)  # <- here


@bug("E14", "mismatch|deadlock", what="tag 1 sent, tag 2 awaited")
def message_tag(rank: int, world: int) -> None:
    if rank == 0:
        dist.send(torch.ones(3), dst=1, tag=1)  # <- here
    else:
        dist.recv(torch.empty(3), src=0, tag=2)  # <- here


@bug("E16", "mismatch|deadlock", what="the default group meets another of the same ranks")
def other_group(rank: int, world: int) -> None:
    both = dist.new_group([0, 1])
    dist.all_reduce(torch.ones(1), group=both if rank == 0 else None)  # <- here


@bug("E21", KIND, ranks=4, faulty=(3,), what="one rank scatters from another source")
def scatter_source(rank: int, world: int) -> None:
    source = 1 if rank == 3 else 0
    parts = [torch.ones(2) for _ in range(world)] if rank == source else None
    dist.scatter(torch.empty(2), parts, src=source)  # <- here


@bug("E22", KIND, ranks=4, faulty=(2,), what="one rank reduces to another destination")
def reduce_destination(rank: int, world: int) -> None:
    dist.reduce(torch.ones(2), dst=1 if rank == 2 else 0)  # <- here


@bug("E23", KIND, ranks=3, faulty=(2,), what="a broadcast into too small a tensor")
def broadcast_size(rank: int, world: int) -> None:
    dist.broadcast(torch.ones(3 if rank == 2 else 4), src=0)  # <- here


@bug("E24", KIND, what="as many bytes, but int64 sent and float64 received")
def message_dtype(rank: int, world: int) -> None:
    if rank == 0:
        dist.send(torch.ones(3, dtype=torch.int64), dst=1)  # <- here
    else:
        dist.recv(torch.empty(3, dtype=torch.float64), src=0)  # <- here


@bug("E25", KIND, ranks=3, faulty=(1,), what="shards of different size in a flat gather")
def gather_flat_uneven(rank: int, world: int) -> None:
    size = 3 if rank == 1 else 2
    dist.all_gather_into_tensor(torch.empty(size * world), torch.ones(size))  # <- here


@bug("E26", KIND, ranks=3, faulty=(2,), what="object lists of different length")
def object_count(rank: int, world: int) -> None:
    objects = ["a", "b"] if rank != 2 else [None]
    dist.broadcast_object_list(objects, src=0)  # <- here


@bug("E27", KIND, ranks=3, faulty=(0,), what="one tensor more in a coalesced all_reduce")
def coalesced_count(rank: int, world: int) -> None:
    tensors = [torch.ones(2) for _ in range(3 if rank == 0 else 2)]
    with dist._coalescing_manager():  # <- here
        for tensor in tensors:
            dist.all_reduce(tensor)  # <- here


@bug("E28", KIND, what="as many bytes, but two floats sent and one double received")
def message_same_bytes(rank: int, world: int) -> None:
    if rank == 0:
        dist.send(torch.ones(2), dst=1)  # <- here
    else:
        dist.recv(torch.empty(1, dtype=torch.float64), src=0)  # <- here


@bug("E29", KIND, ranks=4, faulty=(1,), what="the gather of one rank goes elsewhere")
def gather_destination(rank: int, world: int) -> None:
    target = 1 if rank == 1 else 0
    outputs = [torch.empty(2) for _ in range(world)] if rank == target else None
    dist.gather(torch.ones(2), outputs, dst=target)  # <- here


@bug("E30", KIND, ranks=3, faulty=(0,), what="reduce_scatter with another operation")
def reduce_scatter_op(rank: int, world: int) -> None:
    op = dist.ReduceOp.MIN if rank == 0 else dist.ReduceOp.MAX
    dist.reduce_scatter_tensor(torch.empty(1), torch.ones(3), op=op)  # <- here


@bug("E31", KIND, ranks=3, faulty=(2,), what="tokens in half precision on one rank only")
def all_to_all_dtype(rank: int, world: int) -> None:
    dtype = torch.float16 if rank == 2 else torch.float32
    sent = torch.ones(3, dtype=dtype)
    dist.all_to_all_single(torch.empty_like(sent), sent)  # <- here


@bug("E32", KIND, what="sizes differ in a batch of point to point operations")
def batch_size_differs(rank: int, world: int) -> None:
    peer = 1 - rank
    ops = [
        dist.P2POp(dist.isend, torch.ones(2 + rank), peer),
        dist.P2POp(dist.irecv, torch.empty(2), peer),
    ]
    for work in dist.batch_isend_irecv(ops):  # <- here
        work.wait()  # <- here


@bug("E33", KIND, ranks=4, faulty=(3,), what="in a subgroup, one member has another root")
def root_in_subgroup(rank: int, world: int) -> None:
    odd = dist.new_group([1, 2, 3])
    if rank:
        dist.broadcast(torch.ones(2), src=2 if rank == 3 else 1, group=odd)  # <- here


@bug("E34", KIND, ranks=3, faulty=(1,), what="an asynchronous reduction of another dtype")
def asynchronous_dtype(rank: int, world: int) -> None:
    tensor = torch.ones(4, dtype=torch.float64 if rank == 1 else torch.float32)
    work = dist.all_reduce(tensor, async_op=True)  # <- here
    assert work is not None
    work.wait()


@bug("E35", KIND, ranks=3, faulty=(1,), what="the gradient of one rank has a row more")
def rows_differ(rank: int, world: int) -> None:
    dist.all_reduce(torch.ones(5 if rank == 1 else 4, 8))  # <- here


@bug("E36", KIND, what="a MoE dispatch takes the counts of what it sends for what it receives")
def dispatch_counts_swapped(rank: int, world: int) -> None:
    counts = [[1, 3], [2, 2]]  # what each rank sends to each
    dist.all_to_all_single(  # <- here
        torch.empty(4),
        torch.ones(4),
        output_split_sizes=counts[rank],
        input_split_sizes=counts[rank],
    )


@bug("E37", KIND, ranks=3, faulty=(2,), what="complex numbers meet real ones")
def complex_meets_real(rank: int, world: int) -> None:
    dtype = torch.complex64 if rank == 2 else torch.float32
    dist.all_reduce(torch.ones(4, dtype=dtype))  # <- here


@bug("E38", KIND, ranks=4, faulty=(0,), what="objects broadcast from another rank")
def object_root(rank: int, world: int) -> None:
    objects: list[object] = [rank]
    dist.broadcast_object_list(objects, src=1 if rank == 0 else 2)  # <- here


@bug("E39", KIND, ranks=3, faulty=(1,), what="a new group with other members on one rank")
def members_differ(rank: int, world: int) -> None:
    dist.new_group([0, 1] if rank == 1 else [0, 1, 2])  # <- here
    dist.barrier()


@bug(
    "E40",
    "deadlock|mismatch|unmatched-message",
    ranks=3,
    what="rank 2 sends, rank 1 is awaited",
)
def other_sender(rank: int, world: int) -> None:
    if rank == 0:
        dist.recv(torch.empty(1), src=1)  # <- here
    elif rank == 2:
        dist.send(torch.ones(1), dst=0)  # <- here


@bug("E41", "deadlock|mismatch", what="sent on one group, received on another")
def message_on_other_group(rank: int, world: int) -> None:
    other = dist.new_group([0, 1])
    if rank == 0:
        dist.send(torch.ones(1), dst=1, group=other)  # <- here
    else:
        dist.recv(torch.empty(1), src=0)  # <- here


@bug("E42", KIND, what="more is sent than the buffer holds")
def message_too_long(rank: int, world: int) -> None:
    if rank == 0:
        dist.send(torch.ones(8), dst=1)  # <- here
    else:
        dist.recv(torch.empty(2), src=0)  # <- here


@bug("E43", KIND, ranks=4, faulty=(2,), what="int32 meets int64")
def int_sizes(rank: int, world: int) -> None:
    dtype = torch.int32 if rank == 2 else torch.int64
    dist.all_reduce(torch.ones(3, dtype=dtype))  # <- here


@bug("E44", KIND, ranks=3, faulty=(1,), what="the gathered tensor of one rank is longer")
def gather_uneven(rank: int, world: int) -> None:
    outputs = [torch.empty(2) for _ in range(world)] if rank == 0 else None
    dist.gather(torch.ones(3 if rank == 1 else 2), outputs, dst=0)  # <- here


@bug("E45", KIND, ranks=3, faulty=(0,), what="the same tensors coalesced in another order")
def coalesced_order(rank: int, world: int) -> None:
    tensors = [torch.ones(2), torch.ones(5)]
    with dist._coalescing_manager():  # <- here
        for tensor in reversed(tensors) if rank == 0 else tensors:
            dist.all_reduce(tensor)  # <- here


@bug(
    "E46",
    "mismatch|invalid-call",
    ranks=3,
    faulty=(1,),
    what="another memory format on one rank",
)
def memory_format(rank: int, world: int) -> None:
    image = torch.arange(24.0).view(1, 2, 3, 4)
    if rank == 1:
        image = image.contiguous(memory_format=torch.channels_last)
    dist.all_reduce(image)  # <- here
