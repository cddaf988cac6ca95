"""What the program's text says about a message: the tensor, and the direction of its peer.

Used by `crossed_messages.py`. A call that sends or receives says it in its arguments; of
several on one line the columns tell which, where they are known: Python has them since 3.11,
and ranks in other processes send them for their first messages. The messages of a batch are
those of the `P2POp`s that the same function writes before the batch, if there are as many and
they do the same.
Whatever is not plain stays None.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import islice

from phalanx.callsite import line_at
from phalanx.journal.events import Place
from phalanx.model import Site
from phalanx.source_text import function_around, parsed, tree_of_text

_DIRECTIONS = (
    (
        {
            "next",
            "nxt",
            "right",
            "down",
            "south",
            "east",
            "succ",
            "successor",
            "upper",
            "above",
        },
        1,
    ),
    ({"prev", "prv", "previous", "left", "up", "north", "west", "pred", "predecessor"}, -1),
    ({"lower", "below"}, -1),
)
_CALLS = {"send": ("send", "isend"), "recv": ("recv", "irecv")}
_PEERS = frozenset({"dst", "src", "group_dst", "group_src", "peer", "group_peer"})
_SAME = frozenset({"contiguous", "detach", "clone", "cpu", "cuda", "to"})
"""Methods whose result a reader takes for the tensor itself."""


@dataclass(frozen=True)
class MessageText:
    """`tensor` and `peer` as they are written, at `line`; `direction` is 1 for what is next or
    right, -1 for the opposite. `tag` as it is written, by name."""

    tensor: str | None = None
    peer: str | None = None
    direction: int | None = None
    line: int = 0
    tag: str | None = None


UNKNOWN = MessageText()


def place_of(place: Place) -> tuple[str, int, str] | None:
    """File, line and function."""
    if place is None:
        return None
    if isinstance(place, Site):
        return place.file, place.line, place.function
    code, offset = place
    return code.co_filename, line_at(code, offset), code.co_name


def text_of_message(place: Place, name: str) -> MessageText:
    """The call at a place that sends or receives; `name` is "send" or "recv"."""
    if place is None or isinstance(place, Site):
        return _text_of(place, name)
    key = id(place[0]), place[1], name
    known = _known.get(key)
    if known is None:
        if len(_known) >= MOST_KNOWN:
            _known.clear()
        known = _known[key] = place, _text_of(place, name)
    return known[1]


MOST_KNOWN = 4096
_known: dict[tuple[int, int, str], tuple[Place, MessageText]] = {}
"""By the code's identity, which the place keeps: to hash the code takes long."""


def _text_of(place: Place, name: str) -> MessageText:
    where = place_of(place)
    return UNKNOWN if where is None else _text_at(*where[:2], _span_of(place), name)


Span = tuple[int | None, ...]
"""First line, last line, first column, last column."""


def _span_of(place: Place) -> Span:
    """Of the call's text; empty if not known."""
    positions = None
    if place is not None and not isinstance(place, Site):
        code, offset = place
        positions = getattr(code, "co_positions", None)  # Python 3.11
    if positions is None:
        return ()
    return next(islice(positions(), offset // 2, None), ())


@lru_cache(maxsize=256)
def _text_at(file: str, line: int, span: Span, name: str) -> MessageText:
    tree = parsed(file)
    if tree is None:
        return UNKNOWN
    calls = [
        call
        for call in _calls_in(tree)
        if call.lineno <= line <= (call.end_lineno or 0) and _called(call) in _CALLS[name]
    ]
    if len(calls) > 1:
        calls = [call for call in calls if _span(call) == span]
    if len(calls) != 1:
        return UNKNOWN
    return _text(calls[0], 0, function_around(tree, line))


@lru_cache(maxsize=256)
def texts_of_batch(file: str, line: int, names: tuple[str, ...]) -> Sequence[MessageText]:
    """The messages of a batch that is sent at a line, in their order."""
    tree = parsed(file)
    if tree is None:
        return [UNKNOWN] * len(names)
    function = function_around(tree, line)
    before = [each for each in _calls_in(function) if each.lineno <= line]
    batches = [each.lineno for each in before if _called(each) == "batch_isend_irecv"]
    earlier = max((each for each in batches if each < line), default=0)
    made = [each for each in before if _called(each) == "P2POp" and each.lineno > earlier]
    made.sort(key=lambda call: (call.lineno, call.col_offset))
    whats = [_op_of(each) for each in made]
    if len(made) != len(names) or any(
        what not in _CALLS[name] for what, name in zip(whats, names, strict=True)
    ):
        return [UNKNOWN] * len(names)
    return [_text(each, 1, function) for each in made]


def _span(call: ast.Call) -> Span:
    return call.lineno, call.end_lineno, call.col_offset, call.end_col_offset


def _calls_in(node: ast.AST) -> Iterator[ast.Call]:
    return (each for each in ast.walk(node) if isinstance(each, ast.Call))


def _called(call: ast.Call) -> str:
    return str(getattr(call.func, "attr", getattr(call.func, "id", "")))


def _op_of(call: ast.Call) -> str:
    given = call.args[0] if call.args else _named(call, {"op"})
    return str(getattr(given, "attr", getattr(given, "id", "")))


def _named(call: ast.Call, names: frozenset[str] | set[str]) -> ast.expr | None:
    return next((each.value for each in call.keywords if each.arg in names), None)


def _text(call: ast.Call, first: int, function: ast.AST) -> MessageText:
    args = call.args
    tensor = args[first] if len(args) > first else _named(call, {"tensor"})
    peer = args[first + 1] if len(args) > first + 1 else _named(call, _PEERS)
    tag = _named(call, {"tag"})
    return MessageText(
        None if tensor is None else _tensor_text(tensor),
        None if peer is None else ast.unparse(peer),
        None if peer is None else _direction(peer, function, call.lineno),
        call.lineno,
        None if tag is None else ast.unparse(tag),
    )


def names_in(text: str | None) -> list[str]:
    """The variables of an expression."""
    tree = tree_of_text(text or "")
    nodes = () if tree is None else ast.walk(tree)
    return sorted({each.id for each in nodes if isinstance(each, ast.Name)})


def _tensor_text(node: ast.expr) -> str | None:
    while (
        isinstance(node, ast.Call)
        and isinstance(node.func, ast.Attribute)
        and node.func.attr in _SAME
    ):
        node = node.func.value
    plain = isinstance(node, (ast.Name, ast.Attribute)) or (
        isinstance(node, ast.Subscript) and _is_fixed(node.slice)
    )
    return ast.unparse(node) if plain else None


def _is_fixed(index: ast.expr) -> bool:
    """`0`, `-1`, `:2`, `"name"`, `:, -1`: without a variable, so it is always the same part."""
    return not any(isinstance(each, (ast.Name, ast.Call)) for each in ast.walk(index))


def _direction(node: ast.expr, function: ast.AST, line: int) -> int | None:
    """By the words in it, by what it computes, or by what the variable was given."""
    found = direction_of_words(node) or _direction_of_sum(node)
    if found is None and isinstance(node, ast.Name):
        values = [
            each.value
            for each in ast.walk(function)
            if isinstance(each, ast.Assign)
            and each.lineno <= line
            and any(isinstance(to, ast.Name) and to.id == node.id for to in each.targets)
        ]
        if len(values) == 1 and not isinstance(values[0], ast.Name):
            found = direction_of_words(values[0]) or _direction_of_sum(values[0])
    return found


def direction_of_words(node: ast.AST) -> int | None:
    words = {
        word
        for each in ast.walk(node)
        for name in (getattr(each, "id", None), getattr(each, "attr", None))
        if isinstance(name, str)
        for word in name.lower().split("_")
    }
    found = {sign for known, sign in _DIRECTIONS if words & known}
    return found.pop() if len(found) == 1 else None


def _direction_of_sum(node: ast.expr) -> int | None:
    """`(rank + 1) % size`, `(rank - 1) % size`, `(rank - 1 + size) % size`."""
    if not (isinstance(node, ast.BinOp) and isinstance(node.op, ast.Mod)):
        return None
    signs = [
        1 if isinstance(each.op, ast.Add) else -1
        for each in ast.walk(node.left)
        if isinstance(each, ast.BinOp)
        and isinstance(each.op, (ast.Add, ast.Sub))
        and isinstance(each.right, ast.Constant)
        and each.right.value == 1
    ]
    return signs[0] if len(signs) == 1 else None
