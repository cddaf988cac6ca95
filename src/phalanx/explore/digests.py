"""A digest of any value, by structure: equal for equal values of two runs in one process.

Tensors and arrays count by their bits. Objects count by their class and what they hold. What
says nothing about itself but its address counts by its class alone.
"""

from __future__ import annotations

import functools
import hashlib
import types
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import torch

DEEPEST = 50
"""Levels of objects in objects that are looked at."""


def digest_of(value: Any) -> bytes:
    digest = hashlib.blake2b(digest_size=16)
    _Digester(digest.update).add(value)
    return digest.digest()


class _Digester:
    def __init__(self, update: Callable[[bytes], object]) -> None:
        self._update = update
        self._inside: dict[int, int] = {}
        """The objects around the one that is looked at, and how deep they are."""

    def add(self, value: Any) -> None:
        kind = type(value)
        if value is None or kind in _PLAIN:
            self._say(kind.__name__, repr(value))
        elif kind in (str, bytes):
            self._say(kind.__name__, value)
        elif id(value) in self._inside:
            self._say("around", str(self._inside[id(value)]))
        elif len(self._inside) >= DEEPEST:
            self._say("deep", kind.__qualname__)
        else:
            self._inside[id(value)] = len(self._inside)
            self._add_whole(value)
            del self._inside[id(value)]

    def _add_whole(self, value: Any) -> None:
        if isinstance(value, torch.Tensor):
            self._add_tensor(value)
        elif isinstance(value, torch.nn.Module):
            self._say("module", type(value).__qualname__)
            self._add_pairs(value.state_dict().items())
        elif isinstance(value, Mapping):
            self._say("mapping", f"{type(value).__qualname__} {len(value)}")
            self._add_pairs(value.items())
        elif isinstance(value, (set, frozenset)):
            self._say("set", str(len(value)))
            for each in sorted(map(digest_of, value)):
                self._update(each)
        elif isinstance(value, (list, tuple)):
            self._say(type(value).__qualname__, str(len(value)))
            self._add_all(value)
        else:
            self._add_object(value)

    def _add_tensor(self, tensor: torch.Tensor) -> None:
        self._say("tensor", f"{tensor.dtype} {tuple(tensor.shape)} {tensor.requires_grad}")
        plain = tensor.detach()
        local = getattr(plain, "to_local", None)
        if local is not None:  # of a DTensor each rank has a part
            plain = local()
        if plain.layout is not torch.strided or plain.is_quantized or plain.is_meta:
            self._say("as text", repr(plain))
            return
        plain = plain.resolve_conj().resolve_neg().cpu().contiguous().reshape(-1)
        if plain.numel():
            self._update(plain.view(torch.uint8).numpy().tobytes())

    def _add_object(self, value: Any) -> None:
        kind = type(value)
        self._say("object", f"{kind.__module__}.{kind.__qualname__}")
        if isinstance(value, BaseException):
            self._add_all(value.args)
        elif isinstance(value, (type, types.FunctionType, types.BuiltinFunctionType)):
            self._say("named", f"{value.__module__}.{value.__qualname__}")
        elif isinstance(value, types.ModuleType):
            self._say("named", value.__name__)
        elif isinstance(value, functools.partial):
            self._add_all((value.func, value.args, value.keywords))
        elif kind.__name__ == "ndarray" and value.dtype == object:
            self._add_all(value.ravel())
        elif kind.__module__ == "numpy" and hasattr(value, "tobytes"):
            self._say("array", f"{value.dtype} {value.shape}")
            self._update(value.tobytes())
        elif "__repr__" in vars(kind) and not hasattr(value, "__dict__"):
            self._say("as text", _text_of(value))
        else:
            self._add_pairs(_fields(value))

    def _add_all(self, values: Iterable[Any]) -> None:
        for each in values:
            self.add(each)

    def _add_pairs(self, pairs: Iterable[tuple[Any, Any]]) -> None:
        for key, value in pairs:
            self.add(key)
            self.add(value)

    def _say(self, kind: str, text: str | bytes) -> None:
        data = text.encode(errors="surrogatepass") if isinstance(text, str) else text
        self._update(f"{kind} {len(data)} ".encode())
        self._update(data)


_PLAIN = frozenset({bool, int, float, complex, type(Ellipsis), type(NotImplemented)})


def _text_of(value: Any) -> str:
    text = repr(value)
    return "" if " at 0x" in text else text


def _fields(value: Any) -> list[tuple[str, Any]]:
    held = dict(getattr(value, "__dict__", {}))
    for kind in type(value).__mro__:
        slots = getattr(kind, "__slots__", ())
        for name in (slots,) if isinstance(slots, str) else slots:
            if hasattr(value, name):
                held[name] = getattr(value, name)
    return sorted(held.items())
