"""Flip bits in what one call of a rank moves: in what it gives to others, or in what it gets.

Which bits, a seed says. Tensors may have any dtype and any layout. A truth value has one bit.
Data is damaged on its way: where a call works in place, what it gives is damaged in the tensor
itself, which the result overwrites; else in a copy.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from phalanx.backend.devices import cuda_streams
from phalanx.backend.losses.call_tensors import copied, flat
from phalanx.backend.torch_private.private import no_function_modes
from phalanx.matching.slots import Call

if TYPE_CHECKING:
    from phalanx.backend.session import Session

RESULT = "result"
_IN_PLACE = ("all_reduce", "all_reduce_coalesced", "reduce")
_ROOT_GETS = ("reduce", "gather")
_ROOT_GIVES = ("broadcast", "scatter")

Flip = Callable[[Sequence[Tensor]], None]


def corrupt_call(
    session: Session, rank: int, *, bits: int = 1, part: str = RESULT, seed: int = 0
) -> None:
    """So many bits of the next call that this rank makes of its groups are flipped: of its
    "result", which it alone sees, or of its "contribution", which all see that get it. A part
    that the call does not have, as the result of a barrier, has none to flip."""
    ends = [met.ends[rank] for met in session.mailboxes.values() if rank in met.ends]
    _NextCall(ends, part, partial(flip_bits, bits=bits, seed=seed))


def flip_bits(tensors: Sequence[Tensor], bits: int, seed: int) -> None:
    """So many different bits of all these tensors together; all, if there are fewer."""
    tensors = [_values_of(tensor) for tensor in tensors]
    sizes = [tensor.numel() * _bits_of(tensor) for tensor in tensors]
    dice = random.Random(f"corrupt {seed}")
    chosen = sorted(dice.sample(range(sum(sizes)), min(bits, sum(sizes))))
    for tensor, size in zip(tensors, sizes, strict=True):
        _flip(tensor, [place for place in chosen if 0 <= place < size])
        chosen = [place - size for place in chosen]


class _NextCall:
    """In the place of `_submit` and `_exchange` of all groups of a rank, for one call."""

    def __init__(self, ends: Sequence[Any], part: str, flip: Flip) -> None:
        self._part = part
        self._flip = flip
        self._before: list[tuple[Any, str, Any]] = []
        for end in ends:
            for name in ("_submit", "_exchange"):
                self._before.append((end, name, vars(end).get(name)))
                setattr(end, name, partial(self._corrupt, end, name))

    def _corrupt(self, end: Any, name: str, call: Call, *given: Any) -> Any:
        for each, method, before in self._before:
            if before is None:
                delattr(each, method)
            else:
                setattr(each, method, before)
        with no_function_modes():
            self._damage(call)
        return getattr(end, name)(call, *given)

    def _damage(self, call: Call) -> None:
        if self._part == RESULT:
            tensors = list(flat(_result_of(call)))
            if tensors:
                call.callbacks = [partial(_flip_result, call, tensors, self._flip)]
        elif call.name in _IN_PLACE and call.root in (None, call.member):
            self._flip(list(flat(call.inputs)))
        elif call.name not in _ROOT_GIVES or call.member == call.root:
            call.inputs = copied(call.inputs)
            self._flip(list(flat(call.inputs)))


def _flip_result(call: Call, tensors: Sequence[Tensor], flip: Flip) -> None:
    """In the rank's own thread, before it sees that the call is complete."""
    if call.error is None:
        if call.point is not None:
            cuda_streams.wait_for_point(call)
        with no_function_modes():
            flip(tensors)


def _result_of(call: Call) -> Any:
    if call.name in _ROOT_GETS and call.member != call.root:
        return ()
    return () if call.name == "send" else call.outputs or call.inputs


def _values_of(tensor: Tensor) -> Tensor:
    tensor = tensor.detach()
    return tensor._values() if tensor.is_sparse else tensor


def _bits_of(tensor: Tensor) -> int:
    return 1 if tensor.dtype is torch.bool else tensor.element_size() * 8


def _flip(tensor: Tensor, places: Sequence[int]) -> None:
    """These bits, counted from its first element on."""
    if not places:
        return
    lying = tensor.data.resolve_conj().resolve_neg().contiguous()
    lying = lying.clone() if lying.data_ptr() == tensor.data_ptr() else lying
    content = lying.reshape(-1).view(torch.uint8)
    width = 1 if tensor.dtype is torch.bool else 8
    for place in places:
        content[place // width] ^= 1 << place % width
    tensor.data.copy_(lying)
