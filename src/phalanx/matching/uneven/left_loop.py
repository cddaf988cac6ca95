"""Whether ranks that came to a line less often than others have left out steps of a loop.

Used for a mismatch that no majority decides. One rank skipped the line, or another made a call
too many: the source tells them apart if all come to the line in each step of a loop, unless
they leave the step or the loop. Nothing is said

- where a branch, a `try` or a function with several callers leads to the line: these can make a
  call that is too many, and a `try` can make a step twice;
- of loops over things with names of their own, such as the entries of a dict: one entry too
  many and one too few look alike. Loops over batches, samples, steps and epochs have ended.
"""

from __future__ import annotations

import ast
import re

from phalanx.matching.uneven.source_levels import (
    MOST_CALLERS,
    Loop,
    StatementList,
    innermost_function,
    inside,
    levels_of,
    sole_caller,
    tree_of,
)
from phalanx.matching.uneven.ways_past import is_the_same_for_all
from phalanx.model import Site

_STEPS = re.compile(r"(loader|batch|batches|dataset|sampler|samples|steps?|epochs?)$|^data$")


def has_left_loop(line: Site, file: str, went: Site) -> bool:
    """Whether who went on to `went` left a loop around a line of this file, or a step of it."""
    tree = tree_of(line, file)
    if tree is None or went.file != line.file:
        return False
    there = levels_of(tree, went.line)
    shared = {(level.owner, level.field) for level in there}
    in_loop = False
    here: int | None = line.line
    for _ in range(MOST_CALLERS):
        if here is None:
            return False
        levels = levels_of(tree, here)
        own = [each for each in inside(levels) if (each.owner, each.field) not in shared]
        if not all(map(_is_for_all, own)):
            return False
        in_loop = in_loop or any(isinstance(each.owner, Loop) for each in inside(levels))
        function = innermost_function(levels)
        if function is None or function is innermost_function(there):
            return in_loop
        here = sole_caller(tree, function)
    return False


def _is_for_all(level: StatementList) -> bool:
    """Whether whoever comes to the owner of these statements comes to them too, as often as is
    meant or less."""
    owner = level.owner
    if isinstance(owner, Loop):
        return level.field == "body" and (is_the_same_for_all(owner) or _is_steps(owner))
    return isinstance(owner, (ast.Module, ast.FunctionDef, ast.AsyncFunctionDef, ast.With))


def _is_steps(loop: ast.AST) -> bool:
    """Loops that end once a condition holds, after a number of steps or without more data."""
    if not isinstance(loop, (ast.For, ast.AsyncFor)):
        return True
    given = loop.iter
    calls = [node.func for node in ast.walk(given) if isinstance(node, ast.Call)]
    if [getattr(func, "id", None) for func in calls] == ["range"]:
        return True
    names = {getattr(node, "attr", getattr(node, "id", "")) for node in ast.walk(given)}
    if names & {"items", "keys", "values"}:
        return False
    return any(_STEPS.search(name) for name in names)
