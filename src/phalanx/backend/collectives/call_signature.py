"""A call's signature from its tensors: equal on all ranks if the calls surely agree.

Used by the process group. Which facts count for which operation is derived from the rules of
agreement (`matching/agreement_rules.py`); this reads them off tensors, cheaply.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from phalanx.backend.collectives.reduction import NAMES, PREMUL_SUM
from phalanx.backend.profiles.profile_rules import is_dense
from phalanx.matching.agreement_rules import RULES, signed_facts
from phalanx.matching.slots import Call

_FACTS = {name: signed_facts(name) for name in RULES}
PLAIN_OPS = [(code, None) for code in range(PREMUL_SUM)]


def reduce_op(op: Any) -> tuple[int, Any]:
    """(code, factor): the factor only for PREMUL_SUM."""
    kind: Any = getattr(op, "op", op)
    code = int(kind)
    if code < PREMUL_SUM:
        return PLAIN_OPS[code]
    if code > PREMUL_SUM:
        raise ValueError(f"reduce operation {kind} is none of {', '.join(NAMES)}")
    return code, op.__getstate__()[1]


def signature_of(call: Call, *, even: bool = True) -> Any:
    """`even` says that all tensors of the call have one shape, and that it names no splits.
    Where that matters and is not so the call stands for itself, which is equal to nothing: the
    full comparison decides."""
    root, reduces, tensors, layout, needs_even = _FACTS[call.name]
    if needs_even and not even:
        return call
    found: list[Any] = [call.name]
    if root:
        found.append(call.root)
    if reduces:
        found.append(call.op[0])
    if tensors:
        given = getattr(call, tensors)
        if type(given[0]) in (list, tuple):  # one list for each output, of which there is one
            given = given[0]
        found += [(t.dtype, t.shape, t.is_cpu) for t in given]
    if layout:
        orders = [order_of(tensor) for tensor in getattr(call, layout)]
        if any(orders):
            found.append(tuple(orders))
    return tuple(found)


def have_one_shape(tensors: Sequence[Tensor]) -> bool:
    found = [tensor.shape for tensor in tensors]
    return found.count(found[0]) == len(found)


def order_of(tensor: Tensor) -> tuple[int, ...] | None:
    """How the elements follow each other in memory; None is the usual way. Backends go by
    memory, so ranks must agree on it. A tensor with gaps is put in order first, by those who
    take it at all."""
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
