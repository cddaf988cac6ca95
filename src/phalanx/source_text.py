"""What the program's source says about places in it: which statement, in which branches.

Used by checks that have found something and verify it before they report it. If the source
cannot be read or parsed, the functions return None or False, and the checks stay silent.
"""

from __future__ import annotations

import ast
import functools
import linecache
from collections.abc import Callable
from itertools import islice
from types import CodeType

from phalanx.callsite import Mark, line_at

_PASSED_THROUGH = (ast.With, ast.AsyncWith, ast.Try)
"""Statements whose body runs whenever they are reached."""

Block = tuple[int, str, bool]
"""A list of statements: the line of its owner, the owner's field, and whether the list runs
whenever its owner does."""


def together(one: Mark, other: Mark) -> bool:
    """Whether both are in one function and only `with` and `try` are between either place and
    their common block: a rank that passes one passes the other, unless it leaves the block."""
    if one[0] != other[0]:
        return False
    chains = [_blocks(place[0].co_filename, line_at(*place)) for place in (one, other)]
    return _are_together(*chains)


def _are_together(first: tuple[Block, ...] | None, second: tuple[Block, ...] | None) -> bool:
    if first is None or second is None:
        return False
    common = 0
    while common < min(len(first), len(second)) and first[common] == second[common]:
        common += 1
    return all(sure for _, _, sure in (*first[common:], *second[common:]))


def expression(place: Mark) -> str | None:
    """The text of the call at a place; the whole line where Python keeps no columns."""
    code, offset = place
    lines = linecache.getlines(code.co_filename)
    line = line_at(code, offset)
    if not 0 < line <= len(lines):
        return None
    return _segment(code, offset, lines) or lines[line - 1].strip() or None


def _segment(code: CodeType, offset: int, lines: list[str]) -> str | None:
    positions = getattr(code, "co_positions", None)  # Python 3.11
    if positions is None:
        return None
    found = next(islice(positions(), offset // 2, None), None)
    if found is None or None in found:
        return None
    first, last, start, end = found
    chosen = [line.encode() for line in lines[first - 1 : last]]
    if not chosen:
        return None
    chosen[-1] = chosen[-1][:end]
    chosen[0] = chosen[0][start:]
    return " ".join(b"".join(chosen).decode(errors="replace").split())


def _blocks(filename: str, line: int) -> tuple[Block, ...] | None:
    """The lists of statements around a line, outermost first."""
    node: ast.AST | None = parsed(tuple(linecache.getlines(filename)))
    if node is None:
        return None
    found: list[Block] = []
    while node is not None:
        owner = node
        field, node = _statement_at(owner, line)
        if node is not None:
            sure = isinstance(owner, _PASSED_THROUGH) and field in ("body", "finalbody")
            found.append((getattr(owner, "lineno", 0), field, sure))
    return tuple(found)


def _statement_at(node: ast.AST, line: int) -> tuple[str, ast.stmt | None]:
    for field, value in ast.iter_fields(node):
        for index, item in enumerate(value if isinstance(value, list) else ()):
            if isinstance(item, ast.stmt):
                if item.lineno <= line <= (item.end_lineno or item.lineno):
                    return field, item
            elif isinstance(item, (ast.ExceptHandler, ast.match_case)):
                _, inner = _statement_at(item, line)
                if inner is not None:
                    return f"{field}[{index}]", inner
    return "", None


@functools.lru_cache(maxsize=8)
def parsed(lines: tuple[str, ...]) -> ast.Module | None:
    try:
        return ast.parse("".join(lines)) if lines else None
    except (SyntaxError, ValueError):
        return None


def branch_by_rank(place: Mark) -> int | None:
    """The line of an `if` around a place, in the same function, that tests the rank: a name in
    the test says so, as in `rank == 0` and `dist.get_rank() > 0`."""
    code, offset = place
    return _branch(code.co_filename, line_at(code, offset), code.co_firstlineno)


def branch_at_line(file: str, line: int) -> int | None:
    """The same for a line of a file, if that is here."""
    tree = parsed(tuple(linecache.getlines(file)))
    functions = (ast.FunctionDef, ast.AsyncFunctionDef)
    around = [
        node.lineno
        for node in (ast.walk(tree) if tree is not None else ())
        if isinstance(node, functions) and node.lineno <= line <= (node.end_lineno or 0)
    ]
    return _branch(file, line, max(around, default=0))


def _branch(file: str, line: int, first: int) -> int | None:
    tree = parsed(tuple(linecache.getlines(file)))
    if tree is None:
        return None
    found = [
        node.lineno
        for node in ast.walk(tree)
        if isinstance(node, ast.If)
        and first <= node.lineno
        and node.test.end_lineno is not None
        and node.test.end_lineno < line <= (node.end_lineno or 0)
        and any(_is_rank(each) for each in ast.walk(node.test))
    ]
    return max(found, default=None)


def _is_rank(node: ast.AST) -> bool:
    name = getattr(node, "id", None) or getattr(node, "attr", None)
    return isinstance(name, str) and "rank" in name.lower().split("_")


_PLAIN = frozenset({"float", "int", "len", "list", "sum", "tuple"})
_PICKERS = frozenset({"get", "pop", "setdefault"})
_STEPS = 3
"""How many assignments are followed back."""


def picks(place: Mark, name: str) -> bool:
    """Whether what is given to the call at a place is picked by the variable of that name:
    `table[name]`, `table.get(name)`, `getattr(it, name)`, a variable that the same loop binds
    together with it, or a tensor made of that."""
    call, tree = _call_at(place)
    if call is None or tree is None:
        return False
    code, line = place[0], line_at(*place)
    known: dict[str, ast.expr | None] = {**_assigned_before(tree, code.co_firstlineno, line)}
    known.update(dict.fromkeys(_bound_with(tree, line, name)))
    given = [*call.args, *(keyword.value for keyword in call.keywords)]
    return any(_is_picked(each, name, known, _STEPS) for each in given)


def gives_group_rank(place: Mark) -> bool:
    """Whether the call at a place gives as `src` or `dst`, ranks of the world, what
    `get_group_rank` said for the group that it is called on."""
    call, tree = _call_at(place)
    if call is None or tree is None:
        return False
    named = {each.arg: each.value for each in call.keywords}
    group = named.get("group")
    given = named.get("src", named.get("dst"))
    if given is None and len(call.args) > 1:
        given = call.args[1]
    if group is None and len(call.args) > 2:
        group = call.args[2]
    if isinstance(given, ast.Name):
        given = _only_value(tree, place, given.id)
    if group is None or not isinstance(given, ast.Call) or not given.args:
        return False
    function = given.func
    called = getattr(function, "attr", getattr(function, "id", None))
    return called == "get_group_rank" and ast.dump(given.args[0]) == ast.dump(group)


def _only_value(tree: ast.Module, place: Mark, name: str) -> ast.expr | None:
    """What a variable of the function is assigned, if that happens once."""
    first, line = place[0].co_firstlineno, line_at(*place)
    stores = [
        node
        for node in ast.walk(tree)
        if isinstance(node, ast.Name)
        and isinstance(node.ctx, ast.Store)
        and node.id == name
        and first <= node.lineno <= line
    ]
    return _assigned_before(tree, first, line).get(name) if len(stores) == 1 else None


def _call_at(place: Mark) -> tuple[ast.Call | None, ast.Module | None]:
    """The outermost call that begins at the line of a place, else one that goes through it."""
    code, offset = place
    tree = parsed(tuple(linecache.getlines(code.co_filename)))
    line = line_at(code, offset)
    if tree is None:
        return None, None
    calls = [
        node
        for node in ast.walk(tree)
        if isinstance(node, ast.Call) and node.lineno <= line <= (node.end_lineno or 0)
    ]
    calls.sort(key=lambda node: (node.lineno != line, node.col_offset))
    return (calls[0] if calls else None), tree


def _assigned_before(tree: ast.Module, first: int, line: int) -> dict[str, ast.expr]:
    """The last values, of plain names, that are assigned between two lines."""
    found: dict[str, ast.expr] = {}
    assignments = [
        node
        for node in ast.walk(tree)
        if isinstance(node, ast.Assign) and first <= node.lineno < line
    ]
    for node in sorted(assignments, key=lambda node: node.lineno):
        for target in node.targets:
            if isinstance(target, ast.Name):
                found[target.id] = node.value
    return found


def _bound_with(tree: ast.Module, line: int, name: str) -> list[str]:
    """What loops around a line bind side by side with a variable, but for a counter."""
    found = []
    for node in ast.walk(tree):
        if isinstance(node, (ast.For, ast.comprehension)):
            last = getattr(node, "end_lineno", None) or line
            if not getattr(node, "lineno", line) <= line <= last:
                continue
            made_by = node.iter.func if isinstance(node.iter, ast.Call) else node.iter
            is_counted = _is_name(made_by, "enumerate")
            for part in ast.walk(node.target):
                if isinstance(part, ast.Tuple) and not (is_counted and part is node.target):
                    names = [each.id for each in part.elts if isinstance(each, ast.Name)]
                    found += [each for each in names if name in names and each != name]
    return found


def _is_picked(
    node: ast.expr, name: str, known: dict[str, ast.expr | None], steps: int
) -> bool:
    """In `known`, None stands for what is picked."""

    def look(*nodes: ast.expr) -> bool:
        return any(_is_picked(each, name, known, steps) for each in nodes)

    if isinstance(node, ast.Name):
        if node.id not in known or not steps:
            return False
        value = known[node.id]
        return value is None or _is_picked(value, name, known, steps - 1)
    if isinstance(node, ast.Subscript):
        return _is_name(node.slice, name) or look(node.value)
    if isinstance(node, ast.Attribute):
        return look(node.value)
    if isinstance(node, (ast.List, ast.Tuple)):
        return look(*node.elts)
    if isinstance(node, ast.BinOp):
        return look(node.left, node.right)
    return isinstance(node, ast.Call) and _call_picks(node, name, look)


def _call_picks(node: ast.Call, name: str, look: Callable[..., bool]) -> bool:
    """Methods of what was picked, and what torch and Python make of it; what other functions
    make of it may be anything."""
    function = node.func
    by_name = any(_is_name(each, name) for each in node.args)
    if isinstance(function, ast.Attribute):
        is_torch = isinstance(function.value, ast.Name) and function.value.id == "torch"
        picked = by_name and function.attr in _PICKERS
        return picked or (look(*node.args) if is_torch else look(function.value))
    if isinstance(function, ast.Name):
        if function.id == "getattr":
            return by_name
        return function.id in _PLAIN and look(*node.args)
    return False


def _is_name(node: ast.expr, name: str) -> bool:
    return isinstance(node, ast.Name) and node.id == name


def tree_of(file: str) -> ast.Module | None:
    """The whole file, parsed; None if it cannot be."""
    return parsed(tuple(linecache.getlines(file)))


def function_around(tree: ast.Module, line: int) -> ast.AST:
    """The innermost function that has a line, or the module."""
    functions = (ast.FunctionDef, ast.AsyncFunctionDef)
    around = [
        node
        for node in ast.walk(tree)
        if isinstance(node, functions) and node.lineno <= line <= (node.end_lineno or 0)
    ]
    return max(around, key=lambda node: node.lineno, default=tree)


def lines_together(file: str, one: int, other: int) -> bool:
    """What `together` says, for two lines of one function."""
    return _are_together(_blocks(file, one), _blocks(file, other))
