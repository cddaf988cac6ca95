"""What `reduce` gives to its root only, and other ranks decide by: a rule of `lost-result`.

After `dist.reduce(t, dst=0)` rank 0 has the sum; on the others `t` holds what they put in, or
parts of the sum. Ranks that are not the root note the call with the functions around it, and
the source says what they do with `t` from there on.

| `t`, or what is computed of it, elsewhere than on the root  | verdict                        |
|-------------------------------------------------------------|--------------------------------|
| is the condition of a branch that leaves a loop around the  | warning                        |
| call, or of such a loop                                     |                                |
| is the condition of a branch with a collective, or that     | warning                        |
| sets what is printed or decides such a branch later         |                                |
| is given to `step()`, or gradients and data are scaled by   | warning                        |
| it, and nothing in the file is broadcast or gathered        |                                |
| is used where the source tests the rank, or behind a test   | legal                          |
| of it that leaves                                           |                                |
| is overwritten, zeroed or given to another collective       | legal                          |
| is printed, logged, divided, kept                           | legal: nothing depends on it   |
| decides what is saved, logged or raised                     | not known: such functions may  |
|                                                             | test the rank                  |
| is given to a function of the program                       | not known                      |
"""

from __future__ import annotations

import ast
import builtins
from collections.abc import Iterator, Sequence

from phalanx.callsite import Mark
from phalanx.checks.results.noted_results import KIND, OffRoot, Places
from phalanx.journal.reader import Journal
from phalanx.matching.hints import name_ranks
from phalanx.model import CallBlock, Finding, Site
from phalanx.source_flows import (
    FlowEnd,
    Follower,
    Sink,
    assigned_in,
    first_argument,
    follow,
    key_of,
    name_of,
)
from phalanx.source_text import asks_for_rank

_EXCHANGES = ("broadcast", "bcast", "gather", "reduce", "scatter", "sync", "recv", "exchange")
"""Words in the names of functions that may give ranks a value of others."""
_SHARES = frozenset(
    (
        *("broadcast", "broadcast_object_list", "all_gather", "all_gather_object"),
        *("all_gather_into_tensor", "all_reduce", "scatter", "scatter_object_list"),
    )
)
_COLLECTIVES = frozenset({*_SHARES, "barrier", "reduce", "gather", "send", "recv"})
_PLAIN = frozenset(
    {"abs", "bool", "float", "int", "list", "max", "min", "round", "sum", "sorted", "tuple"}
)
_LIBRARIES = frozenset({"torch", "math", "np", "numpy", "F"})
_NO_VALUES = frozenset(
    (
        *("device", "dim", "dtype", "isfinite", "isinf", "isnan", "ndim", "numel", "shape"),
        *("size", "zeros_like", "ones_like", "empty_like", "new_zeros", "requires_grad"),
    )
)
_OVERWRITES = frozenset({"zero_", "fill_", "copy_", "set_", "clear", "normal_", "uniform_"})
_LEADERS = frozenset(
    {"chief", "coordinator", "head", "leader", "main", "master", "primary", "root", "rank0"}
)
"""Words that programs use for the rank that has the result."""
_SCALES = frozenset({"add_", "div_", "mul_", "sub_"})
_SCALED = (".grad", ".data")


def find_off_root(journal: Journal) -> Iterator[Finding]:
    """From what the ranks noted, once for each line."""
    noted: dict[Places, list[OffRoot]] = {}
    for event in journal.noted(KIND):
        if isinstance(event.what, OffRoot):
            noted.setdefault(event.what.places, []).append(event.what)
    told: set[Mark] = set()
    for places, calls in noted.items():
        found = None if places[0] in told else decision_by(places)
        if found is not None:
            told.add(places[0])
            text = found.sink.text
            yield find_read_off_root(calls, name=found.name, text=text, at=found.site)


def decision_by(places: Sequence[Mark]) -> FlowEnd | None:
    """What depends on the tensor that the `reduce` at the first place was given."""
    return follow(places, OffRootFollower, first_argument)


def find_read_off_root(calls: list[OffRoot], *, name: str, text: str, at: Site) -> Finding:
    """Of one line: `name` has the result on the root only, and `at` goes by `text`."""
    first = calls[0].op
    ranks = tuple(sorted({each.op.rank for each in calls}))
    verb = "go" if len(ranks) > 1 else "goes"
    place = f" ({first.site})" if first.site is not None else ""
    return Finding(
        kind=KIND,
        severity="warning",
        ranks=ranks,
        headline=(
            f"{name_ranks(ranks)} {verb} by {name} ({at}), but reduce{place} gave it to "
            f"rank {first.root} only"
        ),
        blocks=(
            CallBlock(
                ranks,
                first,
                (
                    f"{name} has the result on rank {first.root} only",
                    f"{at} goes by {text} on all ranks",
                ),
            ),
        ),
        hint=(
            f"use all_reduce, so that all ranks have it; or let rank {first.root} decide, and "
            "broadcast the decision"
        ),
    )


class OffRootFollower(Follower):
    """Looks for what depends on the value. `decided` are variables that a branch by the value
    has set, with that branch."""

    wraps = True

    def __init__(self, tree: ast.Module, file: str) -> None:
        super().__init__(tree, file)
        self.decided: dict[str, Sink] = {}
        called = {name_of(each.func) for each in ast.walk(tree) if isinstance(each, ast.Call)}
        self.shares = bool(called & _SHARES)
        self.prints = not any(_sets_print(node) for node in ast.walk(tree))
        """Whether `print` is Python's own, as far as the file shows, which prints on all
        ranks."""

    def method(self, name: str) -> bool:
        return name not in _NO_VALUES

    def function(self, call: ast.Call) -> bool:
        function, name = call.func, name_of(call.func)
        if name in _NO_VALUES or _is_exchange(name):
            return False
        if isinstance(function, ast.Name):
            return name in _PLAIN
        return (key_of(function) or "").split(".")[0] in _LIBRARIES

    def compared(self, node: ast.Compare | ast.BoolOp) -> bool:
        if self.is_passed_by(node):
            return False
        if isinstance(node, ast.BoolOp):
            return self.any_of(*node.values)
        identity = (ast.Is, ast.IsNot, ast.In, ast.NotIn)
        if any(isinstance(each, identity) for each in node.ops):
            return False
        return self.any_of(node.left, *node.comparators)

    def is_passed_by(self, test: ast.expr) -> bool:
        words = {
            word
            for each in ast.walk(test)
            for word in name_of(each).lower().replace(".", "_").split("_")
        }
        return bool(words & _LEADERS) or asks_for_rank(test, self.tree, self.file)

    def look_at(self, call: ast.Call) -> None:
        function, name = call.func, name_of(call.func)
        given = [*call.args, *(each.value for each in call.keywords)]
        if isinstance(function, ast.Attribute):
            self._look_at_method(call, function, given)
        elif name == "print":
            self._look_at_print(call, given)
            return
        is_own = isinstance(function, ast.Name) and not hasattr(builtins, name)
        if _is_exchange(name) or is_own:
            for each in given:
                for part in each.elts if isinstance(each, (ast.List, ast.Tuple)) else [each]:
                    self.bind(part, False)

    def _look_at_method(
        self, call: ast.Call, function: ast.Attribute, given: list[ast.expr]
    ) -> None:
        name, key = function.attr, key_of(function.value)
        if name in ("append", "extend"):
            if key is not None and self.any_of(*given):
                self.names.add(key)
        elif name in _OVERWRITES and key is not None and not self.any_of(*given):
            self.names.discard(key)
        elif (name == "step" or self._scales(name, key)) and self.any_of(*given):
            self.found(call, call)

    def _look_at_print(self, call: ast.Call, given: list[ast.expr]) -> None:
        for each in (part for node in given for part in ast.walk(node)):
            branch = self.decided.get(key_of(each) or "")
            if branch is not None and self.prints and self.sink is None:
                self.sink = branch

    def change(self, statement: ast.AugAssign) -> None:
        if self._scales("mul_", key_of(statement.target)):
            self.found(statement, statement)

    def _scales(self, name: str, key: str | None) -> bool:
        """Whether a method changes a gradient or a parameter, and no rank gets another's."""
        return name in _SCALES and (key or "").endswith(_SCALED) and not self.shares

    def bind(self, target: ast.expr, carried: bool | tuple[bool, ...]) -> None:
        super().bind(target, carried)
        key = key_of(target)
        if key is not None and key not in self.names:
            self.decided.pop(key, None)

    def decide(self, branch: ast.If | ast.While) -> None:
        origin = self._origin(branch)
        if isinstance(branch, ast.While):
            self.sink = self.sink or origin
            return
        parts = list(self._unguarded([*branch.body, *branch.orelse]))
        calls = [each for each in parts if isinstance(each, ast.Call)]
        leaves = any(isinstance(each, ast.Break) for each in parts) and not self.loops
        if leaves or any(
            name_of(each.func) in _COLLECTIVES
            and (key_of(each.func) or "").split(".")[0] in ("dist", "torch")
            for each in calls
        ):
            self.sink = self.sink or origin
        values = [each.value for each in parts if isinstance(each, ast.Return)]
        if any(each is not None for each in values):
            self.result = True
        for name in assigned_in([each for each in parts if isinstance(each, ast.stmt)]):
            self.names.add(name)
            self.decided.setdefault(name, origin)

    def _origin(self, branch: ast.If | ast.While) -> Sink:
        """The first of the branches that made this one depend on the value."""
        keys = [key_of(each) or "" for each in ast.walk(branch.test)]
        known = [self.decided[key] for key in keys if key in self.decided]
        return known[0] if known else Sink(branch.lineno, ast.unparse(branch.test))

    def _unguarded(self, statements: Sequence[ast.stmt]) -> Iterator[ast.AST]:
        """What runs in these without a test of the rank; loops inside are left out."""
        for statement in statements:
            if isinstance(statement, (ast.For, ast.AsyncFor, ast.While, ast.FunctionDef)):
                continue
            if isinstance(statement, ast.If):
                if not self.is_passed_by(statement.test):
                    yield from self._unguarded([*statement.body, *statement.orelse])
            elif isinstance(statement, (ast.With, ast.AsyncWith, ast.Try)):
                yield from self._unguarded(statement.body)
            else:
                yield from ast.walk(statement)


def _sets_print(node: ast.AST) -> bool:
    """Whether something is put in the place of `print`, as by scripts whose rank 0 alone is to
    print."""
    if isinstance(node, (ast.FunctionDef, ast.alias)):
        return "print" in (node.name, getattr(node, "asname", None))
    is_store = isinstance(getattr(node, "ctx", None), ast.Store)
    return is_store and name_of(node) == "print"


def _is_exchange(name: str) -> bool:
    return any(word in name for word in _EXCHANGES)
