"""What the program's source says becomes of the value that a call returns.

`fate_of` follows it through variables, arithmetic, lists and functions of the same file to
where it ends: dropped, shown to somebody, asked for again in a loop, computed with, used. Used
by the stores for what their methods return. If the source cannot be read, or has something that
is not understood here, nothing is said, and the checks stay silent.
"""

from __future__ import annotations

import ast
import functools
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import islice

from phalanx.callsite import Mark, line_at
from phalanx.source_text import function_around, parsed

POLLED = "polled"
LEVELS = ("dropped", "shown", "computed", "used")
"""What becomes of a value, the weakest first. `shown`: printed, logged, or a branch asks for
it; `computed`: something is made of it, which is shown (a value that is shown as a total counts
as such, see `Fate.is_total`); `used`: all the rest."""

_SAME = frozenset(
    (
        *("bool", "bytes", "decode", "dict", "enumerate", "float", "format", "int", "item"),
        *("list", "loads", "repr", "reversed", "sorted", "split", "str", "strip", "tuple"),
        *("zip", "set", "items", "keys", "values", "get", "join"),
    )
)
_MADE_OF_IT = frozenset({"abs", "len", "max", "mean", "min", "round", "sum", "divmod", "pow"})
_SHOWING = (
    *("print", "log", "debug", "info", "warn", "error", "critical", "write", "show", "echo"),
    *("display", "scalar", "set_description", "set_postfix", "dump", "update", "report"),
)
"""Functions whose name has one of these show what they are given."""

_KEEPING = {"add": 1, "append": 1, "extend": 1, "insert": 2}
"""Methods by which a list or a set keeps what it is given, and how many arguments they have."""

_TOTAL = frozenset({"altogether", "overall", "total", "totals"})
_SAYS_TOTAL = re.compile(r"\b(altogether|in all|overall|total)\b", re.IGNORECASE)
_SAYS_PART = re.compile(
    r"\b(already|now|of|out of|progress|so far|until now)\b|/", re.IGNORECASE
)
"""What a program writes beside a total, and beside a number that is still to grow."""

_LOOPS = (ast.For, ast.AsyncFor, ast.While)
_FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef)
_EXITS = (ast.Break, ast.Continue, ast.Return)


@dataclass(frozen=True)
class Fate:
    """`uses` are of `LEVELS`, or `POLLED`; `returned` says that the caller gets it as well, and
    `computed` that it gets something made of it. `comparison` is (operator, other side) if all
    that becomes of the value is that it is compared once. `is_total` says that the program
    calls it a total where it shows it."""

    uses: frozenset[str]
    returned: bool = False
    computed: bool = False
    comparison: tuple[str, ast.expr] | None = None
    is_total: bool = False


def strongest(uses: frozenset[str]) -> str:
    """The one that counts.

    >>> strongest(frozenset({"shown", "used"})), strongest(frozenset({"used", "polled"}))
    ('used', 'polled')
    """
    if POLLED in uses:
        return POLLED
    return max(uses, key=LEVELS.index, default="")


@functools.lru_cache(maxsize=512)
def fate_of(place: Mark, function: str, *, computed: bool = False) -> Fate | None:
    """What becomes of what the call of this function at a place returns; `computed` says that
    it is made of the value in question already. None if the source does not say."""
    tree = parsed(place[0].co_filename)
    call = None if tree is None else _call_of(tree, place, function)
    if tree is None or call is None:
        return None
    flow = _Flow(tree, call)
    flow.follow(call, computed=computed, compared=False)
    if flow.is_unclear:
        return None
    uses = set(flow.uses)
    if flow.is_polled(uses):
        uses.add(POLLED)
    sole = flow.comparisons[0] if len(flow.comparisons) == 1 and flow.ends == 1 else None
    return Fate(frozenset(uses), flow.returned, flow.returned_computed, sole, flow.is_total())


def _call_of(tree: ast.Module, place: Mark, function: str) -> ast.Call | None:
    """The call at a place, by its columns where Python keeps these; else the only one of that
    function at the line."""
    code, offset = place
    line = line_at(code, offset)
    calls = [
        node
        for node in ast.walk(tree)
        if isinstance(node, ast.Call)
        and node.lineno <= line <= (node.end_lineno or node.lineno)
        and called_name(node) == function
    ]
    if len(calls) > 1:
        positions = getattr(code, "co_positions", None)  # Python 3.11
        found = positions and next(islice(positions(), offset // 2, None), None)
        calls = [node for node in calls if found and _ends_at(node, found)]
    return calls[0] if len(calls) == 1 else None


def _ends_at(node: ast.Call, found: tuple[int | None, ...]) -> bool:
    return (node.end_lineno, node.end_col_offset) == (found[1], found[3])


def called_name(node: ast.Call) -> str:
    return str(getattr(node.func, "attr", getattr(node.func, "id", "")))


class _Flow:
    """Where the value of one expression goes."""

    def __init__(self, tree: ast.Module, call: ast.Call) -> None:
        self._tree = tree
        self._call = call
        self._parents = {
            id(child): node for node in ast.walk(tree) for child in ast.iter_child_nodes(node)
        }
        self._seen: set[tuple[str, int]] = set()
        self.uses: set[str] = set()
        self.ends = 0
        self.comparisons: list[tuple[str, ast.expr]] = []
        self.returned = self.returned_computed = self.is_unclear = False
        self.is_accumulated = False
        """Whether a variable is changed by it, as `weight -= lr * weight` does."""
        self._called_total = self._called_partial = False

    def follow(self, node: ast.AST, *, computed: bool, compared: bool) -> None:
        """The value of `node` goes to what is around it."""
        while True:
            around = self._parents.get(id(node))
            if isinstance(around, ast.Call) and node is not around.func:
                kind = self._given(around, node, computed, compared)
                if kind is None:
                    return
                computed = computed or kind == "computed"
            elif isinstance(around, ast.Attribute):
                method = self._parents.get(id(around))
                if not isinstance(method, ast.Call) or method.func is not around:
                    self.is_unclear = True
                    return
                around = method
            elif isinstance(around, (ast.BinOp, ast.UnaryOp)):
                computed = computed or not isinstance(getattr(around, "op", None), ast.Not)
            elif isinstance(around, ast.Compare):
                if not compared:
                    self._compared(around, node, plain=not computed)
                compared = True
            elif isinstance(around, ast.Subscript):
                computed = computed or node is around.slice
            elif not isinstance(around, _THROUGH):
                self._ended(around, node, computed, compared)
                return
            if isinstance(around, ast.comprehension):
                self._gone_through(around, node, computed, compared)
                return
            if isinstance(around, ast.IfExp) and node is around.test:
                self._end("shown")
                return
            assert around is not None
            node = around

    def _gone_through(
        self, around: ast.comprehension, node: ast.AST, computed: bool, compared: bool
    ) -> None:
        """A comprehension binds its variable to parts of the value, or asks for it."""
        whole = self._parents[id(around)]
        if node is not around.iter:
            self._end("shown")
        elif not isinstance(around.target, ast.Name):
            self.is_unclear = True
        else:
            name = around.target.id
            named = [n for n in ast.walk(whole) if isinstance(n, ast.Name) and n.id == name]
            uses: list[ast.expr] = [n for n in named if isinstance(n.ctx, ast.Load)]
            self._follow_all(uses, computed, compared)

    def _ended(
        self, around: ast.AST | None, node: ast.AST, computed: bool, compared: bool
    ) -> None:
        """The value is in a statement of its own."""
        if isinstance(around, ast.Expr):
            self._end("dropped")
        elif isinstance(around, ast.Return):
            self._returned(around, computed, compared)
        elif isinstance(around, (ast.Assign, ast.AnnAssign, ast.NamedExpr)):
            targets = around.targets if isinstance(around, ast.Assign) else [around.target]
            for target in targets:
                self._bound(target, computed, compared)
        elif isinstance(around, ast.AugAssign):
            self.is_accumulated = True
            self._bound(around.target, computed=True, compared=compared)
        elif isinstance(around, _LOOPS) and not isinstance(around, ast.While):
            self._bound(around.target, computed, compared)
        elif isinstance(around, (ast.While, ast.If)):
            self._end(POLLED if self._asks_again(around) else "shown")
        elif isinstance(around, ast.Assert):
            is_equal = isinstance(node, ast.Compare) and isinstance(node.ops[0], ast.Eq)
            self._end("used" if is_equal else "shown")
        elif isinstance(around, ast.Raise):
            self._end("shown")
        else:
            self.is_unclear = True

    def _returned(self, around: ast.Return, computed: bool, compared: bool) -> None:
        """The caller gets it; that of another function than the one at hand is looked for in
        the file."""
        function = self._function_of(around)
        if function is self._function_of(self._call):
            self.returned = True
            self._is_called(str(getattr(function, "name", "")))
            self.returned_computed = self.returned_computed or computed
            self.ends += 1
            return
        name = str(getattr(function, "name", ""))
        calls = [n for n in ast.walk(self._tree) if isinstance(n, ast.Call)]
        callers = [call for call in calls if called_name(call) == name]
        if not callers:
            self.is_unclear = True
        elif self._is_new(f"{name}()", 0, computed):
            self._follow_all(callers, computed, compared)

    def _is_called(self, name: str) -> None:
        """A variable or a function of this name has the value."""
        words = set(re.findall("[a-z]+", name.lower()))
        self._called_total = self._called_total or bool(words & _TOTAL)

    def _is_shown_by(self, call: ast.Call) -> None:
        parts = (node.value for node in ast.walk(call) if isinstance(node, ast.Constant))
        text = " ".join(part for part in parts if isinstance(part, str))
        self._called_total = self._called_total or _SAYS_TOTAL.search(text) is not None
        self._called_partial = self._called_partial or _SAYS_PART.search(text) is not None

    def is_total(self) -> bool:
        return self._called_total and not self._called_partial

    def _function_of(self, node: ast.AST | None) -> ast.AST | None:
        while node is not None and not isinstance(node, _FUNCTIONS):
            node = self._parents.get(id(node))
        return node

    def _given(
        self, call: ast.Call, node: ast.AST, computed: bool, compared: bool
    ) -> str | None:
        """The value is an argument: how what the call returns is made of it; None if it ends
        here."""
        name = called_name(call)
        is_method = isinstance(call.func, ast.Attribute)
        if name in _SAME and not (name == "set" and is_method):
            return "same"
        if name in _MADE_OF_IT:
            return "computed"
        if isinstance(call.func, ast.Attribute) and len(call.args) == _KEEPING.get(name):
            self._bound(call.func.value, computed, compared, after=call.lineno)
            return None
        if any(word in name.lower() for word in _SHOWING):
            self._is_shown_by(call)
            self._end("computed" if computed else "shown")
            return None
        inside = [
            n for n in ast.walk(self._tree) if isinstance(n, _FUNCTIONS) and n.name == name
        ]
        if not inside:
            self._end("shown" if compared else "used")
            return None
        for each in inside:
            parameter = _parameter(each, call, node)
            if parameter is None:
                self.is_unclear = True
            else:
                self._follow_name(parameter, each, each.lineno - 1, computed, compared)
        return None

    def _bound(
        self, target: ast.AST, computed: bool, compared: bool, after: int | None = None
    ) -> None:
        """A variable, an attribute or an element of one of these has the value now."""
        while isinstance(target, (ast.Subscript, ast.Starred)):
            target = target.value
        if isinstance(target, (ast.Tuple, ast.List)):
            for each in target.elts:
                self._bound(each, computed, compared)
        elif isinstance(target, ast.Name):
            self._is_called(target.id)
            line = target.lineno if after is None else after
            scope = function_around(self._tree, line)
            self._follow_name(target.id, scope, line, computed, compared)
        elif isinstance(target, ast.Attribute):
            text = ast.unparse(target)
            self._is_called(target.attr)
            if self._is_new(text, 0, computed):
                uses = [n for n in _loads(self._tree) if ast.unparse(n) == text]
                self._follow_all(uses, computed, compared)
        else:
            self.is_unclear = True

    def _follow_name(
        self, name: str, scope: ast.AST, line: int, computed: bool, compared: bool
    ) -> None:
        """Each use of a variable behind a line, until it gets another value; also those above,
        in a loop around the line."""
        if not self._is_new(name, line, computed):
            return
        named = [n for n in ast.walk(scope) if isinstance(n, ast.Name) and n.id == name]
        writes = [n.lineno for n in named if isinstance(n.ctx, ast.Store) and n.lineno > line]
        until = min(writes, default=None)
        loops = [n for n in ast.walk(scope) if isinstance(n, ast.While) and _has(n, line)]
        uses = [
            node
            for node in named
            if isinstance(node.ctx, ast.Load)
            and (
                (node.lineno > line and (until is None or node.lineno <= until))
                or any(_has(loop.test, node.lineno) for loop in loops)
            )
        ]
        self._follow_all(uses, computed, compared)

    def _follow_all(self, uses: Sequence[ast.expr], computed: bool, compared: bool) -> None:
        if not uses:
            self._end("dropped")
        for node in uses:
            self.follow(node, computed=computed, compared=compared)

    def _is_new(self, name: str, line: int, computed: bool) -> bool:
        key = f"{name} {computed}", line
        if key in self._seen:
            return False
        self._seen.add(key)
        return True

    def _compared(self, around: ast.Compare, node: ast.AST, *, plain: bool) -> None:
        if plain and len(around.ops) == 1:
            operator = type(around.ops[0]).__name__
            other = around.comparators[0]
            if node is not around.left:
                other, operator = around.left, _MIRRORED.get(operator, operator)
            self.comparisons.append((operator, other))
        else:
            self.comparisons += [("", around), ("", around)]  # no single one

    def _end(self, use: str) -> None:
        self.ends += 1
        self.uses.add(use)

    def _asks_again(self, test: ast.While | ast.If) -> bool:
        """Whether the branch decides if a loop goes on that reads the value anew."""
        if isinstance(test, ast.While):
            return True
        loops = any(_has(loop, test.lineno) for loop in self._loops_around_call())
        inside = (node for part in (*test.body, *test.orelse) for node in ast.walk(part))
        return loops and any(isinstance(node, _EXITS) for node in inside)

    def is_polled(self, uses: set[str]) -> bool:
        """Whether a loop around the call sleeps between two looks. One that goes on for a
        number of rounds fixed before does not wait for anything: it watches, if it sleeps in
        each round and goes on with nothing that it saw."""
        goes_on = "used" in uses or self.is_accumulated
        for loop in self._loops_around_call():
            if not any(_is_sleep(node) for node in ast.walk(loop)):
                continue
            if isinstance(loop, ast.While) or _may_end_early(loop):
                return True
            if not goes_on and any(_is_sleep(node) for node in _always_done(loop)):
                return True
        return False

    def _loops_around_call(self) -> Iterator[ast.AST]:
        node: ast.AST | None = self._call
        while node is not None and not isinstance(node, _FUNCTIONS):
            if isinstance(node, _LOOPS):
                yield node
            node = self._parents.get(id(node))


_THROUGH = (
    *(ast.BoolOp, ast.IfExp, ast.JoinedStr, ast.FormattedValue, ast.Starred, ast.keyword),
    *(ast.List, ast.Tuple, ast.Set, ast.Dict, ast.ListComp, ast.SetComp, ast.GeneratorExp),
    *(ast.DictComp, ast.comprehension, ast.Slice),
)
"""The value of what is around is that of the part, or has it inside."""

_MIRRORED = {"Lt": "Gt", "Gt": "Lt", "LtE": "GtE", "GtE": "LtE"}


def _has(node: ast.AST, line: int) -> bool:
    first = int(getattr(node, "lineno", 0))
    return first <= line <= int(getattr(node, "end_lineno", None) or first)


def _is_sleep(node: ast.AST) -> bool:
    return isinstance(node, ast.Call) and called_name(node) == "sleep"


def _may_end_early(loop: ast.AST) -> bool:
    return any(isinstance(node, (ast.Break, ast.Return)) for node in ast.walk(loop))


def _always_done(loop: ast.AST) -> Iterator[ast.AST]:
    """What is in a loop, but for branches."""
    waiting = [loop]
    while waiting:
        node = waiting.pop()
        yield node
        inner = ast.iter_child_nodes(node)
        waiting += [each for each in inner if not isinstance(each, (ast.If, ast.IfExp))]


def _loads(tree: ast.AST) -> Iterator[ast.expr]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Load):
            yield node


def _parameter(
    function: ast.FunctionDef | ast.AsyncFunctionDef, call: ast.Call, given: ast.AST
) -> str | None:
    """The name under which a function of the program gets an argument."""
    if isinstance(given, ast.keyword):
        return given.arg
    names = [each.arg for each in (*function.args.posonlyargs, *function.args.args)]
    if names[:1] == ["self"] and isinstance(call.func, ast.Attribute):
        names = names[1:]
    place = next((at for at, each in enumerate(call.args) if each is given), len(names))
    return names[place] if place < len(names) else None
