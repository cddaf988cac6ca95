"""How one tensor differs from another of its shape and dtype: how many elements, where first,
where most. Used by the assertions between ranks; works on the tensors' device."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True)
class ElementsDiffer:
    """A short text, and the details."""

    text: str
    notes: tuple[str, ...]


@torch.no_grad()
def compare_elements(
    own: Tensor, other: Tensor, *, rtol: float = 0.0, atol: float = 0.0
) -> ElementsDiffer | None:
    """None if they are the same: NaN equals NaN, and 0.0 equals -0.0.

    >>> compare_elements(torch.tensor([1.0, 2.5]), torch.tensor([1.0, 2.0])).text
    '1 of 2 elements, by up to 0.5'
    """
    left, right = _wide(own).reshape(-1), _wide(other).reshape(-1)
    differs = ~_same(left, right, rtol=rtol, atol=atol)
    number = int(differs.sum())
    if not number:
        return None
    text = f"{number} of {_elements(differs.numel())}"
    first = int(differs.nonzero()[0])
    notes = [f"first at {_at(first, own)}: {_pair(own, other, first)}"]
    if own.dtype is torch.bool:
        return ElementsDiffer(text, tuple(notes))
    distance = _distance(left, right, differs)
    largest = int(distance.argmax())
    most = float(distance[largest])
    if most == float("inf"):
        text += ", NaN or infinite on one side"
        finite = torch.where(distance.isinf(), -1.0, distance)
        largest = int(finite.argmax())
        most = float(finite[largest])
    if most > 0:
        text += f", by up to {most:.3g}" if most < float("inf") else ""
        if largest != first:
            notes.append(f"most at {_at(largest, own)}: {_pair(own, other, largest)}")
    return ElementsDiffer(text, tuple(notes))


def _wide(tensor: Tensor) -> Tensor:
    """In a dtype that has all operations and holds the same values exactly. (Unsigned 64-bit
    numbers wrap around, which keeps equal ones equal.)"""
    if tensor.dtype is torch.bool or tensor.is_complex() or tensor.dtype is torch.float64:
        return tensor
    return tensor.to(torch.float32 if tensor.is_floating_point() else torch.int64)


def _same(left: Tensor, right: Tensor, *, rtol: float, atol: float) -> Tensor:
    if left.is_floating_point() or left.is_complex():
        if rtol or atol:
            return torch.isclose(left, right, rtol=rtol, atol=atol, equal_nan=True)
        return (left == right) | (left.isnan() & right.isnan())
    return left == right


def _distance(left: Tensor, right: Tensor, differs: Tensor) -> Tensor:
    """How far apart those that differ are, 0 elsewhere; NaN on one side counts as infinite."""
    kind = torch.complex128 if left.is_complex() else torch.float64
    if left.device.type == "mps":  # has no 64-bit floats
        kind = torch.complex64 if left.is_complex() else torch.float32
    apart = (left.to(kind) - right.to(kind)).abs()
    apart = torch.where(apart.isnan(), float("inf"), apart)
    return torch.where(differs, apart, 0.0)


def _at(flat: int, tensor: Tensor) -> str:
    index = []
    for size in reversed(tensor.shape):
        flat, last = divmod(flat, size)
        index.append(last)
    return f"{index[::-1]}"


def _pair(own: Tensor, other: Tensor, flat: int) -> str:
    """`0.5 instead of 0.25`, with as many digits as it takes to tell them apart."""
    mine, theirs = (tensor.reshape(-1)[flat].item() for tensor in (own, other))
    texts = [repr(mine), repr(theirs)]
    if isinstance(mine, float) and isinstance(theirs, float):
        for digits in (6, 9, 17):
            texts = [f"{value:.{digits}g}" for value in (mine, theirs)]
            if texts[0] != texts[1]:
                break
    return f"{texts[0]} instead of {texts[1]}"


def _elements(number: int) -> str:
    return "1 element" if number == 1 else f"{number} elements"
