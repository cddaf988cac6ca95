"""What a function finds again when it runs once more: globals, variables, arguments."""

from __future__ import annotations

import inspect
import types
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

DEEPEST = 3
"""Functions of the same module that are called by functions."""
_UNCHANGING = (
    type,
    types.ModuleType,
    types.FunctionType,
    types.BuiltinFunctionType,
    str,
    bytes,
    frozenset,
)


def values_kept_by(
    fn: Callable[..., Any], args: Sequence[Any], kwargs: Mapping[str, Any]
) -> dict[str, Any]:
    """By names as a reader knows them."""
    found = {f"argument {number}": value for number, value in enumerate(args, 1)}
    found.update({f'argument "{name}"': value for name, value in kwargs.items()})
    found.update(_around(inspect.unwrap(fn), DEEPEST))
    return {name: each for name, each in found.items() if not isinstance(each, _UNCHANGING)}


def _around(fn: Any, deep: int) -> Iterator[tuple[str, Any]]:
    code = getattr(fn, "__code__", None)
    if code is None or not deep:
        return
    for name, cell in zip(code.co_freevars, fn.__closure__ or (), strict=False):
        try:
            yield f'the variable "{name}"', cell.cell_contents
        except ValueError:  # not assigned yet
            continue
    for name in _names_in(code):
        if name not in fn.__globals__:
            continue
        value = fn.__globals__[name]
        yield f'the global "{name}"', value
        if isinstance(value, types.FunctionType) and value.__module__ == fn.__module__:
            yield from _around(value, deep - 1)


def _names_in(code: types.CodeType) -> Iterator[str]:
    yield from code.co_names
    for each in code.co_consts:
        if isinstance(each, types.CodeType):
            yield from _names_in(each)
