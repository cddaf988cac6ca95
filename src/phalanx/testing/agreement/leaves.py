"""Take a value apart into named leaves, each with a short description and a digest.

Used by the assertions between ranks: equal digests are equal values, so that ranks exchange a
few bytes for each leaf and its data only where they differ. Nothing here communicates.
"""

from __future__ import annotations

import ctypes
import dataclasses
import hashlib
import io
import pickle
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

MISSING = "nothing"
"""The description at a path that only other ranks have."""

_CHUNK = 1 << 20
_LONGEST_REPR = 60


@dataclass(frozen=True)
class Leaf:
    """One place in a value. `what` describes it without its contents; containers are leaves
    too, so that a list and a tuple differ. One of `tensor` and `value` holds the contents."""

    path: str
    what: str
    digest: str = ""
    tensor: Tensor | None = None
    value: Any = None
    note: str = ""


def take_apart(value: Any, path: str) -> Iterator[Leaf]:
    """The leaves of a value: tensors, numbers, strings and objects, through containers,
    dataclasses and whatever has a `state_dict()`.

    >>> [(leaf.path, leaf.what) for leaf in take_apart({"a": [1, True]}, "x")]
    [('x', 'dict'), ("x['a']", 'list of 2'), ("x['a'][0]", 'int'), ("x['a'][1]", 'bool')]
    """
    if isinstance(value, Tensor):
        yield from tensor_leaves(value, path)
    elif isinstance(value, Mapping):
        yield Leaf(path, type(value).__name__)
        for key in sorted(value, key=repr):
            yield from take_apart(value[key], f"{path}[{key!r}]")
    elif isinstance(value, (list, tuple)):
        yield Leaf(path, f"{type(value).__name__} of {len(value)}")
        for index, item in enumerate(value):
            yield from take_apart(item, f"{path}[{index}]")
    elif dataclasses.is_dataclass(value) and not isinstance(value, type):
        yield Leaf(path, type(value).__name__)
        for field in dataclasses.fields(value):
            yield from take_apart(getattr(value, field.name), f"{path}.{field.name}")
    elif callable(getattr(value, "state_dict", None)) and not isinstance(value, type):
        yield Leaf(path, type(value).__name__)
        yield from take_apart(value.state_dict(), f"{path}.state_dict()")
    elif type(value).__module__ == "numpy" and hasattr(value, "__array__"):
        yield from tensor_leaves(torch.as_tensor(value), path)
    else:
        yield object_leaf(value, path)


def tensor_leaves(tensor: Tensor, path: str) -> Iterator[Leaf]:
    """A tensor is one leaf; a sparse one is its indices and values."""
    tensor = tensor.detach()
    note = ""
    if callable(getattr(tensor, "to_local", None)):  # a DTensor: this rank's part of it
        placements = ", ".join(map(repr, getattr(tensor, "placements", ())))
        note = f"a DTensor ({placements}): each rank's own part was compared"
        tensor = tensor.to_local()  # type: ignore[attr-defined]
    if tensor.layout is torch.sparse_coo:
        whole = tensor.coalesce()
        yield Leaf(path, f"sparse {describe(whole)}")
        yield from tensor_leaves(whole.indices(), f"{path}.indices()")
        yield from tensor_leaves(whole.values(), f"{path}.values()")
        return
    if tensor.layout is not torch.strided:
        tensor = tensor.to_dense()
    if tensor.is_meta:
        yield Leaf(path, f"{describe(tensor)} without data", note=note)
        return
    tensor = tensor.resolve_conj().resolve_neg()
    yield Leaf(path, describe(tensor), digest_of(tensor), tensor=tensor, note=note)


def describe(tensor: Tensor) -> str:
    """dtype and shape, as in our reports.

    >>> describe(torch.zeros(2, 3))
    'float32[2, 3]'
    """
    return f"{str(tensor.dtype).removeprefix('torch.')}{list(tensor.shape)}"


def object_leaf(value: Any, path: str) -> Leaf:
    """What is neither a tensor nor a container: compared by its pickle, then by `==`."""
    data = repr(value).encode() if isinstance(value, (int, float, str)) else _pickled(value)
    digest = hashlib.sha256(data).hexdigest()
    return Leaf(path, type(value).__name__, digest, value=value)


def short_repr(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= _LONGEST_REPR else f"{text[: _LONGEST_REPR - 4]} ..."


def short_reprs(values: Sequence[Any]) -> list[str]:
    """The texts of values that differ; long ones are cut so that the difference shows.

    >>> short_reprs(["x" * 100 + "a", "x" * 100 + "b"])[1]
    "... xxxxxxxxxxxxxxxxxxxxb'"
    """
    texts = [repr(value) for value in values]
    longest = min(map(len, texts))
    first = next((n for n in range(longest) if len({t[n] for t in texts}) > 1), longest)
    if max(map(len, texts)) <= _LONGEST_REPR or first < _LONGEST_REPR - 24:
        return [short_repr(value) for value in values]
    rests = [f"... {text[first - 20 :]}" for text in texts]
    return [
        rest if len(rest) <= _LONGEST_REPR else f"{rest[: _LONGEST_REPR - 4]} ..."
        for rest in rests
    ]


def digest_of(tensor: Tensor) -> str:
    """Equal for equal bytes. On a device it is computed there, 8 bytes come back."""
    words = bytes_of(tensor)
    if words.device.type == "cpu":
        area = (ctypes.c_char * words.numel()).from_address(words.data_ptr())
        return hashlib.sha256(area if words.numel() else b"").hexdigest()
    return f"{int(_mixed_sum(words)):x}"


def bytes_of(tensor: Tensor) -> Tensor:
    """The elements as a flat tensor of bytes, which every backend can send."""
    return tensor.contiguous().reshape(-1).view(torch.uint8)


def _mixed_sum(words: Tensor) -> Tensor:
    """A sum over well mixed words, each mixed with its position: the multiply-and-shift
    mixers of hash tables, in 64-bit arithmetic that wraps around."""
    padded = torch.nn.functional.pad(words, (0, -words.numel() % 8)).view(torch.int64)
    total = torch.full((), words.numel(), dtype=torch.int64, device=words.device)
    positions = torch.arange(min(_CHUNK, padded.numel()), device=words.device)
    for start in range(0, padded.numel(), _CHUNK):
        part = padded[start : start + _CHUNK] * -4658895280553007687
        part ^= (part >> 29) & 0x7FFFFFFFF
        part += (positions[: part.numel()] + start) * -7046029254386353131
        part *= -7723592293110705685
        part ^= (part >> 32) & 0xFFFFFFFF
        part *= -4658895280553007687
        part ^= (part >> 29) & 0x7FFFFFFFF
        total += part.sum()
    return total


def _pickled(value: Any) -> bytes:
    """Sets have no order of their own, so theirs is that of the items' texts."""
    if isinstance(value, (set, frozenset)):
        return "\n".join(sorted(map(repr, value))).encode()
    file = io.BytesIO()
    try:
        pickle.dump(value, file)
    except Exception as error:
        raise TypeError(
            f"a {type(value).__name__} cannot be compared between ranks: it does not pickle "
            f"({error}); compare tensors, numbers, strings, or containers of these"
        ) from error
    return file.getvalue()
