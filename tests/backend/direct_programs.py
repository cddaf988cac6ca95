"""Programs that call the methods of the process group themselves, in every overload.

Part of `programs.py`: they must give the same under Phalanx and on real Gloo.
"""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed import distributed_c10d

RANKS = 3
DIRECT: dict[str, Callable[[], Any]] = {}
LIMIT = timedelta(seconds=30)
MAX = dist.ReduceOp.MAX

# Gloo of torch 2.11 refuses `all_to_all` of lists, and so do we there (`test_profiles.py`).
LIST_TO_ALL = not torch.__version__.startswith("2.11.")

names: Any = distributed_c10d  # torch's stubs leave some option classes out


def direct(function: Callable[[], Any]) -> Callable[[], Any]:
    DIRECT[function.__name__] = function
    return function


def group() -> Any:
    return dist.group.WORLD


def mine(shift: int = 0) -> Tensor:
    return torch.arange(2.0) + 10 * dist.get_rank() + 100 * shift


def pieces() -> list[Tensor]:
    return [mine(index) for index in range(RANKS)]


def rooms(count: int = RANKS) -> list[Tensor]:
    return [torch.zeros(2) for _ in range(count)]


def given(options: Any, **fields: Any) -> Any:
    for name, value in fields.items():
        setattr(options, name, value)
    return options


def after(call: Callable[[Tensor], Any]) -> Tensor:
    """What a call that works in place leaves in its tensor."""
    tensor = mine()
    call(tensor).wait()
    return tensor


@direct
def all_reduce_overloads() -> Any:
    options = given(dist.AllreduceOptions(), reduceOp=MAX)
    return [
        after(lambda t: group().allreduce([t])),
        after(lambda t: group().allreduce((t,), options)),
        after(lambda t: group().allreduce(tensors=[t], opts=options)),
        after(lambda t: group().allreduce(t)),
        after(lambda t: group().allreduce(t, MAX)),
        after(lambda t: group().allreduce(t, MAX, LIMIT)),
        after(lambda t: group().allreduce([t], op=MAX)),
        after(lambda t: group().allreduce(tensor=t, op=MAX, timeout=LIMIT)),
        after(lambda t: group().allreduce_coalesced([t, mine()])),
    ]


@direct
def broadcast_overloads() -> Any:
    options = given(dist.BroadcastOptions(), rootRank=1)
    return [
        after(lambda t: group().broadcast([t])),
        after(lambda t: group().broadcast([t], options)),
        after(lambda t: group().broadcast(tensors=[t], opts=options)),
        after(lambda t: group().broadcast(t, 2)),
        after(lambda t: group().broadcast(t, 2, LIMIT)),
        after(lambda t: group().broadcast(tensor=t, root=2, timeout=LIMIT)),
    ]


@direct
def reduce_overloads() -> Any:
    options = given(dist.ReduceOptions(), rootRank=1, reduceOp=MAX)
    found = [
        after(lambda t: group().reduce([t], options)),
        after(lambda t: group().reduce(t, 1)),
        after(lambda t: group().reduce(t, 1, MAX, LIMIT)),
        after(lambda t: group().reduce(tensor=t, root=1, op=MAX, timeout=LIMIT)),
    ]
    return found if dist.get_rank() == 1 else None


@direct
def gathering_overloads() -> Any:
    found = [rooms() for _ in range(4)]
    group().allgather([found[0]], [mine()]).wait()
    group().allgather(found[1], mine(), LIMIT).wait()
    group().allgather(output_tensors=found[2], input_tensor=mine(), timeout=LIMIT).wait()
    group().allgather(output_tensors=[found[3]], input_tensors=[mine()]).wait()
    flat = [torch.zeros(6), torch.zeros(6), torch.zeros(6)]
    group()._allgather_base(output=flat[0], input=mine()).wait()
    inputs = [mine(), mine(1)]
    group().allgather_into_tensor_coalesced(outputs=flat[1:], inputs=inputs).wait()
    lists = [rooms(2) for _ in range(RANKS)]
    group().allgather_coalesced(output_lists=lists, input_list=inputs).wait()
    return found, flat, lists


@direct
def overloads_with_a_root() -> Any:
    at_root = dist.get_rank() == 1
    gathered = [rooms() for _ in range(3)]
    options = given(dist.GatherOptions(), rootRank=1)
    group().gather(gathered[0] if at_root else [], mine(), 1).wait()
    group().gather(
        output_tensors=gathered[1] if at_root else [],
        input_tensor=mine(),
        root=1,
        timeout=LIMIT,
    ).wait()
    group().gather([gathered[2]] if at_root else [], [mine()], options).wait()
    outputs = rooms()
    options = given(dist.ScatterOptions(), rootRank=1)
    group().scatter(outputs[0], pieces() if at_root else [], 1).wait()
    group().scatter(
        output_tensor=outputs[1],
        input_tensors=pieces() if at_root else [],
        root=1,
        timeout=LIMIT,
    ).wait()
    group().scatter([outputs[2]], [pieces()] if at_root else [], opts=options).wait()
    return gathered, outputs


@direct
def scattering_overloads() -> Any:
    outputs = rooms(6)
    options = given(dist.ReduceScatterOptions(), reduceOp=MAX)
    group().reduce_scatter(outputs[0], pieces()).wait()
    group().reduce_scatter(outputs[1], pieces(), MAX, LIMIT).wait()
    group().reduce_scatter(output=outputs[2], input=pieces(), op=MAX).wait()
    group().reduce_scatter([outputs[3]], [pieces()], options).wait()
    whole = torch.cat(pieces())
    group()._reduce_scatter_base(outputTensor=outputs[4], inputTensor=whole).wait()
    group().reduce_scatter_tensor_coalesced(outputs=[outputs[5]], inputs=[whole]).wait()
    return outputs


@direct
def exchange_overloads() -> Any:
    outputs, whole = rooms(), torch.cat(pieces())
    if LIST_TO_ALL:
        group().alltoall(output_tensors=outputs, input_tensors=pieces()).wait()
    flat = [torch.zeros(6) for _ in range(3)]
    group().alltoall_base(flat[0], whole, [], []).wait()
    group().alltoall_base(flat[1], whole, [2, 2, 2], [2, 2, 2], timeout=LIMIT).wait()
    group().alltoall_base(
        output=flat[2], input=whole, output_split_sizes=[2] * 3, input_split_sizes=[2] * 3
    ).wait()
    group().barrier().wait()
    group().barrier(timeout=LIMIT).wait()
    group().barrier(opts=dist.BarrierOptions()).wait()
    return outputs, flat


@direct
def message_overloads() -> Any:
    rank, room = dist.get_rank(), torch.zeros(2)
    if rank == 0:
        group().send(tensors=[mine()], dstRank=1, tag=3).wait()
        group().send([mine(1)], 1, 4).wait()
    elif rank == 1:
        group().recv(tensors=[room], srcRank=0, tag=3).wait()
        other = torch.zeros(2)
        work = group().recv_anysource([other], 4)
        work.wait()
        return room, other, work._source_rank()
    return None


@direct
def several_tensors_of_a_rank() -> Any:
    summed, sent = [mine(), mine(1)], [mine(), mine(1)]
    group().allreduce(summed).wait()
    group().broadcast(sent, given(dist.BroadcastOptions(), rootRank=1, rootTensor=1)).wait()
    lists = [rooms(2 * RANKS), rooms(2 * RANKS)]
    group().allgather(lists, [mine(), mine(1)]).wait()
    return summed, sent, lists


@direct
def layouts_that_agree() -> Any:
    def turned() -> Tensor:
        return (torch.arange(6.0).view(2, 3) + dist.get_rank()).t().contiguous().t()

    found = [turned() for _ in range(3)]
    dist.all_reduce(found[0])
    dist.broadcast(found[1], 1)
    dist.reduce(found[2], 1)
    memory = torch.zeros(12)
    group()._allgather_base(memory[::2], mine()).wait()
    outputs = [torch.zeros(4)[::2] for _ in range(RANKS)]
    dist.all_gather(outputs, torch.arange(4.0)[::2] + dist.get_rank())
    scattered = torch.zeros(4)
    group()._reduce_scatter_base(scattered[::2], torch.arange(12.0)[::2]).wait()
    pieces = torch.zeros(3, 2).t()
    dist.reduce_scatter(pieces, [turned() + shift for shift in range(RANKS)])
    reduced = found[2] if dist.get_rank() == 1 else None
    return found[:2], reduced, memory, outputs, scattered, pieces


@direct
def exchange_of_other_shapes() -> Any:
    """Without split sizes Gloo goes by memory alone."""
    found = [torch.zeros(3, 2), torch.zeros(4, 3)]
    dist.all_to_all_single(found[0], torch.arange(6.0) + dist.get_rank())
    dist.all_to_all_single(found[1], torch.arange(12.0).view(4, 3) + dist.get_rank())
    return found


@direct
def uneven_reduce_scatter() -> Any:
    output = torch.zeros(dist.get_rank() + 1)
    dist.reduce_scatter(output, [torch.ones(rank + 1) * (rank + 1) for rank in range(RANKS)])
    return output


@direct
def sparse_sums() -> Any:
    rank = dist.get_rank()
    twice = torch.sparse_coo_tensor(
        [[0] * rank + [1] * rank],
        torch.arange(2.0 * rank),
        (4,),
        check_invariants=True,
    )
    rows = torch.sparse_coo_tensor([[rank]], [[1.0, rank]], (4, 2), check_invariants=True)
    for tensor in (twice, rows):
        dist.all_reduce(tensor)
    return [
        (t.to_dense(), t.is_coalesced(), t.sparse_dim(), t.indices()) for t in (twice, rows)
    ]
