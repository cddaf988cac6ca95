"""Where tensors lie, whether two of them share bytes, and what was in them.

Used by the guard of buffers in flight. Addresses, not storages, are compared: memory that
NumPy shares with torch belongs to another storage and is the same memory. Nothing here looks
at autograd, and nothing must be called with a torch function mode of the guard's active.
"""

from __future__ import annotations

import functools
from collections.abc import Iterator
from contextlib import suppress
from ctypes import c_char
from typing import Any

import torch
from torch import Tensor

WHOLE = 16384
"""Bytes up to which contents are kept whole; of larger tensors, samples."""
_SAMPLE = 1024
_MOST_MARKED = 1 << 26
"""Bytes up to which scattered tensors are compared element by element."""

_PLAIN = (Tensor, torch.nn.Parameter)


def plain_tensors(given: Any) -> Iterator[Tensor]:
    """Tensors with memory of their own among arguments, also in lists and dicts."""
    for item in given:
        kind = type(item)
        if kind in _PLAIN:
            yield item
        elif kind is list or kind is tuple:
            yield from plain_tensors(item)
        elif kind is dict:
            yield from plain_tensors(item.values())


def extent(tensor: Tensor) -> tuple[int, int]:
    """The first address and the one behind the last; (0, 0) where there is no memory."""
    try:
        low = tensor.data_ptr()
        if not low:
            return 0, 0  # of the meta device, or freed
        if tensor.is_contiguous():
            return low, low + tensor.nbytes
        if not tensor.numel() or tensor.layout is not torch.strided:
            return 0, 0
    except (RuntimeError, Warning):  # tensors of functorch, fake and sparse ones
        return 0, 0
    steps = zip(tensor.shape, tensor.stride(), strict=True)
    last = sum((size - 1) * stride for size, stride in steps)
    return low, low + (last + 1) * tensor.element_size()


def share_bytes(a: Tensor, b: Tensor) -> bool:
    """Whether two tensors whose extents overlap have an element in common: columns of one
    matrix have not. Where that would be dear to find out, the answer is no."""
    if a.is_contiguous() and b.is_contiguous():
        return True
    low = min(a.data_ptr(), b.data_ptr())
    high = max(extent(a)[1], extent(b)[1])
    if high - low > _MOST_MARKED or a.element_size() != b.element_size():
        return False
    size = a.element_size()
    if (a.data_ptr() - low) % size or (b.data_ptr() - low) % size:
        return False
    marks = torch.zeros((high - low) // size, dtype=torch.bool, device="cpu")
    first = marks.as_strided(a.shape, a.stride(), (a.data_ptr() - low) // size)
    first.fill_(True)
    second = marks.as_strided(b.shape, b.stride(), (b.data_ptr() - low) // size)
    return bool(second.any())


def windows(low: int, high: int) -> tuple[Any, ...]:
    """What shows the contents of this memory, as `raw`: all of it, or samples of the
    beginning, the middle and the end. For memory of the processor, as long as it is there."""
    length = high - low
    if length <= WHOLE:
        return (_window(length).from_address(low),)
    kind = _window(_SAMPLE)
    starts = low, low + length // 2, high - _SAMPLE
    return tuple(kind.from_address(start) for start in starts)


@functools.cache
def _window(length: int) -> Any:
    return c_char * length


def poison(tensor: Tensor) -> None:
    """Fill with what nobody takes for a result, where the dtype can be filled."""
    with suppress(RuntimeError):
        _fill(tensor.data)


def _fill(target: Tensor) -> None:
    if target.is_floating_point() or target.is_complex():
        target.fill_(float("nan"))
    elif target.dtype is torch.bool:
        target.logical_not_()
    else:
        target.fill_(torch.iinfo(target.dtype).min or torch.iinfo(target.dtype).max)


def can_be_poisoned(tensor: Tensor) -> bool:
    return tensor.is_cpu and not tensor.is_quantized and not tensor.is_sparse
