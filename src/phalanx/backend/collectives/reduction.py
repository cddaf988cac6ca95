"""Reductions over the ranks' own memory: results go straight into the destinations.

Used by the collectives. Large tensors are worked on block by block (`parallel_reduce.py`), so
that the running sum stays in cache between the last addition and the copies to the other ranks;
inputs are never stacked. The order of additions is the order of ranks, whoever arrived last, so
results are the same in every run.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from phalanx.backend.collectives.parallel_reduce import WORTHWHILE, Work, in_lanes
from phalanx.backend.torch_private.private_memory import copy_each

SUM, AVG, PRODUCT, MIN, MAX, BAND, BOR, BXOR, PREMUL_SUM = range(9)
NAMES = ("SUM", "AVG", "PRODUCT", "MIN", "MAX", "BAND", "BOR", "BXOR", "PREMUL_SUM")
"""Reduce operations in the order of torch's enumeration."""

_NARROW = frozenset((torch.float8_e4m3fn, torch.float8_e5m2))
"""NCCL reduces these, torch itself does not: it is done in float32."""

_INTO: dict[int, Callable[[Tensor, Tensor], object]] = {
    SUM: Tensor.add_,
    AVG: Tensor.add_,
    PREMUL_SUM: Tensor.add_,
    PRODUCT: Tensor.mul_,
    MIN: lambda total, x: torch.minimum(total, x, out=total),
    MAX: lambda total, x: torch.maximum(total, x, out=total),
    BAND: Tensor.bitwise_and_,
    BOR: Tensor.bitwise_or_,
    BXOR: Tensor.bitwise_xor_,
}


class Reduction:
    """One reduce operation over a number of ranks; `factors` scale the inputs first."""

    __slots__ = ("_fold", "code", "count", "factors")

    def __init__(self, code: int, count: int, factors: Sequence[Any] | None = None) -> None:
        self.code = code
        self.count = count
        self.factors = factors
        self._fold = _INTO[code]

    def all_into_all(self, tensors: list[Tensor], *, alike: bool = False) -> None:
        """Every tensor is an input, and every one gets the result. `alike` says that their
        shapes are known to be equal."""
        if _share_memory(tensors):
            inputs = [tensor.clone() for tensor in tensors]
            self.into(tensors[0], inputs)
            for target in tensors[1:]:
                target.copy_(tensors[0])
            return
        if alike and tensors[0].nbytes < WORTHWHILE:
            self._whole(tensors)
        else:
            _in_blocks(tensors, self._whole)

    def _whole(self, tensors: Sequence[Tensor]) -> None:
        total, *others = tensors
        self.accumulate(total, others)
        if others and total.is_cuda:
            copy_each(others, [total] * len(others))
            return
        for target in others:
            target.copy_(total)

    @torch.no_grad()
    def sparse_into_all(self, tensors: list[Tensor]) -> None:
        """The same for sparse tensors, whose `data` is no view: they are written as such."""
        if self.code != SUM:
            raise ValueError(f"a sparse all_reduce takes SUM only, not {NAMES[self.code]}")
        total = tensors[0].clone()
        for tensor in tensors[1:]:
            total = total + tensor
        total = total.coalesce()
        for tensor in tensors:
            tensor.copy_(total)

    def into(self, target: Tensor, inputs: list[Tensor]) -> None:
        """`target` gets the result; the inputs stay as they are. It may be one of them, or
        several, where ranks share a tensor."""
        homes = [i for i, x in enumerate(inputs) if is_same_memory(x, target)]
        home = homes[0] if len(homes) == 1 else None
        if home is None and overlaps(target, inputs):
            inputs = [x.clone() for x in inputs]

        def reduce(tensors: Sequence[Tensor]) -> None:
            out, first, *others = tensors
            if home is None or home == 0:
                self.accumulate(out if home == 0 else out.copy_(first), others)
            else:
                total = first.clone()
                self.accumulate(total, others)
                out.copy_(total)

        _in_blocks([target, *inputs], reduce)

    def accumulate(self, total: Tensor, others: list[Tensor]) -> None:
        """`total` holds the first input and gets the result."""
        if total.dtype in _NARROW:
            wide = total.float()
            self.accumulate(wide, [tensor.float() for tensor in others])
            total.copy_(wide)
            return
        if not total.is_cpu:
            others = [tensor.to(total.device) for tensor in others]
        fold, factors = self._fold, self.factors
        if factors is None:
            for tensor in others:
                fold(total, tensor)
        else:
            total.mul_(factors[0])
            for tensor, factor in zip(others, factors[1:], strict=True):
                fold(total, tensor * factor)
        if self.code == AVG:
            if total.is_floating_point() or total.is_complex():
                total.div_(self.count)
            else:
                total.div_(self.count, rounding_mode="trunc")  # as NCCL does


def _in_blocks(tensors: list[Tensor], work: Work) -> None:
    """Do the work on the tensors side by side: whole if they are small or scattered or on a
    device, else in blocks on all cores."""
    first = tensors[0]
    alike = [t.shape for t in tensors].count(first.shape) == len(tensors)
    if alike and (first.nbytes < WORTHWHILE or not first.is_cpu):
        work(tensors)
    elif all(t.is_contiguous() for t in tensors):
        flat = [t.view(-1) for t in tensors]
        work(flat) if first.nbytes < WORTHWHILE or not first.is_cpu else in_lanes(flat, work)
    elif alike:
        work(tensors)
    else:
        raise ValueError(
            "tensors of different shapes must be contiguous to be reduced; got "
            + ", ".join(str(tuple(t.shape)) for t in tensors)
        )


def _share_memory(tensors: list[Tensor]) -> bool:
    """Ranks are threads: a tensor made outside and used by all is one and the same here."""
    return len({t.data_ptr() for t in tensors}) < len(tensors) and tensors[0].numel() > 0


def is_same_memory(a: Tensor, b: Tensor) -> bool:
    return a.data_ptr() == b.data_ptr() and a.shape == b.shape and a.stride() == b.stride()


def overlaps(target: Tensor, inputs: list[Tensor]) -> bool:
    """Whether target and some input lie in one storage, apart from being the same view."""
    storage = target.untyped_storage().data_ptr()
    start = target.data_ptr()
    end = start + target.numel() * target.element_size()
    for tensor in inputs:
        if tensor.untyped_storage().data_ptr() == storage:
            low = tensor.data_ptr()
            if low < end and start < low + tensor.numel() * tensor.element_size():
                return True
    return False
