"""Where a value goes, as the source shows it: from a call through assignments and returns.

Used by checks that look back and doubt what the program makes of a result. `follow` begins at a
call and goes on with the lines that run after it, in the functions that were running then,
innermost first. A subclass of `Follower` says what hands the value on and what it looks for.
What is found lies on the way of every rank that made the call: behind an `if` both branches
must have it, and what is in a later `while` does not count. If the source cannot be read,
nothing is found, and the checks stay silent.
"""

from __future__ import annotations

import ast
from collections.abc import Callable, Iterator, Sequence
from itertools import islice
from types import CodeType
from typing import Literal, NamedTuple

from phalanx.callsite import Mark, line_at, site_at
from phalanx.model import Site
from phalanx.source_text import parsed
from phalanx.source_uses import scope_of

Carried = bool | tuple[bool, ...]
"""Whether an expression has the value; of a tuple, which parts."""

Leaves = Literal["return", "break", "continue"] | None

_LOOPS = (ast.For, ast.AsyncFor, ast.While)
_INNER = ("<listcomp>", "<setcomp>", "<genexpr>")


class Sink(NamedTuple):
    """What was looked for: the line, and the text there."""

    line: int
    text: str


class FlowEnd(NamedTuple):
    """A sink, the code that it is in, and the variable that had the value first."""

    sink: Sink
    code: CodeType
    name: str

    @property
    def site(self) -> Site:
        return site_at(self.code, self.sink.line)


class _Block(NamedTuple):
    """A list of statements on the way to a line, and the one that has the line."""

    statements: list[ast.stmt]
    at: int
    owner: ast.AST
    field: str


def is_carried(carried: Carried) -> bool:
    return any(carried) if isinstance(carried, tuple) else carried


def key_of(node: ast.AST) -> str | None:
    """What a variable or an attribute of one is known by: `loss`, `self.best`."""
    if isinstance(node, ast.Name):
        return node.id
    base = key_of(node.value) if isinstance(node, ast.Attribute) else None
    return f"{base}.{node.attr}" if base is not None else None  # type: ignore[attr-defined]


def name_of(function: ast.AST) -> str:
    """The last part of what is called."""
    return str(getattr(function, "attr", getattr(function, "id", "")))


class Follower:
    """Goes through one function. `names` have the value, `given` are expressions that have
    it; `result` is what the function returns of it, and `sink` what was found."""

    wraps = False
    """Whether the beginning of a loop around the call runs after its end."""

    def __init__(self, tree: ast.Module, file: str) -> None:
        self.tree = tree
        self.file = file
        self.names: set[str] = set()
        self.given: dict[int, Carried] = {}
        self.result: Carried = False
        self.sink: Sink | None = None
        self.loops = 0
        """Loops that are entered after the call."""

    # -- what subclasses say ------------------------------------------------------------------

    def method(self, name: str) -> bool:
        """Whether a method of the value gives it on."""
        raise NotImplementedError

    def function(self, call: ast.Call) -> bool:
        """Whether a function does that is given the value."""
        raise NotImplementedError

    def compared(self, node: ast.Compare | ast.BoolOp) -> bool:
        raise NotImplementedError

    def look_at(self, call: ast.Call) -> None:
        """A call, wherever it is in a statement."""

    def is_passed_by(self, test: ast.expr) -> bool:
        """Whether branches with this condition are none of ours."""
        return False

    def decide(self, branch: ast.If | ast.While) -> None:
        """A branch or a loop whose condition has the value."""

    def is_muted(self, block: ast.With | ast.AsyncWith) -> bool:
        """Whether nothing in this block has the value."""
        return False

    def change(self, statement: ast.AugAssign) -> None:
        """A variable is changed by the value."""

    # -- statements ---------------------------------------------------------------------------

    def go(self, blocks: Sequence[_Block], *, after: bool) -> None:
        """From the innermost block outwards; `after`: without the statement itself."""
        leaving: Leaves = None
        for number, block in enumerate(reversed(blocks)):
            first = block.at if number == 0 and not after else block.at + 1
            if leaving is None:
                leaving = self.run(block.statements[first:])
            if leaving == "return":
                return
            if isinstance(block.owner, _LOOPS) and block.field == "body":
                if self.wraps and leaving != "break":
                    self._go_round(block.owner, block.statements[: block.at])
                leaving = None

    def _go_round(
        self, loop: ast.For | ast.AsyncFor | ast.While, before: list[ast.stmt]
    ) -> None:
        is_ours = isinstance(loop, ast.While) and not self.is_passed_by(loop.test)
        if is_ours and is_carried(self.carries(loop.test)):  # type: ignore[union-attr]
            self.decide(loop)  # type: ignore[arg-type]
        self.run(before)

    def run(self, statements: Sequence[ast.stmt]) -> Leaves:
        for statement in statements:
            leaves = self.statement(statement)
            if leaves is not None:
                return leaves
        return None

    def statement(self, node: ast.stmt) -> Leaves:
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)):
            return None
        if isinstance(node, (ast.With, ast.AsyncWith)):
            return self._with(node)
        if isinstance(node, ast.If):
            return self._branch(node)
        if isinstance(node, _LOOPS):
            self._loop(node)
            return None
        if isinstance(node, ast.Try):
            return self.run([*node.body, *node.orelse, *node.finalbody])
        for each in ast.walk(node):
            if isinstance(each, ast.Call):
                self.look_at(each)
        return self._simple(node)

    def _simple(self, node: ast.stmt) -> Leaves:
        if isinstance(node, ast.Return):
            self._return(self.carries(node.value) if node.value is not None else False)
            return "return"
        if isinstance(node, ast.Raise):
            return "return"
        if isinstance(node, ast.Break):
            return "break"
        if isinstance(node, ast.Continue):
            return "continue"
        if isinstance(node, ast.Assign):
            carried = self.carries(node.value)
            for target in node.targets:
                self.bind(target, carried)
        elif isinstance(node, ast.AnnAssign) and node.value is not None:
            self.bind(node.target, self.carries(node.value))
        elif isinstance(node, ast.AugAssign):
            if is_carried(self.carries(node.value)):
                self.change(node)
                self.bind(node.target, True)
        elif isinstance(node, ast.Delete):
            for target in node.targets:
                self.bind(target, False)
        return None

    def _return(self, carried: Carried) -> None:
        """Of several returns each may be the one."""
        if isinstance(carried, tuple) and self.result is False:
            self.result = carried
        elif carried != self.result:
            self.result = is_carried(self.result) or is_carried(carried)

    def _with(self, node: ast.With | ast.AsyncWith) -> Leaves:
        if not self.is_muted(node):
            return self.run(node.body)
        kept, self.names = self.names, set()
        given, self.given = self.given, {}
        leaves = self.run(node.body)
        assigned = set(assigned_in([node]))
        self.names, self.given = kept - assigned, given
        return leaves

    def _branch(self, node: ast.If) -> Leaves:
        for each in ast.walk(node.test):
            if isinstance(each, ast.Call):
                self.look_at(each)
        if self.is_passed_by(node.test):
            ends = [block[-1] for block in (node.body, node.orelse) if block]
            return "return" if any(_is_leaving(each) for each in ends) else None
        tested = is_carried(self.carries(node.test))
        found, names = self.sink, set(self.names)
        one, first = self._aside(node.body)
        after, self.names = self.names, names
        other, second = self._aside(node.orelse)
        self.names |= after
        self.sink = found or (first if second is not None else None)
        if tested and self.sink is None:
            self.decide(node)
        return one if one is not None and other is not None else None

    def _aside(self, statements: list[ast.stmt]) -> tuple[Leaves, Sink | None]:
        self.sink = None
        leaves = self.run(statements)
        return leaves, self.sink

    def _loop(self, node: ast.For | ast.AsyncFor | ast.While) -> None:
        if not isinstance(node, ast.While):
            self.bind(node.target, is_carried(self.carries(node.iter)))
            self.loops += 1
            self.run(node.body)
            self.loops -= 1
        elif not self.is_passed_by(node.test):
            tested, found = is_carried(self.carries(node.test)), self.sink
            self._aside(node.body)
            self.sink = found
            if tested and found is None:
                self.decide(node)
        self.run(node.orelse)

    def bind(self, target: ast.expr, carried: Carried) -> None:
        if isinstance(target, (ast.Tuple, ast.List)):
            is_split = isinstance(carried, tuple) and len(carried) == len(target.elts)
            for number, each in enumerate(target.elts):
                self.bind(each, carried[number] if is_split else is_carried(carried))  # type: ignore[index]
        elif isinstance(target, ast.Starred):
            self.bind(target.value, is_carried(carried))
        elif isinstance(target, ast.Subscript):
            key = key_of(target.value)
            if key is not None and is_carried(carried):
                self.names.add(key)
        else:
            key = key_of(target)
            if key is not None:
                (self.names.add if is_carried(carried) else self.names.discard)(key)

    def found(self, node: ast.expr | ast.stmt, text: ast.AST) -> None:
        if self.sink is None:
            self.sink = Sink(node.lineno, ast.unparse(text))

    # -- expressions --------------------------------------------------------------------------

    def carries(self, node: ast.expr) -> Carried:
        """Whether an expression has the value."""
        if id(node) in self.given:
            return self.given[id(node)]
        if key_of(node) in self.names:
            return True
        if isinstance(node, (ast.Tuple, ast.List)):
            return tuple(is_carried(self.carries(each)) for each in node.elts)
        if isinstance(node, ast.Subscript):
            return self._part(self.carries(node.value), node.slice)
        if isinstance(node, ast.Call):
            return self._call(node)
        if isinstance(node, (ast.Compare, ast.BoolOp)):
            return self.compared(node)
        if isinstance(node, ast.IfExp):
            return not self.is_passed_by(node.test) and self.any_of(node.body, node.orelse)
        if isinstance(node, (ast.ListComp, ast.GeneratorExp, ast.SetComp)):
            return self._comprehension(node)
        if isinstance(node, ast.BinOp):
            return self.any_of(node.left, node.right)
        if isinstance(node, ast.NamedExpr):
            carried = self.carries(node.value)
            self.bind(node.target, carried)
            return carried
        if isinstance(node, ast.UnaryOp):
            return self.any_of(node.operand)
        if isinstance(node, (ast.Starred, ast.Await)):
            return self.any_of(node.value)
        if isinstance(node, ast.Attribute):
            return self.any_of(node.value) and self.method(node.attr)
        return False

    def any_of(self, *nodes: ast.expr) -> bool:
        return any(is_carried(self.carries(each)) for each in nodes)

    def _part(self, carried: Carried, index: ast.expr) -> Carried:
        if isinstance(carried, tuple) and isinstance(index, ast.Constant):
            number = index.value
            if type(number) is int and -len(carried) <= number < len(carried):
                return carried[number]
        return is_carried(carried)

    def _call(self, node: ast.Call) -> Carried:
        if isinstance(node.func, ast.Attribute) and self.any_of(node.func.value):
            return self.method(node.func.attr)
        given = [*node.args, *(each.value for each in node.keywords)]
        return self.any_of(*given) and self.function(node)

    def _comprehension(self, node: ast.ListComp | ast.GeneratorExp | ast.SetComp) -> bool:
        kept = set(self.names)
        for each in node.generators:
            self.bind(each.target, is_carried(self.carries(each.iter)))
        carried = self.any_of(node.elt)
        self.names = kept
        return carried


# -- the way outwards -------------------------------------------------------------------------


def follow(
    places: Sequence[Mark],
    make: Callable[[ast.Module, str], Follower],
    begin: Callable[[ast.Call], str | None],
) -> FlowEnd | None:
    """Follow from the call at the first of the places, which the others have called in turn.
    `begin` says which variable the call gives the value to."""
    value: Carried = False
    first: str | None = None
    inner = None
    for number, place in enumerate(places):
        code = place[0]
        if code.co_name in _INNER and number:
            continue
        tree = parsed(code.co_filename)
        line = line_at(*place)
        scope = None if tree is None else scope_of(tree, code, line)
        node = None if scope is None else _expression_at(scope, place, inner)
        if tree is None or scope is None or node is None:
            break
        follower = make(tree, code.co_filename)
        if number == 0:
            first = begin(node) if isinstance(node, ast.Call) else None
            if first is None:
                break
            follower.names.add(first)
        else:
            follower.given[id(node)] = value
        follower.go(_blocks_to(scope, node), after=number == 0)
        if follower.sink is not None and first is not None:
            return FlowEnd(follower.sink, code, first)
        value, inner = follower.result, code.co_name
        if not is_carried(value):
            break
    return None


def _expression_at(scope: ast.AST, place: Mark, inner: str | None) -> ast.expr | None:
    """What runs at a place. Where Python keeps no columns (3.10), the only call on the line, of
    the function that it runs if that is known."""
    code, offset = place
    positions = getattr(code, "co_positions", None)
    found = next(islice(positions(), offset // 2, None), None) if positions else None
    nodes = [node for node in ast.walk(scope) if isinstance(node, ast.expr)]
    if found is not None and None not in found:
        first, last, start, end = found
        there = (first, start, last, end)
        same = [node for node in nodes if _extent(node) == there]
        return same[0] if same else None
    line = line_at(code, offset)
    calls = [node for node in nodes if isinstance(node, ast.Call) and node.lineno == line]
    if inner is not None:
        calls = [node for node in calls if name_of(node.func) == inner] or calls
    return calls[0] if len(calls) == 1 else None


def _extent(node: ast.expr) -> tuple[int, int, int | None, int | None]:
    return node.lineno, node.col_offset, node.end_lineno, node.end_col_offset


def _blocks_to(scope: ast.AST, inside: ast.expr) -> list[_Block]:
    """The lists of statements around an expression, outermost first."""
    found: list[_Block] = []
    node: ast.AST | None = scope
    while node is not None:
        owner, node = node, None
        for field, items in ast.iter_fields(owner):
            for at, item in enumerate(items if isinstance(items, list) else ()):
                if isinstance(item, (ast.stmt, ast.ExceptHandler, ast.match_case)) and any(
                    each is inside for each in ast.walk(item)
                ):
                    if isinstance(item, ast.stmt):
                        found.append(_Block(items, at, owner, field))
                    node = item
    return found


def _is_leaving(node: ast.stmt) -> bool:
    if isinstance(node, ast.Expr) and isinstance(node.value, ast.Call):
        return name_of(node.value.func) in ("exit", "_exit", "quit")
    return isinstance(node, (ast.Return, ast.Raise, ast.Break, ast.Continue))


def assigned_in(nodes: Sequence[ast.AST]) -> Iterator[str]:
    """Names and attributes that are assigned in these."""
    for each in (inner for node in nodes for inner in ast.walk(node)):
        if isinstance(getattr(each, "ctx", None), ast.Store):
            key = key_of(each)
            if key is not None:
                yield key


def first_argument(call: ast.Call) -> str | None:
    """The variable that a call of torch's is given for the tensor that it writes into."""
    given: ast.expr | None = call.args[0] if call.args else None
    if given is None:
        given = next((each.value for each in call.keywords if each.arg in _FIRST), None)
    return None if given is None else key_of(given)


_FIRST = ("tensor", "tensor_list", "output_tensor", "output", "output_tensor_list")
