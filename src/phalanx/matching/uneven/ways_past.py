"""The branches of the source that lead past a line: what may let a rank come there less often.

Used for ranks that made fewer calls at a line than others. It reads the program's source, if
that is at hand and still says at the line what it said then; otherwise it finds nothing. It
says what the source allows, not what a rank did. Ways past a line, in its function and in those
that call it, as long as each is called from one line of its file:

- an `if` around it, or one before it that returns, continues or breaks;
- an `except` of a `try` that it stands in;
- the end of a loop around it, an `if` in that loop that breaks or returns.

If the rank is known to have gone on to another line of the same function, what does not lead
from the one to the other is left out.
"""

from __future__ import annotations

import ast
import functools
import linecache
from collections.abc import Collection, Iterator, Sequence
from typing import NamedTuple

from phalanx.model import Site

MOST_WAYS = 4
"""More than that say nothing."""

MOST_CALLERS = 3

_Loop = (ast.For, ast.AsyncFor, ast.While)
_Function = (ast.FunctionDef, ast.AsyncFunctionDef)
_Scope = (*_Function, ast.ClassDef, ast.Lambda)


class StatementList(NamedTuple):
    """A list of statements around a line: whose it is, which one of it, and the place in it."""

    owner: ast.AST
    field: str
    body: Sequence[ast.stmt]
    at: int


def find_ways_past(
    line: Site, file: str, went: Site | None, alike: Collection[int] = ()
) -> tuple[Site, ...]:
    """The branches that lead past a line of this file, the innermost first; none if they are
    too many. `went` is where the rank went instead, if that is known; `alike` are lines at
    which other ranks make the same call."""
    tree = _tree_of(line, file)
    if tree is None:
        return ()
    other = went.line if went is not None and went.file == line.file else None
    found: dict[int, None] = {}
    here: int | None = line.line
    for _ in range(MOST_CALLERS):
        if here is None:
            break
        levels = _levels(tree, here)
        function = _innermost_function(levels)
        target = None
        if other is not None and function is _innermost_function(_levels(tree, other)):
            target = other
        found.update(dict.fromkeys(_ways_in(_inside(levels), here, target, tree, alike)))
        here = _only_caller(tree, function) if target is None else None
    if len(found) > MOST_WAYS:
        return ()
    lines = linecache.getlines(file)
    return tuple(Site(line.file, n, line.function, lines[n - 1].strip()) for n in found)


def are_arms_of_one_branch(one: Site, other: Site, file: str) -> bool:
    """Whether two lines stand in different arms of one `if`: whoever comes to one is meant to
    meet those at the other. True if that is not known."""
    tree = _tree_of(one, file)
    if tree is None:
        return True
    if one.file != other.file:
        return False
    arms = {level.owner: level.field for level in _levels(tree, one.line)}
    return any(
        isinstance(level.owner, ast.If) and arms.get(level.owner, level.field) != level.field
        for level in _levels(tree, other.line)
    )


def comes_past(first: Site, then: Site, file: str) -> bool:
    """Whether all who come to `then` have come past the place of `first`, taken or not: it
    stands earlier in the same list of statements, or in branches that do."""
    tree = _tree_of(first, file)
    if tree is None or first.file != then.file or then.line <= first.line:
        return False
    if first.function != then.function or not _tree_of(then, file):
        return False
    there = _levels(tree, then.line)
    return bool(there) and any(
        level.owner is there[-1].owner
        and level.field == there[-1].field
        and level.at < there[-1].at
        for level in _levels(tree, first.line)
    )


def _tree_of(line: Site, file: str) -> ast.Module | None:
    lines = linecache.getlines(file)
    if not line.source or not 0 < line.line <= len(lines):
        return None
    if lines[line.line - 1].strip() != line.source:
        return None
    return _parse(tuple(lines))


@functools.lru_cache(maxsize=8)
def _parse(lines: tuple[str, ...]) -> ast.Module | None:
    try:
        return ast.parse("".join(lines))
    except (SyntaxError, ValueError, RecursionError):
        return None


def _levels(tree: ast.Module, line: int) -> list[StatementList]:
    """The lists of statements around a line, outermost first."""
    found: list[StatementList] = []
    owner: ast.AST | None = tree
    while owner is not None:
        level = next(_levels_at(owner, line), None)
        if level is None:
            break
        if not isinstance(level.body[level.at], ast.stmt):
            owner = level.body[level.at]
            continue
        found.append(level)
        owner = level.body[level.at]
    return found


def _levels_at(owner: ast.AST, line: int) -> Iterator[StatementList]:
    for field, value in ast.iter_fields(owner):
        if not isinstance(value, list):
            continue
        for at, item in enumerate(value):
            if isinstance(item, ast.stmt) and _spans(item, line):
                yield StatementList(owner, field, value, at)
            elif isinstance(item, (ast.ExceptHandler, ast.match_case)):
                yield from _levels_at(item, line)


def _spans(node: ast.stmt, line: int) -> bool:
    return node.lineno <= line <= (node.end_lineno or node.lineno)


def _innermost_function(levels: Sequence[StatementList]) -> ast.AST | None:
    owners = [level.owner for level in levels if isinstance(level.owner, _Function)]
    return owners[-1] if owners else None


def _inside(levels: Sequence[StatementList]) -> Sequence[StatementList]:
    """Those within the innermost function."""
    first = [at for at, level in enumerate(levels) if isinstance(level.owner, _Function)]
    return levels[first[-1] if first else 0 :]


def _ways_in(
    levels: Sequence[StatementList],
    line: int,
    target: int | None,
    tree: ast.Module,
    alike: Collection[int],
) -> Iterator[int]:
    """Lines of the branches of one function that lead past a line, the innermost first."""
    shared = {
        (level.owner, level.field)
        for level in (_levels(tree, target) if target is not None else ())
    }
    comes_later = target is not None and target > line
    loops = [level for level in levels if isinstance(level.owner, _Loop)]
    for level in reversed(levels):
        owner = level.owner
        inside = (owner, level.field) in shared
        if isinstance(owner, ast.If) and not inside and _tells(owner, line, alike):
            yield owner.lineno
        if isinstance(owner, ast.Try) and level.field == "body" and not inside:
            yield from (handler.lineno for handler in owner.handlers)
        if not (inside and comes_later):
            before = level.body[: level.at]
            in_loop = any(each.owner is owner or _holds(each, level) for each in loops)
            yield from _exits(before, returns=not comes_later, continues=in_loop)
        if isinstance(owner, _Loop) and level.field == "body" and not inside:
            yield from _exits(level.body, returns=not comes_later, breaks=True)
            if not _is_the_same_for_all(owner):
                yield owner.lineno


def _holds(loop: StatementList, level: StatementList) -> bool:
    """Whether a list of statements lies in the body of a loop."""
    first = level.body[0]
    return _spans(loop.owner, first.lineno)  # type: ignore[arg-type]


def _exits(
    body: Sequence[ast.AST],
    *,
    returns: bool = False,
    continues: bool = False,
    breaks: bool = False,
    within: int | None = None,
) -> Iterator[int]:
    """Lines of the branches in which statements leave: the innermost `if`, `except` or `case`
    around each. Nested loops keep their own `break` and `continue`."""
    for node in body:
        if isinstance(node, _Scope):
            continue
        leaves = (
            (returns and isinstance(node, ast.Return))
            or (continues and isinstance(node, (ast.Continue, ast.Break)))
            or (breaks and isinstance(node, ast.Break))
        )
        if leaves and within is not None:
            yield within
        is_loop = isinstance(node, _Loop)
        branch = within
        if isinstance(node, (ast.If, ast.ExceptHandler)):
            branch = node.lineno
        yield from _exits(
            [each for each in ast.iter_child_nodes(node) if not isinstance(each, ast.expr)],
            returns=returns,
            continues=continues and not is_loop,
            breaks=breaks and not is_loop,
            within=branch,
        )


def _tells(node: ast.If, line: int, alike: Collection[int]) -> bool:
    """Whether an `if` around a line leads past it: not if other ranks make the same call in it
    too, and not `if __name__ == "__main__"`."""
    if any(each != line and _spans(node, each) for each in alike):
        return False
    names = (each.id for each in ast.walk(node.test) if isinstance(each, ast.Name))
    return "__name__" not in names


def _is_the_same_for_all(loop: ast.AST) -> bool:
    """Loops that end after a number in the source, or never."""
    if isinstance(loop, ast.While):
        return isinstance(loop.test, ast.Constant)
    assert isinstance(loop, (ast.For, ast.AsyncFor))
    given = loop.iter
    if isinstance(given, ast.Call) and isinstance(given.func, ast.Name):
        return given.func.id == "range" and all(map(_is_constant, given.args))
    return isinstance(given, (ast.Tuple, ast.List))


def _is_constant(node: ast.expr) -> bool:
    return isinstance(node, ast.Constant)


def _only_caller(tree: ast.Module, function: ast.AST | None) -> int | None:
    """The line that calls a function, if the file has one."""
    if not isinstance(function, _Function):
        return None
    names = [
        node.lineno
        for node in ast.walk(tree)
        if isinstance(node, ast.Call)
        and getattr(node.func, "attr", getattr(node.func, "id", None)) == function.name
    ]
    return names[0] if len(names) == 1 else None
