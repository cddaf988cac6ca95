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
import linecache
from collections.abc import Collection, Iterator, Sequence

from phalanx.matching.uneven.source_levels import (
    MOST_CALLERS,
    Function,
    Loop,
    StatementList,
    innermost_function,
    inside,
    levels_of,
    only_caller,
    sole_caller,
    spans,
    tree_of,
)
from phalanx.model import Site

MOST_WAYS = 4
"""More than that say nothing."""

_Scope = (*Function, ast.ClassDef, ast.Lambda)


def find_ways_past(
    line: Site, file: str, went: Site | None, alike: Collection[int] = ()
) -> tuple[Site, ...]:
    """The branches that lead past a line of this file, the innermost first; none if they are
    too many. `went` is where the rank went instead, if that is known; `alike` are lines at
    which other ranks make the same call."""
    tree = tree_of(line, file)
    if tree is None:
        return ()
    other = went.line if went is not None and went.file == line.file else None
    found: dict[int, None] = {}
    here: int | None = line.line
    for _ in range(MOST_CALLERS):
        if here is None:
            break
        levels = levels_of(tree, here)
        function = innermost_function(levels)
        target = None
        if other is not None and function is innermost_function(levels_of(tree, other)):
            target = other
        found.update(dict.fromkeys(_ways_in(inside(levels), here, target, tree, alike)))
        here = only_caller(tree, function) if target is None else None
    if len(found) > MOST_WAYS:
        return ()
    lines = linecache.getlines(file)
    return tuple(Site(line.file, n, line.function, lines[n - 1].strip()) for n in found)


def are_arms_of_one_branch(one: Site, other: Site, file: str) -> bool:
    """Whether two lines stand in different arms of one `if`: whoever comes to one is meant to
    meet those at the other. True if that is not known."""
    tree = tree_of(one, file)
    if tree is None:
        return True
    if one.file != other.file:
        return False
    arms = {level.owner: level.field for level in levels_of(tree, one.line)}
    return any(
        isinstance(level.owner, ast.If) and arms.get(level.owner, level.field) != level.field
        for level in levels_of(tree, other.line)
    )


def comes_past(first: Site, then: Site, file: str) -> bool:
    """Whether all who come to `then` have come past the place of `first`, taken or not: it, or
    the only call of its function, stands earlier in the same list of statements, or in branches
    that do."""
    tree = tree_of(first, file)
    if tree is None or first.file != then.file or not tree_of(then, file):
        return False
    there = levels_of(tree, then.line)
    if not there or getattr(innermost_function(there), "name", "<module>") != then.function:
        return False
    here: int | None = first.line
    for _ in range(MOST_CALLERS):
        if here is None:
            return False
        levels = levels_of(tree, here)
        function = innermost_function(levels)
        if function is innermost_function(there):
            return here < then.line and any(
                level.owner is there[-1].owner
                and level.field == there[-1].field
                and level.at < there[-1].at
                for level in levels
            )
        here = sole_caller(tree, function)
    return False


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
        for level in (levels_of(tree, target) if target is not None else ())
    }
    comes_later = target is not None and target > line
    loops = [level for level in levels if isinstance(level.owner, Loop)]
    for level in reversed(levels):
        owner = level.owner
        stays = (owner, level.field) in shared
        if isinstance(owner, ast.If) and not stays and _tells(owner, line, alike):
            yield owner.lineno
        if isinstance(owner, ast.Try) and level.field == "body" and not stays:
            yield from (handler.lineno for handler in owner.handlers)
        if not (stays and comes_later):
            before = level.body[: level.at]
            in_loop = any(each.owner is owner or _holds(each, level) for each in loops)
            yield from _exits(before, returns=not comes_later, continues=in_loop)
        if isinstance(owner, Loop) and level.field == "body" and not stays:
            yield from _exits(level.body, returns=not comes_later, breaks=True)
            if not is_the_same_for_all(owner):
                yield owner.lineno


def _holds(loop: StatementList, level: StatementList) -> bool:
    """Whether a list of statements lies in the body of a loop."""
    first = level.body[0]
    return spans(loop.owner, first.lineno)  # type: ignore[arg-type]


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
        is_loop = isinstance(node, Loop)
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
    if any(each != line and spans(node, each) for each in alike):
        return False
    names = (each.id for each in ast.walk(node.test) if isinstance(each, ast.Name))
    return "__name__" not in names


def is_the_same_for_all(loop: ast.AST) -> bool:
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
