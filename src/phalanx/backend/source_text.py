"""What the program's own text says about places in it: which statement, in which branches.

Used by observers that have found something and want to be sure before they say so. Where the
source cannot be read or parsed, they hear "unknown" and stay silent.
"""

from __future__ import annotations

import ast
import functools
import linecache
from itertools import islice
from types import CodeType

from phalanx.callsite import Mark, line_at

_PASSED_THROUGH = (ast.With, ast.AsyncWith, ast.Try)
"""Statements whose body runs whenever they are reached."""

Block = tuple[int, str, bool]
"""A list of statements: the line of its owner, the owner's field, and whether the list runs
whenever its owner does."""


def together(one: Mark, other: Mark) -> bool:
    """Whether both are in one function and nothing but `with` and `try` stands between either
    and their common block: who passes one passes the other, unless it leaves the block."""
    if one[0] != other[0]:
        return False
    chains = [_blocks(place[0].co_filename, line_at(*place)) for place in (one, other)]
    if None in chains:
        return False
    first, second = chains
    assert first is not None and second is not None
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
    node: ast.AST | None = _tree(tuple(linecache.getlines(filename)))
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
def _tree(lines: tuple[str, ...]) -> ast.Module | None:
    try:
        return ast.parse("".join(lines)) if lines else None
    except (SyntaxError, ValueError):
        return None
