"""What the calls of all ranks must have in common, in a form that is cheap to compare.

Used by the process group for the parts of a call's signature.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from phalanx.backend.collectives.reduction import NAMES, PREMUL_SUM
from phalanx.backend.profiles.profile_rules import is_dense

_PLAIN = [(code, None) for code in range(PREMUL_SUM)]


def reduce_op(op: Any) -> tuple[int, Any]:
    """(code, factor): the factor only for PREMUL_SUM."""
    kind: Any = getattr(op, "op", op)
    code = int(kind)
    if code < PREMUL_SUM:
        return _PLAIN[code]
    if code > PREMUL_SUM:
        raise ValueError(f"reduce operation {kind} is none of {', '.join(NAMES)}")
    return code, op.__getstate__()[1]


def shapes(tensors: Sequence[Tensor]) -> tuple[Any, ...]:
    return tuple((t.dtype, t.shape, t.is_cpu) for t in tensors)


def have_one_shape(tensors: Sequence[Tensor]) -> bool:
    found = [tensor.shape for tensor in tensors]
    return found.count(found[0]) == len(found)


def layouts(tensors: Sequence[Tensor]) -> tuple[Any, ...]:
    """The same, and the order of elements in memory where it is not the usual one: backends
    go by memory, so ranks must agree on it."""
    orders = tuple(map(order_of, tensors))
    return (*shapes(tensors), orders) if any(orders) else shapes(tensors)


def order_of(tensor: Tensor) -> tuple[int, ...] | None:
    """How the elements follow each other in memory; None is the usual way. A tensor with gaps
    is put in order first, by those who take it at all."""
    if _is_in_order(tensor) or not is_dense(tensor):
        return None
    return tensor.stride()


def alike_or_not(one: Tensor, other: Tensor) -> dict[str, Any]:
    """What to tell the rules of two tensors between which memory is copied as it is."""
    if _is_in_order(one) and _is_in_order(other):
        return {}
    if one.layout is not other.layout or one.stride() != other.stride():
        return {"alike": False}
    return {}


def _is_in_order(tensor: Tensor) -> bool:
    return tensor.layout is not torch.strided or tensor.is_contiguous()
