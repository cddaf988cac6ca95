"""By which ways a function can be left, as its source shows: which `return` was it?

Used for ranks that have left while others stand in the same function. Nothing is executed: the
question is which ends of the function can be reached from a line without passing another one.
Where the source cannot be read, or goes ways that this does not follow, there is no answer.
"""

from __future__ import annotations

import ast
from collections.abc import Sequence
from dataclasses import dataclass

from phalanx.source_text import parsed

_FALL, _BREAK, _CONTINUE = ("fall", 0), ("break", 0), ("continue", 0)
_Way = tuple[str, int]
_Ways = frozenset[_Way]
_LOOPS = (ast.For, ast.AsyncFor, ast.While)
_FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef)
_YIELDS = (ast.Yield, ast.YieldFrom)
_ENDINGS = frozenset({"exit", "_exit", "quit", "abort"})
"""Functions that end the program."""

_COLLECTIVES = {"barrier": 0, "all_reduce": 2, "broadcast": 2, "all_gather": 2, "reduce": 3}
"""Calls that all ranks make, with so many arguments before a group may come."""

_NOTHING: _Ways = frozenset()


@dataclass(frozen=True)
class FunctionExits:
    """The ways out: `("return", line)`, or `("end", last line)` of the function. `in_loop` says
    that the line which is not passed is in a loop."""

    ways: _Ways
    in_loop: bool


def find_exits(
    file: str, line: int, *, after: int | None = None, again: bool = False
) -> FunctionExits | None:
    """The ways out of the innermost function around a line, or out of the module, that do not
    pass the line: from the function's beginning, or from what follows line `after`, unless that
    shows that the function was entered once more since. A function that may have been entered
    `again`, or a line in a loop, may have been passed before. Other lines that surely make a
    collective call are not passed either."""
    tree = parsed(file)
    owner = None if tree is None else _function_at(tree, line)
    if owner is None or any(isinstance(node, _YIELDS) for node in ast.walk(owner)):
        return None
    look = _ExitSearch(line)
    try:
        path = _path_to(owner, line)
        in_loop = any(isinstance(each, _LOOPS) for each, _, _ in path)
        if after is not None and (in_loop or after < line):
            ways = look.resume(_path_to(owner, after))
        else:
            ways = look.run(owner.body)
            ways |= look.resume(path) if again or in_loop else _NOTHING
    except _Unknown:
        return None
    last = owner.body[-1].end_lineno or owner.body[-1].lineno
    ends = {way for way in ways if way[0] == "return"}
    return FunctionExits(
        frozenset(ends | ({("end", last)} if _FALL in ways else set())), in_loop
    )


class _Unknown(Exception):
    """The source goes a way that is not followed."""


_Step = tuple[ast.AST, Sequence[ast.stmt], int]
"""A statement's owner, the list that it is in, and its place there."""


def _function_at(tree: ast.Module, line: int) -> ast.Module | ast.FunctionDef | None:
    """The innermost function around a line, or the module."""
    found: ast.AST = tree
    for node in ast.walk(tree):
        is_one = isinstance(node, (*_FUNCTIONS, ast.Lambda, ast.ClassDef))
        if is_one and _covers(node, line) and _line_of(node) >= _line_of(found):
            found = node
    return found if isinstance(found, (ast.Module, ast.FunctionDef)) else None


def _line_of(node: ast.AST) -> int:
    return getattr(node, "lineno", 0)


def _covers(node: ast.AST, line: int) -> bool:
    first, last = getattr(node, "lineno", 0), getattr(node, "end_lineno", None) or 0
    return first <= line <= last


def _path_to(owner: ast.AST, line: int) -> list[_Step]:
    """The statements around a line, outermost first."""
    path: list[_Step] = []
    node: ast.AST | None = owner
    while node is not None:
        step = _child_at(node, line)
        if step is None:
            break
        path.append(step)
        node = step[1][step[2]]
    if not path or isinstance(path[-1][1][path[-1][2]], (*_LOOPS, ast.If, ast.With, ast.Match)):
        raise _Unknown  # in the head of a statement that goes on
    return path


def _child_at(node: ast.AST, line: int) -> _Step | None:
    for field in ("body", "orelse", "finalbody"):
        statements = getattr(node, field, None)
        for at, each in enumerate(statements if isinstance(statements, list) else ()):
            if isinstance(each, ast.stmt) and _covers(each, line):
                return node, statements, at  # type: ignore[return-value]
    for part in (*getattr(node, "handlers", ()), *getattr(node, "cases", ())):
        found = _child_at(part, line)
        if found is not None:
            return node, found[1], found[2]
    return None


class _ExitSearch:
    """Follows statements, but none that has the line in it that is not passed."""

    def __init__(self, line: int) -> None:
        self._line = line

    def resume(self, path: Sequence[_Step]) -> _Ways:
        """The ways out of the function after the last statement of the path."""
        _, statements, at = path[-1]
        if isinstance(statements[at], ast.Return):
            return frozenset({("return", statements[at].lineno)})
        ways = self.run(statements[at + 1 :])
        for depth in range(len(path) - 1, 0, -1):
            owner, inside, _ = path[depth]
            ways = self._leave(owner, inside, ways)
            if _FALL in ways:
                _, statements, at = path[depth - 1]
                ways = (ways - {_FALL}) | self.run(statements[at + 1 :])
        return ways

    def _leave(self, owner: ast.AST, inside: Sequence[ast.stmt], ways: _Ways) -> _Ways:
        """What comes of the ways out of a list of statements for its owner."""
        if isinstance(owner, _LOOPS) and inside is owner.body:
            again = self._statement(owner) if ways & {_FALL, _CONTINUE} else _NOTHING
            broken = {_FALL} if _BREAK in ways else set()
            return (ways - {_FALL, _CONTINUE, _BREAK}) | again | broken
        if isinstance(owner, ast.Try) and inside is not owner.finalbody:
            for handler in owner.handlers if inside is owner.body else ():
                ways |= self.run(handler.body)
            return self._through(ways, owner.finalbody) if owner.finalbody else ways
        if isinstance(owner, (*_FUNCTIONS, ast.ClassDef, ast.Lambda)):
            raise _Unknown
        return ways

    def run(self, statements: Sequence[ast.stmt]) -> _Ways:
        ways: set[_Way] = set()
        for each in statements:
            found = self._statement(each)
            ways |= found - {_FALL}
            if _FALL not in found:
                return frozenset(ways)
        return frozenset(ways | {_FALL})

    def _statement(self, node: ast.stmt) -> _Ways:
        if isinstance(node, (*_FUNCTIONS, ast.ClassDef)):
            return frozenset({_FALL})
        if isinstance(node, ast.If) and _asks_for_main(node.test):
            return self.run(node.body)
        if isinstance(node, ast.If):
            return self._unless_there(node.test, self.run(node.body) | self.run(node.orelse))
        if isinstance(node, _LOOPS):
            return self._loop(node)
        if isinstance(node, (ast.With, ast.AsyncWith)):
            for item in node.items:
                if _covers(item.context_expr, self._line):
                    return _NOTHING
            return self.run(node.body)
        if isinstance(node, ast.Try):
            ways = self.run([*node.body, *node.orelse])
            for handler in node.handlers:
                ways |= self.run(handler.body)
            return self._through(ways, node.finalbody) if node.finalbody else ways
        if isinstance(node, ast.Match):
            ways = frozenset({_FALL})
            for case in node.cases:
                ways |= self.run(case.body)
            return self._unless_there(node.subject, ways)
        return self._simple(node)

    def _simple(self, node: ast.stmt) -> _Ways:
        if _covers(node, self._line) or isinstance(node, ast.Raise) or _ends_way(node):
            return _NOTHING
        if isinstance(node, ast.Return):
            return frozenset({("return", node.lineno)})
        if hasattr(node, "body"):
            raise _Unknown
        if isinstance(node, (ast.Break, ast.Continue)):
            return frozenset({_BREAK if isinstance(node, ast.Break) else _CONTINUE})
        return frozenset({_FALL})

    def _loop(self, node: ast.For | ast.AsyncFor | ast.While) -> _Ways:
        head = node.test if isinstance(node, ast.While) else node.iter
        ways = self.run(node.body)
        found = ways - {_FALL, _CONTINUE, _BREAK}
        endless = isinstance(head, ast.Constant) and bool(head.value)
        if not endless:
            found |= self.run(node.orelse)
        if _BREAK in ways:
            found |= {_FALL}
        return self._unless_there(head, found)

    def _through(self, ways: _Ways, final: Sequence[ast.stmt]) -> _Ways:
        after = self.run(final)
        return (ways if _FALL in after else _NOTHING) | (after - {_FALL})

    def _unless_there(self, head: ast.AST, ways: _Ways) -> _Ways:
        return _NOTHING if _covers(head, self._line) else ways


def _asks_for_main(test: ast.expr) -> bool:
    """`if __name__ == "__main__"`, which is so for a script."""
    left = test.left if isinstance(test, ast.Compare) else None
    return isinstance(left, ast.Name) and left.id == "__name__"


def _ends_way(node: ast.stmt) -> bool:
    """A statement that ends the program, or calls the others on the default group: whoever has
    left came after neither."""
    call = node.value if isinstance(node, (ast.Expr, ast.Assign)) else None
    if not isinstance(call, ast.Call):
        return False
    function = call.func
    name = getattr(function, "attr", getattr(function, "id", None))
    if name in _ENDINGS:
        return True
    owner = function.value if isinstance(function, ast.Attribute) else None
    is_torch = (isinstance(owner, ast.Name) and owner.id == "dist") or (
        isinstance(owner, ast.Attribute) and owner.attr == "distributed"
    )
    given = len(call.args) + len(call.keywords)
    known = is_torch and name in _COLLECTIVES and given <= _COLLECTIVES[name]
    return known and not any(each.arg in ("group", None) for each in call.keywords)
