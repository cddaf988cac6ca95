"""The meaning of each collective: given the calls of all members, move the data.

Used by the process group when the last member has arrived. Each function gets the calls in
group order. It works on `tensor.data`, so that neither autograd nor version counters notice,
as with a backend written in C++. Nothing here waits. Agreement has been checked before; only
the layout of memory is compared here, where it matters.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Sequence

import torch
from torch import Tensor

from phalanx.backend.collectives import flat_movement
from phalanx.backend.collectives.call_signature import order_of
from phalanx.backend.collectives.flat_movement import is_flat
from phalanx.backend.collectives.reduction import (
    PREMUL_SUM,
    Reduction,
    is_same_memory,
    overlaps,
)
from phalanx.backend.rank_errors import InvalidCallError
from phalanx.backend.torch_private.private_memory import copy_each
from phalanx.matching.slots import Call

MoveData = Callable[[list[Call]], None]
"""What a collective does, given the calls of all members in group order: it moves the data."""


def barrier(calls: list[Call]) -> None:
    """Moves no data: every member has arrived."""


def broadcast(calls: list[Call], which: int = 0) -> None:
    """Every tensor gets the root's tensor number `which`."""
    root = calls[0].root
    assert root is not None
    if calls[0].uneven:
        check_order(calls)
    source = calls[root].inputs[which]
    targets = (target for call in calls for target in call.inputs if target is not source)
    _copy_each((target, source) for target in targets)


def all_reduce(calls: list[Call]) -> None:
    """Reduces all tensors of all ranks together; a rank may pass several."""
    reduction = _reduction(calls)
    if calls[0].uneven:
        check_order(calls)
    first = calls[0].inputs[0]
    if first.is_sparse:
        reduction.sparse_into_all([tensor for call in calls for tensor in call.inputs])
    else:
        tensors = [tensor.data for call in calls for tensor in call.inputs]
        reduction.all_into_all(tensors, alike=not calls[0].uneven)


def all_reduce_coalesced(calls: list[Call]) -> None:
    """The n-th tensors of all ranks are reduced, for every n."""
    reduction = _reduction(calls)
    for index in range(len(calls[0].inputs)):
        tensors = [call.inputs[index].data for call in calls]
        reduction.all_into_all(tensors, alike=not calls[0].uneven)


def reduce(calls: list[Call]) -> None:
    root = calls[0].root
    assert root is not None
    reduction = _reduction(calls)
    if calls[0].uneven:
        check_order(calls)
    for index, target in enumerate(calls[root].inputs):
        reduction.into(target.data, [call.inputs[index].data for call in calls])


def all_gather(calls: list[Call]) -> None:
    """Each list of outputs gets everybody's inputs, in the order of ranks."""
    given = [tensor for call in calls for tensor in call.inputs]
    lists = (outputs for call in calls for outputs in call.outputs)
    _copy_each(pair for outputs in lists for pair in zip(outputs, given, strict=True))


def all_gather_each(calls: list[Call]) -> None:
    """Each list of outputs gets everybody's input of the same number."""
    _copy_each(
        (output, sender.inputs[index])
        for call in calls
        for index, outputs in enumerate(call.outputs)
        for output, sender in zip(outputs, calls, strict=True)
    )


def all_gather_into_tensor(calls: list[Call]) -> None:
    """One flat or stacked output for each input."""
    if is_flat(calls):
        flat_movement.all_gather(calls)
        return
    _copy_each(
        (piece, sender.inputs[index])
        for call in calls
        for index, output in enumerate(call.outputs)
        for piece, sender in zip(_even_pieces(output, len(calls)), calls, strict=True)
    )


def gather(calls: list[Call]) -> None:
    root = calls[0].root
    assert root is not None
    pairs = zip(calls[root].outputs, calls, strict=True)
    _copy_each((output, sender.inputs[0]) for output, sender in pairs)


def scatter(calls: list[Call]) -> None:
    root = calls[0].root
    assert root is not None
    if calls[0].uneven:
        check_order(calls, "outputs")
    pairs = zip(calls[root].inputs, calls, strict=True)
    _copy_each((receiver.outputs[0], source) for source, receiver in pairs)


def reduce_scatter(calls: list[Call]) -> None:
    """`inputs` are one list, with a tensor for each member, for each output."""
    reduction = _reduction(calls)
    if calls[0].uneven:
        check_order(calls, "outputs")
    for index in range(len(calls[0].outputs)):
        given = [[tensor.data for tensor in call.inputs[index]] for call in calls]
        _reduce_pieces(reduction, given, [call.outputs[index].data for call in calls])


def reduce_scatter_tensor(calls: list[Call]) -> None:
    reduction = _reduction(calls)
    if is_flat(calls):
        flat_movement.reduce_scatter(calls, reduction)
        return
    if calls[0].uneven:
        check_order(calls)
    for index in range(len(calls[0].outputs)):
        given = [_even_pieces(call.inputs[index], len(calls)) for call in calls]
        _reduce_pieces(reduction, given, [call.outputs[index].data for call in calls])


def all_to_all(calls: list[Call]) -> None:
    _exchange(
        [[tensor.data for tensor in call.inputs] for call in calls],
        [[tensor.data for tensor in call.outputs] for call in calls],
    )


def all_to_all_single(calls: list[Call]) -> None:
    """`facts` are the splits along dimension 0, (input, output), empty for even ones."""
    if is_flat(calls):
        flat_movement.all_to_all(calls)
        return
    count = len(calls)
    if calls[0].uneven:
        check_order(calls)
    _exchange(
        [_pieces(call.inputs[0], call.facts[0], count) for call in calls],
        [_pieces(call.outputs[0], call.facts[1], count) for call in calls],
    )


def message(send: Call, receive: Call) -> None:
    _copy_each(zip(receive.outputs, send.inputs, strict=True))


def _reduce_pieces(
    reduction: Reduction, given: Sequence[Sequence[Tensor]], outputs: list[Tensor]
) -> None:
    """Member m's output gets the reduction of everybody's piece m."""
    given = [_copied_if_overlapping(pieces, [outputs[m]], m) for m, pieces in enumerate(given)]
    for member, output in enumerate(outputs):
        reduction.into(output, [pieces[member].reshape(output.shape) for pieces in given])


def _exchange(given: Sequence[Sequence[Tensor]], taken: Sequence[Sequence[Tensor]]) -> None:
    """Member m's piece from s is what s has for m."""
    given = [
        _copied_if_overlapping(pieces, outputs)
        for pieces, outputs in zip(given, taken, strict=True)
    ]
    _copy_each(
        (output, pieces[receiver])
        for receiver, outputs in enumerate(taken)
        for output, pieces in zip(outputs, given, strict=True)
    )


def _copied_if_overlapping(
    pieces: Sequence[Tensor], outputs: Sequence[Tensor], own: int | None = None
) -> Sequence[Tensor]:
    """Copies of the pieces if writing the outputs would change some before it is read. That
    output and the member's `own` piece are one is fine: it is read just before."""
    stores = {output.untyped_storage().data_ptr() for output in outputs if output.numel()}
    if not any(piece.untyped_storage().data_ptr() in stores for piece in pieces):
        return pieces
    if own is not None and is_same_memory(pieces[own], outputs[0]):
        others = [piece for index, piece in enumerate(pieces) if index != own]
        if not overlaps(outputs[0], others):
            return pieces
    return [piece.clone() for piece in pieces]


def check_order(calls: list[Call], side: str = "inputs") -> None:
    """Backends take a tensor's memory as it lies there. Ranks whose tensors are not laid out
    alike would get each other's elements in the wrong places."""
    orders = [tuple(map(order_of, getattr(call, side))) for call in calls]
    for call, order in zip(calls, orders, strict=True):
        if order != orders[0]:
            ranks = call.mailbox.ranks
            theirs = [tuple(t.stride() for t in getattr(c, side)) for c in (calls[0], call)]
            raise InvalidCallError(
                f"{call.name}: the tensors of rank {ranks[0]} (strides {theirs[0]}) and of "
                f"rank {ranks[call.member]} (strides {theirs[1]}) are laid out differently, "
                "and the backend would mix up their elements; pass c = tensor.contiguous(), "
                "then tensor.copy_(c)"
            )


def _reduction(calls: list[Call]) -> Reduction:
    code = calls[0].op[0]
    if code != PREMUL_SUM:
        return _plain_reduction(code, len(calls))
    return Reduction(code, len(calls), [call.op[1] for call in calls])


@functools.lru_cache(maxsize=256)
def _plain_reduction(code: int, count: int) -> Reduction:
    return Reduction(code, count)


def _copy_each(pairs: Iterable[tuple[Tensor, Tensor]]) -> None:
    """Copy the second of each pair into the first; on a GPU in one launch, if torch has one."""
    late: list[tuple[Tensor, Tensor]] = []
    for target, source in pairs:
        if is_same_memory(target, source) or source.is_meta:
            continue
        if target.shape != source.shape:
            source = source.reshape(target.shape)
        if target.is_cuda:
            late.append((target.data, source.data))
        else:
            target.data.copy_(source.data)
    if late:
        copy_each([target for target, _ in late], [source for _, source in late])


def _even_pieces(tensor: Tensor, count: int) -> Sequence[Tensor]:
    """Equal parts, in order: of the memory, or of the rows of a tensor that does not lie in
    one piece. Views, so that writing to them writes to it."""
    tensor = tensor.data
    if not tensor.numel():
        return [tensor] * count
    return (tensor.view(-1) if tensor.is_contiguous() else tensor).chunk(count)


def _pieces(tensor: Tensor, splits: Sequence[int], count: int) -> Sequence[Tensor]:
    if splits:
        return torch.split(tensor.data, list(splits))
    return _even_pieces(tensor, count)
