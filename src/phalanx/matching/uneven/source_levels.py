"""Statements of the program around a line, and the line that calls a function.

Used to say how ranks came past a line. It reads the program's source, if that is at hand and
still says at the line what it said then.
"""

from __future__ import annotations

import ast
import functools
import linecache
from collections.abc import Iterator, Sequence
from typing import NamedTuple

from phalanx.model import Site
from phalanx.source_text import tree_of_text

MOST_CALLERS = 3
"""How many functions are followed to the line that calls each."""

Function = (ast.FunctionDef, ast.AsyncFunctionDef)
Loop = (ast.For, ast.AsyncFor, ast.While)


class StatementList(NamedTuple):
    """A list of statements around a line: whose it is, which one of it, and the place in it."""

    owner: ast.AST
    field: str
    body: Sequence[ast.stmt]
    at: int


def tree_of(line: Site, file: str) -> ast.Module | None:
    lines = linecache.getlines(file)
    if not line.source or not 0 < line.line <= len(lines):
        return None
    if lines[line.line - 1].strip() != line.source:
        return None
    return _parse(tuple(lines))


@functools.lru_cache(maxsize=8)
def _parse(lines: tuple[str, ...]) -> ast.Module | None:
    return tree_of_text("".join(lines))


def levels_of(tree: ast.Module, line: int) -> list[StatementList]:
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
            if isinstance(item, ast.stmt) and spans(item, line):
                yield StatementList(owner, field, value, at)
            elif isinstance(item, (ast.ExceptHandler, ast.match_case)):
                yield from _levels_at(item, line)


def spans(node: ast.stmt, line: int) -> bool:
    return node.lineno <= line <= (node.end_lineno or node.lineno)


def innermost_function(levels: Sequence[StatementList]) -> ast.AST | None:
    owners = [level.owner for level in levels if isinstance(level.owner, Function)]
    return owners[-1] if owners else None


def inside(levels: Sequence[StatementList]) -> Sequence[StatementList]:
    """Those within the innermost function."""
    first = [at for at, level in enumerate(levels) if isinstance(level.owner, Function)]
    return levels[first[-1] if first else 0 :]


def only_caller(tree: ast.Module, function: ast.AST | None) -> int | None:
    """The line that calls a function, if the file has one."""
    if not isinstance(function, Function):
        return None
    names = [
        node.lineno
        for node in ast.walk(tree)
        if isinstance(node, ast.Call)
        and getattr(node.func, "attr", getattr(node.func, "id", None)) == function.name
    ]
    return names[0] if len(names) == 1 else None


def sole_caller(tree: ast.Module, function: ast.AST | None) -> int | None:
    """The same, if nobody else can call it: it is named nowhere else in the file, and no
    decorator stands between."""
    if not isinstance(function, Function) or function.decorator_list:
        return None
    named = [
        node
        for node in ast.walk(tree)
        if getattr(node, "attr", getattr(node, "id", None)) == function.name
    ]
    return only_caller(tree, function) if len(named) == 1 else None
