"""Flip bits of one call of a real process group: of what the rank gives, or of what it gets.

Used by `call_faults.py`. The bits are those that are flipped where ranks are threads. What the
rank gives is flipped in a copy that goes to the backend instead, so that the program's own
tensor stays as it is; only where the result comes into the same tensor, that is flipped. What
it gets is flipped when it is there.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import torch
from torch import Tensor

from phalanx.backend.losses.corruption import flip_bits
from phalanx.backend.torch_private import private
from phalanx.engines.remote.c10d_arguments import Arguments, Parts
from phalanx.faults import Corrupt
from phalanx.faults.fault_values import CONTRIBUTION, RESULT

_FROM_ROOT = frozenset({"broadcast", "scatter"})
_TO_ROOT = frozenset({"reduce", "gather"})


class CorruptedCall:
    """What is to be flipped of one call. `outputs` are the tensors that its result is in."""

    def __init__(self, faults: Sequence[Corrupt], parts: Parts, member: int) -> None:
        self._given = [each for each in faults if each.part == CONTRIBUTION]
        self._taken = [each for each in faults if each.part == RESULT]
        self._inputs = list(_flat(given_by(parts, member)))
        self.outputs = list(_flat(taken_by(parts, member)))
        self._is_kept = parts.name == "broadcast"

    @property
    def has_result(self) -> bool:
        """Whether bits are to be flipped when the call is over."""
        return bool(self._taken and self.outputs)

    def flip_contribution(self, given: Arguments) -> Arguments:
        """The arguments that the backend is to have instead of those `given`; empty where these
        do. The backend may still read them when the call has returned."""
        if not self._given or not self._inputs:
            return {}
        overwritten = set() if self._is_kept else {id(each) for each in self.outputs}
        copies = {
            id(each): each.detach().clone()
            for each in self._inputs
            if id(each) not in overwritten
        }
        _flip(self._given, [copies.get(id(each), each) for each in self._inputs])
        return {name: _with(copies, value) for name, value in given.items()}

    def flip_result(self) -> None:
        _flip(self._taken, self.outputs)


def given_by(parts: Parts, member: int) -> Sequence[Any]:
    """The tensors whose data this member gives to the others."""
    is_given = parts.name not in _FROM_ROOT or parts.root == member
    return parts.inputs if is_given else ()


def taken_by(parts: Parts, member: int) -> Sequence[Any]:
    """The tensors in which this member has the result."""
    if parts.name == "send" or (parts.name in _TO_ROOT and parts.root != member):
        return ()
    return parts.outputs or parts.inputs


def _flip(faults: Sequence[Corrupt], tensors: Sequence[Tensor]) -> None:
    """Which is no use of the tensors by the program."""
    with torch.no_grad(), private.no_function_modes():
        for fault in faults:
            flip_bits(tensors, fault.bits, fault.seed)


def _with(copies: dict[int, Tensor], value: Any) -> Any:
    """The same argument with copies in place of these tensors."""
    if isinstance(value, Tensor):
        return copies.get(id(value), value)
    if isinstance(value, (list, tuple)):
        return [_with(copies, each) for each in value]
    return value


def _flat(tensors: Iterable[Any]) -> Iterable[Tensor]:
    for item in tensors:
        if isinstance(item, Tensor):
            yield item
        else:
            yield from _flat(item)
