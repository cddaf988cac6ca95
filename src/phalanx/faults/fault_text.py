"""Plans of faults as text, and back. Reading runs no code of the text."""

from __future__ import annotations

import ast
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from phalanx.errors import UsageError
from phalanx.faults.fault_points import Point, call, line, moment, store
from phalanx.faults.fault_values import (
    FAULTS,
    Fault,
    Kill,
    Plan,
    Raise,
    corrupt,
    delay,
    drop_store,
    kill,
    partition,
    stop,
)

POINTS: Mapping[str, Callable[..., Point]] = {
    "call": call,
    "line": line,
    "store": store,
    "moment": moment,
}
_POINT_EXAMPLES = 'call(17), line("train.py:40"), store(3) or moment(12.5)'

_MAKERS: Mapping[str, Callable[..., Fault]] = {
    "kill": kill,
    "delay": delay,
    "stop": stop,
    "partition": partition,
    "drop_store": drop_store,
    "corrupt": corrupt,
    "raise_": lambda error, **words: Raise(error=error[0], message=error[1], **words),
}


def faults_text(plan: Iterable[Fault]) -> str:
    """The text that `parse_faults` reads back."""
    return ", ".join(map(str, plan))


def parse_faults(text: str) -> Plan:
    """Faults as one writes them in Python, with commas between them. Runs no code."""
    try:
        tree = ast.parse(f"[{text.strip()}\n]", mode="eval").body
    except (SyntaxError, ValueError):
        raise UsageError(
            f"faults {text!r}: give faults as in Python, e.g. {Kill.example}"
        ) from None
    assert isinstance(tree, ast.List)
    nodes = tree.elts
    if len(nodes) == 1 and isinstance(nodes[0], (ast.List, ast.Tuple)):
        nodes = nodes[0].elts
    return tuple(_read_fault(node) for node in nodes)


def read_plan(given: Any) -> Plan:
    """The option `faults` as a caller gives it: faults, one fault, or their text."""
    if isinstance(given, str):
        return parse_faults(given)
    if isinstance(given, Fault):
        return (given,)
    if not isinstance(given, (list, tuple)) or not all(isinstance(f, Fault) for f in given):
        raise UsageError(
            f"faults={given!r}: give faults, e.g. faults=[{Kill.example}], with what "
            "phalanx.faults has, or their text"
        )
    return tuple(given)


def check_plan(plan: Plan, ranks: int) -> None:
    """Refuse what cannot happen on so many ranks; 0: nobody knows how many."""
    killed = [each.rank for each in plan if isinstance(each, Kill)]
    for fault in plan:
        wrong = [rank for rank in fault.ranks if ranks and rank >= ranks]
        if wrong:
            raise UsageError(
                f"{fault}: there is no rank {wrong[0]}; ranks are 0 to {ranks - 1}"
            )
    if len(set(killed)) != len(killed):
        raise UsageError(
            f"{faults_text(plan)}: a rank can be killed once; leave one of them out"
        )


def _read_fault(node: ast.expr) -> Fault:
    name, args, keywords = _read_call(node, _MAKERS, "fault")
    try:
        return _MAKERS[name](*args, **keywords)
    except TypeError:
        shown = ast.unparse(node)
        raise UsageError(f"{shown}: write it like {FAULTS[name].example}") from None


def _read_call(
    node: ast.expr, known: Mapping[str, Any], what: str
) -> tuple[str, list[Any], dict[str, Any]]:
    shown, function = ast.unparse(node), getattr(node, "func", None)
    name = function.id if isinstance(function, ast.Name) else ""
    if not isinstance(node, ast.Call) or name not in known:
        bare = isinstance(node, ast.Name) and node.id in FAULTS
        more = f"; write {FAULTS[shown].example}" if bare else ""
        raise UsageError(f"{shown}: no {what}{more}; there are {', '.join(known)}")
    is_error = name == "raise_"
    args = [_read_value(each, error=is_error and not i) for i, each in enumerate(node.args)]
    words = {str(each.arg): _read_value(each.value) for each in node.keywords}
    return name, args, words


def _read_value(node: ast.expr, *, error: bool = False) -> Any:
    if error:
        return _read_error(node)
    if isinstance(node, ast.Call):
        name, args, words = _read_call(node, POINTS, "point")
        try:
            return POINTS[name](*args, **words)
        except TypeError:
            raise UsageError(f"{ast.unparse(node)}: write it like {_POINT_EXAMPLES}") from None
    try:
        return ast.literal_eval(node)
    except ValueError:
        raise UsageError(
            f"{ast.unparse(node)}: give numbers, texts or {_POINT_EXAMPLES}"
        ) from None


def _read_error(node: ast.expr) -> tuple[str, str | None]:
    """`MemoryError`, `torch.OutOfMemoryError("...")`: nothing of it is looked up."""
    message = None
    if isinstance(node, ast.Call):
        if len(node.args) != 1 or node.keywords:
            raise UsageError(f"{ast.unparse(node)}: give a class of errors, or one with a text")
        message, node = _read_value(node.args[0]), node.func
    return ast.unparse(node), message
