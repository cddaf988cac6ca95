"""The tensors that cases use: their contents, and their layout in memory.

Values depend only on rank, index and dtype, so every rank can compute what the others bring. A
tensor is *placed* in a larger buffer, and the memory around it is checked after the operation:
this finds a backend that writes outside of a view.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field

import torch
from torch import Tensor

Shape = tuple[int, ...]

FLOATS = ("float64", "float32", "float16", "bfloat16")
INTEGERS = ("int8", "int16", "int32", "int64", "uint8")
EIGHTS = ("float8_e4m3fn", "float8_e5m2")
COMPLEX = ("complex64", "complex128")
DTYPES = (*FLOATS, *INTEGERS, "bool", *COMPLEX, *EIGHTS)

SHAPES: dict[str, Shape] = {
    "matrix": (4, 3),
    "vector": (6,),
    "zero-dim": (),
    "empty": (0,),
    "empty-rows": (2, 0),
    "image": (2, 3, 2, 2),
    "large": (300, 401),
}

LONGEST = 120
"""Characters of a value that a reason shows."""

GUARD = 77
MARGIN = 5


def dtype_of(name: str) -> torch.dtype:
    found = getattr(torch, name)
    assert isinstance(found, torch.dtype)
    return found


def values(shape: Shape, dtype: torch.dtype, *, rank: int, index: int, small: bool) -> Tensor:
    """Exact in every dtype. `small`: sums and products of a few of them are exact, too."""
    count = math.prod(shape)
    numbers = torch.arange(count) * 7 + rank * 31 + index * 17
    if dtype == torch.bool:
        flat = (numbers % 3 == 0).to(dtype)
    elif dtype.is_complex:
        real, imaginary = numbers % 3 + 1, (numbers + rank) % 2
        flat = torch.complex(real.double(), imaginary.double()).to(dtype)
    else:
        flat = (numbers % 4 + 1 if small else numbers % 101 + 1).to(dtype)
    return flat.reshape(shape)


@dataclass
class Placed:
    """A tensor inside of a buffer. `view` cuts the tensor out of any such buffer; `inside`
    gives each element of it once, to write on."""

    buffer: Tensor
    view: Callable[[Tensor], Tensor]
    inside: Callable[[Tensor], Tensor]
    tensor: Tensor = field(init=False)

    def __post_init__(self) -> None:
        self.tensor = self.view(self.buffer)
        self._around = self._outside()

    def _outside(self) -> Tensor:
        copy = self.buffer.detach().clone()
        self.inside(copy).copy_(torch.zeros((), dtype=copy.dtype, device=copy.device))
        return copy

    def is_guard_intact(self) -> bool:
        return same(self._outside(), self._around)


def place(content: Tensor, layout: str, device: str) -> Placed:
    """A tensor with this content that lies in memory as `layout` says."""
    view, room = _LAYOUTS[layout](tuple(content.shape))
    buffer = torch.full((room,), GUARD, dtype=torch.float64).to(content.dtype).to(device)
    if content.dtype == torch.bool:
        buffer[::2] = False
    expanded = layout == "expanded"
    inside = (lambda buffer: view(buffer)[:1]) if expanded else view
    inside(buffer).copy_(content[:1] if expanded else content)
    placed = Placed(buffer, view, inside)
    if layout == "requires-grad":
        placed.tensor = placed.tensor.detach().requires_grad_()
    return placed


def result_layout(layout: str, shape: Shape) -> str:
    """How a result lies in memory where what is brought lies like `layout`."""
    if layout in ("expanded", "requires-grad"):
        return "contiguous"
    return "contiguous" if layout == "channels-last" and len(shape) != 4 else layout


def fresh_room(shape: Shape, dtype: torch.dtype, layout: str, device: str) -> Placed:
    """An output, full of what must be overwritten."""
    return place(torch.full(shape, 99, dtype=torch.float64).to(dtype), layout, device)


View = tuple[Callable[[Tensor], Tensor], int]


def _contiguous(shape: Shape) -> View:
    count = math.prod(shape)
    return lambda buffer: buffer[:count].view(shape), count


def _view(shape: Shape) -> View:
    """Contiguous, but a part of something larger."""
    count = math.prod(shape)
    return lambda buffer: buffer[MARGIN : MARGIN + count].view(shape), count + 2 * MARGIN


def _strided(shape: Shape) -> View:
    """Every other element: neither contiguous nor dense."""
    strides = [2 * step for step in _steps(shape)]
    room = 2 * math.prod(shape) + 2 * MARGIN
    return lambda buffer: buffer.as_strided(shape, strides, MARGIN), room


def _columns(shape: Shape) -> View:
    """Some columns of a wider matrix, as `wide[:, 1:4]` gives them."""
    if not shape:
        return _view(shape)
    wide = (*shape[:-1], shape[-1] + 3)
    return lambda buffer: buffer.view(wide)[..., 1 : 1 + shape[-1]], math.prod(wide)


def _transposed(shape: Shape) -> View:
    """Dense, but in another order of dimensions."""
    steps = _steps(tuple(reversed(shape)))[::-1]
    count = math.prod(shape)
    return lambda buffer: buffer.as_strided(shape, steps, 0), count


def _channels_last(shape: Shape) -> View:
    assert len(shape) == 4, "channels last is about images"
    n, c, h, w = shape
    strides = (h * w * c, 1, w * c, c)
    return lambda buffer: buffer.as_strided(shape, strides, 0), n * c * h * w


def _expanded(shape: Shape) -> View:
    """One row that stands for all: several elements share their memory."""
    steps = (0, *_steps(shape[1:]))
    return lambda buffer: buffer.as_strided(shape, steps, 0), math.prod(shape[1:])


def _steps(shape: Shape) -> list[int]:
    return [max(1, math.prod(shape[axis + 1 :])) for axis in range(len(shape))]


_LAYOUTS: dict[str, Callable[[Shape], View]] = {
    "contiguous": _contiguous,
    "requires-grad": _contiguous,
    "view": _view,
    "strided": _strided,
    "columns": _columns,
    "transposed": _transposed,
    "channels-last": _channels_last,
    "expanded": _expanded,
}


def same(found: Tensor, expected: Tensor, *, close: bool = False) -> bool:
    """Whether two tensors are equal: dtype, shape and every bit, or (`close`) nearly."""
    if found.dtype != expected.dtype or found.shape != expected.shape:
        return False
    return not bool(_unequal(found, expected, close=close).any())


def _unequal(found: Tensor, expected: Tensor, *, close: bool) -> Tensor:
    """Where two tensors of the same dtype and shape differ, as one row of truths."""
    found, expected = (t.detach().cpu().reshape(-1) for t in (found, expected))
    if found.is_floating_point() and found.element_size() == 1:
        found, expected = found.view(torch.uint8), expected.view(torch.uint8)
    if close and (found.is_floating_point() or found.is_complex()):
        return ~torch.isclose(found, expected, rtol=1e-2, atol=1e-2)
    return found != expected


def tell_apart(found: object, expected: object, *, close: bool = False) -> str:
    """What is not as it should be: of things with elements where first, and of how many."""
    if isinstance(expected, Tensor):
        return _tell_tensors_apart(found, expected, close=close)
    if type(found) is type(expected) and isinstance(found, (list, tuple, str, bytes)):
        assert isinstance(expected, (list, tuple, str, bytes))
        if len(found) != len(expected):
            return f"{len(found)} elements instead of {len(expected)}: {_pair(found, expected)}"
        wrong = [i for i, one in enumerate(found) if bool(one != expected[i])]
        if len(found) > 1 and wrong:
            return _first(wrong, found[wrong[0]], expected[wrong[0]], len(found))
    return _pair(found, expected)


def _tell_tensors_apart(found: object, expected: Tensor, *, close: bool) -> str:
    if not isinstance(found, Tensor):
        return f"{_cut(repr(found))} instead of a tensor"
    if found.dtype != expected.dtype or found.shape != expected.shape:
        kinds = [f"{str(t.dtype)[6:]}{list(t.shape)}" for t in (found, expected)]
        return f"{kinds[0]} instead of {kinds[1]}"
    wrong = _unequal(found, expected, close=close).nonzero().reshape(-1).tolist()
    one, other = (_element(t, wrong[0]) for t in (found, expected))
    return _first(wrong, one, other, found.numel())


def _first(wrong: list[int], one: object, other: object, count: int) -> str:
    return f"{_pair(one, other)} at {wrong[0]}, {len(wrong)} of {count} wrong"


def _pair(one: object, other: object) -> str:
    """Both sides in words that differ."""
    sides = [_cut(repr(each)) for each in (one, other)]
    if sides[0] == sides[1]:
        sides = [
            f"{text} ({type(each).__name__})"
            for text, each in zip(sides, (one, other), strict=True)
        ]
    if sides[0] == sides[1]:
        return f"{sides[0]}, which is not equal to what it should be"
    return f"{sides[0]} instead of {sides[1]}"


def _cut(text: str) -> str:
    return text if len(text) <= LONGEST else f"{text[:LONGEST]}..."


def _element(tensor: Tensor, index: int) -> object:
    one = tensor.detach().cpu().reshape(-1)[index]
    return (one.float() if tensor.element_size() == 1 else one).item()
