"""Sums and products of the program's variables, and what a list of assignments makes of them.

Used by `source_updates.py` to see whether the order of two updates matters. Pure arithmetic on
syntax trees: numbers are exact, and whatever is no sum or product of known things is unknown.
"""

from __future__ import annotations

import ast
from collections.abc import Iterable, Iterator, Mapping
from fractions import Fraction

Monomial = tuple[str, ...]
Polynomial = dict[Monomial, Fraction]
State = dict[str, Polynomial | None]
"""By variable, as its text; None: unknown. A variable that is missing is a symbol."""

_SAME = frozenset(
    (
        *("clone", "contiguous", "cpu", "cuda", "detach", "double", "float", "int", "item"),
        *("squeeze", "to"),
    )
)
"""Methods and functions that give the same numbers back."""

_HARMLESS = frozenset(
    (
        *("append", "barrier", "debug", "extend", "info", "isend", "log", "print", "send"),
        *("sleep", "warning", "empty_like", "zeros_like", "ones_like", "full_like"),
        *("rand_like", "randn_like", "len", "range", "numel", "size", "dim", "tolist"),
    )
)
"""Functions that leave the numbers alone that they are given."""


class UnclearError(Exception):
    """Nothing can be said about what follows."""


def symbol(name: str) -> Polynomial:
    return {(name,): Fraction(1)}


def add(one: Polynomial, other: Polynomial, factor: int = 1) -> Polynomial:
    """
    >>> add(symbol("a"), symbol("a"), -1)
    {}
    """
    found = dict(one)
    for term, number in other.items():
        found[term] = found.get(term, Fraction(0)) + factor * number
    return {term: number for term, number in found.items() if number}


def multiply(one: Polynomial, other: Polynomial) -> Polynomial:
    found: Polynomial = {}
    for left, a in one.items():
        for right, b in other.items():
            term = tuple(sorted((*left, *right)))
            found[term] = found.get(term, Fraction(0)) + a * b
    return {term: number for term, number in found.items() if number}


def key_of(node: ast.AST) -> str | None:
    """The text of a variable, an attribute, or an element at a fixed place of these."""
    if isinstance(node, ast.Name):
        return node.id
    if isinstance(node, ast.Attribute):
        inner = key_of(node.value)
        return None if inner is None else f"{inner}.{node.attr}"
    if isinstance(node, ast.Subscript) and isinstance(node.slice, ast.Constant):
        inner = key_of(node.value)
        return None if inner is None else f"{inner}[{node.slice.value!r}]"
    return None


def value_of(node: ast.expr, state: State) -> Polynomial | None:
    """None if it is no sum or product of what is known."""
    if isinstance(node, ast.Constant):
        number = node.value
        is_number = isinstance(number, (int, float)) and abs(number) < 1e12
        return (
            {(): Fraction(str(number))} if is_number and number else {} if is_number else None
        )
    key = key_of(node)
    if key is not None:
        return _looked_up(key, state)
    if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub):
        inner = value_of(node.operand, state)
        return None if inner is None else add({}, inner, -1)
    if isinstance(node, ast.Call):
        return _called(node, state)
    if isinstance(node, ast.BinOp):
        left, right = value_of(node.left, state), value_of(node.right, state)
        return combined(node.op, left, right)
    return None


def _looked_up(key: str, state: State) -> Polynomial | None:
    """An attribute or element of something unknown is unknown."""
    if key in state:
        return state[key]
    around = [each for each in state if key.startswith((f"{each}.", f"{each}["))]
    return None if any(state[each] is None for each in around) else symbol(key)


def combined(
    operator: ast.operator, left: Polynomial | None, right: Polynomial | None
) -> Polynomial | None:
    if left is None or right is None:
        return None
    if isinstance(operator, (ast.Add, ast.Sub)):
        return add(left, right, 1 if isinstance(operator, ast.Add) else -1)
    if isinstance(operator, ast.Mult):
        return multiply(left, right)
    if isinstance(operator, ast.Div) and set(right) == {()}:
        return multiply(left, {(): 1 / right[()]})
    return None


def _called(node: ast.Call, state: State) -> Polynomial | None:
    """What gives the same numbers back, or changes a tensor in place and returns it."""
    function = node.func
    if isinstance(function, ast.Name) and function.id in _SAME and len(node.args) == 1:
        return value_of(node.args[0], state)
    if not isinstance(function, ast.Attribute):
        return None
    if function.attr in _SAME:
        return value_of(function.value, state)
    change = _IN_PLACE.get(function.attr.removesuffix("_"))
    if change is None or len(node.args) != 1:
        return None
    given = value_of(node.args[0], state)
    for keyword in node.keywords:
        scale = value_of(keyword.value, state) if keyword.arg == "alpha" else None
        given = combined(ast.Mult(), given, scale)
    return combined(change, value_of(function.value, state), given)


_IN_PLACE: dict[str, ast.operator] = {
    "add": ast.Add(),
    "sub": ast.Sub(),
    "mul": ast.Mult(),
    "div": ast.Div(),
}


Function = ast.FunctionDef | ast.AsyncFunctionDef
Functions = Mapping[str, Function | None]
"""Those of the program, by name; None where several have one name."""


def carry_out(statements: Iterable[ast.stmt], state: State, functions: Functions) -> State:
    """What these statements make of the variables. Raises `UnclearError` if nothing can be
    said, as where a function of the program is called that does more than to change them."""
    state = dict(state)
    for statement in statements:
        if isinstance(statement, (ast.Return, ast.Continue, ast.Break)):
            break
        _carry_out(statement, state, functions)
    return state


def _carry_out(statement: ast.stmt, state: State, functions: Functions) -> None:
    value = getattr(statement, "value", None)
    if isinstance(statement, ast.Expr) and isinstance(value, ast.Call):
        inside = functions.get(called_name(value))
        if inside is not None:
            _call(inside, value, state, dict.fromkeys(functions))
            return
    if any(
        isinstance(n, ast.Call) and called_name(n) in functions for n in ast.walk(statement)
    ):
        raise UnclearError
    if isinstance(statement, ast.Assign) and len(statement.targets) == 1:
        key = key_of(statement.targets[0])
        if key is not None:
            state[key] = value_of(statement.value, state)
            return
    if isinstance(statement, ast.AugAssign):
        key = key_of(statement.target)
        if key is not None:
            given = value_of(statement.value, state)
            state[key] = combined(statement.op, _looked_up(key, state), given)
            return
    if isinstance(statement, ast.Expr) and isinstance(value, ast.Call):
        key = changed_in_place(value)
        if key is not None:
            state[key] = value_of(value, state)
            return
    for key in touched([statement]):
        state[key] = None


def _call(function: Function, call: ast.Call, state: State, functions: Functions) -> None:
    """A method, or a function, whose statements change attributes; it calls no other of the
    program's. Inside, the object that it is called on is `self`."""
    names = [each.arg for each in function.args.args]
    receiver = key_of(call.func.value) if isinstance(call.func, ast.Attribute) else None
    if names[:1] == ["self"]:
        names = names[1:]
    elif receiver is not None:
        raise UnclearError  # that of a module, or a static one
    if call.keywords or len(names) != len(call.args) or function.decorator_list:
        raise UnclearError
    inner: State = {}
    for key, value in state.items():
        is_others = receiver not in (None, "self") and key.startswith("self.")
        if "." in key and not is_others:
            inner[_renamed(key, receiver, "self")] = _with_names(value, receiver, "self")
    inner.update(zip(names, (value_of(each, state) for each in call.args), strict=True))
    for key, value in carry_out(function.body, inner, functions).items():
        if "." in key:
            state[_renamed(key, "self", receiver)] = _with_names(value, "self", receiver)


def _with_names(
    value: Polynomial | None, old: str | None, new: str | None
) -> Polynomial | None:
    if value is None:
        return None
    found: Polynomial = {}
    for term, number in value.items():
        found[tuple(sorted(_renamed(name, old, new) for name in term))] = number
    return found


def _renamed(key: str, old: str | None, new: str | None) -> str:
    if old is None or new is None or not key.startswith(f"{old}."):
        return key
    return f"{new}{key[len(old) :]}"


def changed_in_place(call: ast.Call) -> str | None:
    """The tensor that `x.mul_(0.9).add_(g)` changes."""
    node: ast.expr = call
    while isinstance(node, ast.Call):
        function = node.func
        if not isinstance(function, ast.Attribute) or not function.attr.endswith("_"):
            return None
        node = function.value
    return key_of(node)


def touched(statements: Iterable[ast.stmt]) -> Iterator[str]:
    """Variables that these statements, or parts of them, may change."""
    for statement in statements:
        for node in ast.walk(statement):
            if isinstance(node, (ast.Name, ast.Attribute, ast.Subscript)):
                if isinstance(node.ctx, ast.Store):
                    yield from _roots(node)
            elif isinstance(node, ast.Call) and called_name(node) not in _HARMLESS:
                receiver = node.func.value if isinstance(node.func, ast.Attribute) else None
                for given in (receiver, *node.args, *(each.value for each in node.keywords)):
                    key = None if given is None else key_of(given)
                    if key is not None:
                        yield key


def _roots(node: ast.expr) -> Iterator[str]:
    """The variable itself, or that of which an unknown element is changed."""
    while key_of(node) is None and isinstance(node, (ast.Attribute, ast.Subscript)):
        node = node.value
    key = key_of(node)
    if key is not None:
        yield key


def called_name(node: ast.Call) -> str:
    return str(getattr(node.func, "attr", getattr(node.func, "id", "")))
