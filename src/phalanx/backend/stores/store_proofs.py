"""What a store's answer proves to the program, and what the program makes of it.

Used by `store.py` for calls that the program itself makes, while they return: the limit that a
counter is compared with is a variable of the frame at hand. `while int(store.get(key)) < n`
goes on when the count is n, whatever else has been added by then.
"""

from __future__ import annotations

import ast
import operator
from collections.abc import Callable
from types import FrameType
from typing import Any

from phalanx import callsite
from phalanx.backend.evidence.frame_reader import value_of
from phalanx.source_values import Fate, fate_of, strongest

MOST_FRAMES = 4
"""How many functions that return what they read are gone back."""

_NESTED = ("<dictcomp>", "<genexpr>", "<listcomp>", "<setcomp>")
_ARITHMETIC: dict[type[ast.operator], Callable[[int, int], int]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
}

Proof = tuple[int | None, str]
"""The fields `proves` and `use` of the events about stores."""

NOTHING: Proof = (None, "")


def proof_of(frame: FrameType | None, method: str, answer: Any) -> Proof:
    """For a call of a store's method that the program makes in this frame."""
    uses: frozenset[str] = frozenset()
    proves: int | None = None
    computed = is_total = False
    function = method
    for _ in range(MOST_FRAMES):
        if frame is None or callsite.is_library(frame.f_code.co_filename):
            return NOTHING
        fate = fate_of((frame.f_code, frame.f_lasti), function, computed=computed)
        if fate is None:
            return NOTHING
        uses |= fate.uses
        is_total = is_total or fate.is_total
        if fate.comparison is not None:
            proves = _least(fate, frame, _count(answer))
        if not fate.returned:
            break
        computed = computed or fate.computed
        function, frame = _caller(frame)
    else:
        return NOTHING
    if uses == {"dropped"}:
        proves = 0 if method == "add" else 1
    use = strongest(uses)
    return proves, "computed" if is_total and use == "shown" else use


def _caller(frame: FrameType) -> tuple[str, FrameType | None]:
    """The function that returns, and the frame that called it."""
    while frame.f_code.co_name in _NESTED and frame.f_back is not None:
        frame = frame.f_back
    return frame.f_code.co_name, frame.f_back


def _count(answer: Any) -> int | None:
    try:
        return int(answer)
    except (TypeError, ValueError):
        return None


def _least(fate: Fate, frame: FrameType, count: int | None) -> int | None:
    """The least count with which the comparison has this result."""
    assert fate.comparison is not None
    comparison, other = fate.comparison
    limit = _value(other, frame)
    if count is None or type(limit) is not int:
        return None
    if comparison in ("Lt", "GtE"):
        return limit if count >= limit else 0
    if comparison in ("LtE", "Gt"):
        return limit + 1 if count > limit else 0
    if comparison in ("Eq", "NotEq"):
        return 0 if count < limit else limit + (count > limit)
    return None


def _value(node: ast.expr, frame: FrameType) -> Any:
    """The value of an expression made of numbers, variables and attributes; runs no code of the
    program. None if it has anything else."""
    if isinstance(node, ast.Constant):
        return node.value
    if isinstance(node, ast.Name):
        return value_of(frame, node.id)
    if isinstance(node, ast.Attribute):
        return getattr(_value(node.value, frame), "__dict__", {}).get(node.attr)
    if isinstance(node, ast.BinOp):
        left, right = _value(node.left, frame), _value(node.right, frame)
        compute = _ARITHMETIC.get(type(node.op))
        are_numbers = type(left) is int and type(right) is int
        return compute(left, right) if compute is not None and are_numbers else None
    if isinstance(node, ast.Call) and not node.keywords:
        return _called(node, frame)
    return None


def _called(node: ast.Call, frame: FrameType) -> Any:
    """`get_world_size()` of torch, `len(...)` of a list, `int(...)` of a number."""
    if (
        isinstance(node.func, ast.Name)
        and node.func.id in ("int", "len")
        and len(node.args) == 1
    ):
        given = _value(node.args[0], frame)
        if node.func.id == "int":
            return given if type(given) is int else None
        return len(given) if type(given) in (dict, list, range, tuple) else None
    function = _value(node.func, frame)
    of_torch = str(getattr(function, "__module__", "")).startswith("torch.distributed")
    if of_torch and getattr(function, "__name__", "") == "get_world_size" and not node.args:
        return function()
    return None
