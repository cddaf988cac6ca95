"""What the program's source says about its variables: where a value is used again, and what
arithmetic makes of two of them.

Used by checks that look back, for the lines of calls that they doubt. If the source cannot be
read or parsed, nothing is said, and the checks stay silent.
"""

from __future__ import annotations

import ast
import linecache
import sys
from collections.abc import Iterator
from types import CodeType

from phalanx.callsite import Mark, line_at
from phalanx.source_text import parsed, tree_of_text

_LOOKS = frozenset(
    {"device", "dim", "dtype", "ndim", "numel", "requires_grad", "shape", "size", "stride"}
)
_OVERWRITES = frozenset(
    {"clear", "copy_", "fill_", "normal_", "random_", "set_", "uniform_", "zero_"}
)


def later_use(place: Mark, name: str) -> int | None:
    """The line that first uses the value of a variable after a place, in the same function or
    in the same module outside of functions; None if it gets another value before. In a loop
    that never assigns the variable, the lines before the place come after it as well. What
    looks at a tensor's shape or at a list's length only is no use."""
    code, line = place[0], line_at(*place)
    tree = parsed(code.co_filename)
    scope = None if tree is None else scope_of(tree, code, line)
    if scope is None:
        return None
    end = _end_of_statement(scope, line)
    uses = sorted(
        (node.lineno, not is_read, node.col_offset)
        for node, is_read in _uses_of(scope, name)
        if node.lineno > end
    )
    if uses:
        return None if uses[0][1] else uses[0][0]
    for loop in ast.walk(scope):
        if isinstance(loop, (ast.For, ast.While)) and loop.lineno <= line <= _last(loop):
            # What a `for` goes through is read once, before the place.
            again = ast.Module(loop.body, []) if isinstance(loop, ast.For) else loop
            around = list(_uses_of(again, name))
            before = [node.lineno for node, _ in around if node.lineno < line]
            if before and all(is_read for _, is_read in around):
                return min(before)
    return None


def scope_of(tree: ast.Module, code: CodeType, line: int) -> ast.AST | None:
    """The function that runs this code, or the module."""
    if code.co_name == "<module>":
        return tree
    found = [
        node
        for node in ast.walk(tree)
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef))
        and node.name == code.co_name
        and node.lineno <= line <= _last(node)
    ]
    return max(found, key=lambda node: node.lineno, default=None)


def _end_of_statement(scope: ast.AST, line: int) -> int:
    """The last line of the innermost statement at a line."""
    around = [
        node
        for node in ast.walk(scope)
        if isinstance(node, ast.stmt) and node.lineno <= line <= _last(node)
    ]
    return min((_last(node) for node in around), default=line)


def _last(node: ast.stmt) -> int:
    return node.end_lineno or node.lineno


def _uses_of(scope: ast.AST, name: str) -> Iterator[tuple[ast.Name, bool]]:
    """Where the variable occurs, and whether its value is read there; what is neither read nor
    written is left out."""
    attributes = {
        id(node.value): node.attr for node in ast.walk(scope) if isinstance(node, ast.Attribute)
    }
    counted = {
        id(given)
        for node in ast.walk(scope)
        if isinstance(node, ast.Call) and _called_name(node.func) == "len"
        for given in node.args
    }
    changed = {id(node.target) for node in ast.walk(scope) if isinstance(node, ast.AugAssign)}
    for node in ast.walk(scope):
        if isinstance(node, ast.Name) and node.id == name:
            attribute = attributes.get(id(node))
            if attribute not in _LOOKS and id(node) not in counted:
                is_read = isinstance(node.ctx, ast.Load) or id(node) in changed
                yield node, is_read and attribute not in _OVERWRITES


def received_name(place: Mark) -> str | None:
    """The variable that a receive at a place is given, if the line is that receive alone: its
    answer, who sent, is dropped."""
    lines = linecache.getlines(place[0].co_filename)
    line = line_at(*place)
    tree = tree_of_text(lines[line - 1].strip() if 0 < line <= len(lines) else "")
    if tree is None or len(tree.body) != 1 or not isinstance(tree.body[0], ast.Expr):
        return None
    call = tree.body[0].value
    if not isinstance(call, ast.Call) or getattr(call.func, "attr", None) != "recv":
        return None
    given = call.args[:1] or [each.value for each in call.keywords if each.arg == "tensor"]
    return given[0].id if given and isinstance(given[0], ast.Name) else None


_EVENS_OUT = frozenset({"abs", "fabs", "l1_loss", "mse_loss", "norm", "pow", "square"})


def lopsided(code: CodeType, line: int, one: str, other: str) -> tuple[str, int] | None:
    """Arithmetic with two variables behind a line of a function that gives another result if
    the two are exchanged, and its line. None if either gets another value before, or if the
    function has something that a sign makes no difference to."""
    tree = parsed(code.co_filename)
    scope = None if tree is None else scope_of(tree, code, line)
    return None if scope is None else lopsided_in(scope, line, one, other)


def lopsided_in(scope: ast.AST, line: int, one: str, other: str) -> tuple[str, int] | None:
    """`lopsided`, for a function whose syntax is at hand."""
    if any(_evens_out(node) for node in ast.walk(scope)):
        return None
    written = [
        node.lineno
        for name in (one, other)
        for node, is_read in _uses_of(scope, name)
        if not is_read and node.lineno > line
    ]
    until = min(written, default=sys.maxsize)
    for node in ast.walk(scope):
        value = getattr(node, "value", None)
        if not isinstance(node, _TAKING) or not isinstance(value, ast.BinOp):
            continue
        if line < node.lineno <= until and {one, other} <= _names(value):
            plain = _arithmetic(value, {})
            if plain is not None and plain != _arithmetic(value, {one: other, other: one}):
                return ast.unparse(value), node.lineno
    return None


_TAKING = (ast.Assign, ast.AugAssign, ast.Return)


def _evens_out(node: ast.AST) -> bool:
    return isinstance(node, ast.Pow) or _called_name(node) in _EVENS_OUT


_JOINS = frozenset({"cat", "concat", "hstack", "stack", "tensor", "vstack"})
_ORDERLESS = frozenset(
    (
        *("all", "any", "argsort", "counter", "histc", "max", "mean", "median", "min"),
        *("prod", "set", "sort", "sorted", "std", "sum", "topk", "unique", "var"),
    )
)
"""Functions for which the order of a list makes no difference, or which make their own."""


def kept_in_order(place: Mark) -> tuple[str, int] | None:
    """For a receive in a loop: what joins the received tensors, in the order in which the loop
    appended them to a list, and its line. None if anything in the file has no regard for an
    order: that may be what happens to them."""
    code, line = place[0], line_at(*place)
    name = received_name(place)
    tree = parsed(code.co_filename)
    scope = None if tree is None else scope_of(tree, code, line)
    if tree is None or scope is None or name is None:
        return None
    if any(_called_name(node) in _ORDERLESS for node in ast.walk(tree)):
        return None
    for loop in ast.walk(scope):
        if isinstance(loop, (ast.For, ast.While)) and loop.lineno <= line <= _last(loop):
            lists = {_appended_to(node, name) for node in ast.walk(loop)} - {None}
            for node in ast.walk(scope):
                if isinstance(node, ast.Call) and node.lineno > _last(loop) and node.args:
                    given = getattr(node.args[0], "id", None)
                    if given in lists and _called_name(node.func) in _JOINS:
                        return ast.unparse(node), node.lineno
    return None


def _called_name(node: ast.AST) -> str | None:
    return getattr(node, "attr", getattr(node, "id", None))


def _appended_to(node: ast.AST, name: str) -> str | None:
    """The list that this appends the variable to, or a copy of it."""
    if not isinstance(node, ast.Call) or getattr(node.func, "attr", None) != "append":
        return None
    given = node.args[0] if len(node.args) == 1 else None
    if isinstance(given, ast.Call) and isinstance(given.func, ast.Attribute):
        given = given.func.value if given.func.attr in ("clone", "item", "detach") else None
    is_it = isinstance(given, ast.Name) and given.id == name
    return getattr(getattr(node.func, "value", None), "id", None) if is_it else None


def _names(node: ast.AST) -> set[str]:
    return {each.id for each in ast.walk(node) if isinstance(each, ast.Name)}


_COMMUTATIVE = (ast.Add, ast.Mult)
_NUMBERS = frozenset({"item", "float", "int", "double"})


def _arithmetic(node: ast.expr, renamed: dict[str, str]) -> str | None:
    """An expression of numbers and variables in a form that is the same for the same sum or
    product, with variables renamed; None if there is anything else in it."""
    if isinstance(node, ast.Name):
        return renamed.get(node.id, node.id)
    if isinstance(node, ast.Constant):
        return repr(node.value)
    if isinstance(node, ast.Call) and len(node.args) + len(node.keywords) <= 1:
        inner = node.func.value if isinstance(node.func, ast.Attribute) else None
        named = getattr(node.func, "attr", getattr(node.func, "id", None))
        if inner is None and len(node.args) == 1:
            inner = node.args[0]
        elif node.args:
            return None
        return _arithmetic(inner, renamed) if named in _NUMBERS and inner is not None else None
    if not isinstance(node, ast.BinOp):
        return None
    parts = [_arithmetic(side, renamed) for side in _terms(node)]
    if None in parts:
        return None
    known = [str(part) for part in parts]
    kind = type(node.op).__name__
    return f"{kind}({', '.join(sorted(known) if _is_commutative(node) else known)})"


def _is_commutative(node: ast.BinOp) -> bool:
    return isinstance(node.op, _COMMUTATIVE)


def _terms(node: ast.BinOp) -> list[ast.expr]:
    """All terms of a sum, all factors of a product, else the two sides."""
    found: list[ast.expr] = []
    for side in (node.left, node.right):
        same = isinstance(side, ast.BinOp) and type(side.op) is type(node.op)
        found += _terms(side) if same and _is_commutative(node) else [side]  # type: ignore[arg-type]
    return found


_RESULTS = (".result(", ".get_future(", ".value(")


def asks_for_results(place: Mark) -> bool:
    """Whether anything in the file of this place asks a `Work` for its result, or the call at
    the place hands its `Work` to a caller."""
    lines = linecache.getlines(place[0].co_filename)
    line = line_at(*place)
    text = lines[line - 1].strip() if 0 < line <= len(lines) else ""
    given_away = text.startswith(("return", "yield"))
    return given_away or any(word in each for each in lines for word in _RESULTS)
