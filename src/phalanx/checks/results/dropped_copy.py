"""Collectives whose result goes into a temporary that nobody keeps: a rule of `lost-result`.

`all_reduce` and its like write into the tensor that they are given. If that is a copy made in
the call itself, the result is gone when the call returns, and the tensor that the copy was made
of is as before. Ranks note such calls (`backend/evidence/result_notes.py`), and what the source
says decides when the run has ended.

| the call writes into                                   | verdict                             |
|--------------------------------------------------------|-------------------------------------|
| a copy made of a tensor in the call (`x.contiguous()`, | warning, if the program uses that   |
| `x[mask]`, `x.to(device)`, `x / n`, `stack(losses)`),  | tensor later, or what it lies in,   |
| which has memory of its own                            | or it is an object's                |
| the same, without a later use of that tensor           | legal: nobody misses the result     |
| memory that the tensor shares (`x[0]`, `x.view(-1)`,   | legal: the tensor has the result    |
| `x.detach()`, `x.contiguous()` of what is contiguous)  |                                     |
| a new tensor (`torch.zeros(1)`, `x.clone()`,           | legal: meant to be thrown away, as  |
| `torch.zeros_like(x)`)                                 | where a call serves as a barrier    |
| what another function returns                          | not known                           |
| on the root of a broadcast, elsewhere of a reduce      | legal: there is no result           |
| asynchronously, where somebody asks a `Work` for its   | not known                           |
| result                                                 |                                     |
"""

from __future__ import annotations

import ast
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any, Literal

from phalanx.callsite import Mark, site_at
from phalanx.checks.results.noted_results import KIND, Lost
from phalanx.journal.reader import Journal
from phalanx.matching.hints import name_ranks
from phalanx.model import CallBlock, Finding, Site
from phalanx.source_text import expression, tree_of_text
from phalanx.source_uses import asks_for_results, later_use

WRITES = {
    "all_reduce": "tensor",
    "reduce": "tensor",
    "broadcast": "tensor",
    "scatter": "tensor",
    "recv": "tensor",
    "all_gather_into_tensor": "output_tensor",
    "reduce_scatter_tensor": "output",
    "all_to_all_single": "output",
}
"""Functions that write into their first argument, and its name."""

_ALSO_CALLED = {
    "all_gather_into_tensor": ("all_gather_single", "_all_gather_base"),
    "reduce_scatter_tensor": ("reduce_scatter_single", "_reduce_scatter_base"),
}
"""Other names of torch's for the same operation."""

_COPIERS = frozenset(
    (
        *("contiguous", "to", "cuda", "cpu", "xpu", "npu", "type", "type_as", "detach"),
        *("float", "double", "half", "bfloat16", "int", "long", "short", "bool"),
        *("reshape", "flatten", "ravel", "view", "view_as", "squeeze", "unsqueeze", "t"),
        *("transpose", "permute", "expand", "expand_as", "narrow", "select"),
        *("index_select", "masked_select", "sum", "mean"),
    )
)
"""Methods of a tensor that give the tensor itself, a view of it, or a copy: which of them,
its memory says."""
_VIEWS = frozenset({"data", "T", "mT", "real"})
_JOINERS = frozenset({"cat", "concat", "stack", "hstack", "vstack"})

Step = tuple[Literal["attribute", "key", "name", "any", "call"], Any, str]
"""From a value to the next: an attribute, what lies under a key or under the value of a
variable, the first of what lies in it, or a tensor computed of it; and the text up to there."""


@dataclass(frozen=True)
class Temporary:
    """What a call gets instead of a tensor that the program keeps: `text`, made of the variable
    `root` by these steps."""

    text: str
    root: str
    steps: tuple[Step, ...]


def find_dropped_copies(journal: Journal) -> Iterator[Finding]:
    """From what the ranks noted, once for each line."""
    lines: dict[Any, list[Lost]] = {}
    for event in journal.noted(KIND):
        if isinstance(event.what, Lost):
            lines.setdefault((event.mark, event.what.op.name), []).append(event.what)
    for (mark, _), lost in lines.items():
        if lost[0].asynchronous and asks_for_results(mark):
            continue
        used = _later_uses(lost)
        if used is not None or lost[0].in_object:
            yield find_lost(lost, used=used)


def _later_uses(lost: Iterable[Lost]) -> tuple[str, Site] | None:
    for each in lost:
        for place, name in each.holders:
            line = later_use(place, name)
            if line is not None:
                return name, site_at(place[0], line)
    return None


def find_lost(lost: list[Lost], *, used: tuple[str, Site] | None) -> Finding:
    """Of one line; `used` is the name of the original where it is used later, and where."""
    first = lost[0]
    ranks = tuple(sorted({each.op.rank for each in lost}))
    verb = "lose" if len(ranks) > 1 else "loses"
    place = f" ({first.op.site})" if first.op.site is not None else ""
    then = (
        f"{used[1]} uses {used[0]}, which has not changed"
        if used is not None
        else f"{first.source} has not changed"
    )
    return Finding(
        kind=KIND,
        severity="warning",
        ranks=ranks,
        headline=(
            f"{name_ranks(ranks)} {verb} the result of {first.op.name}{place}: "
            f"it went into a copy of {first.source}"
        ),
        blocks=(
            CallBlock(
                ranks,
                first.op,
                (f"writes into {first.text}, a copy that nobody keeps", then),
            ),
        ),
        hint=(
            "give the copy a name before the call, and use it from there on or copy it back "
            f"into {first.source}"
        ),
    )


def temporary_at(place: Mark, name: str) -> Temporary | None:
    """What the call of this operation at a place gets for the tensor that it writes into, if
    the source shows that it is computed there of a variable."""
    call = call_at(place, name) if name in WRITES else None
    given = None if call is None else _argument(call, WRITES[name])
    steps = None if given is None else _steps(given)
    if given is None or steps is None or not any(step[0] == "call" for step in steps[1]):
        return None
    return Temporary(ast.unparse(given), *steps)


def call_at(place: Mark, name: str) -> ast.Call | None:
    """The call of this operation at a place, if the source shows one."""
    text = expression(place)
    names = (name, *_ALSO_CALLED.get(name, ()))
    tree = tree_of_text(text or "")
    if tree is None:
        return None
    calls = [
        node
        for node in ast.walk(tree)
        if isinstance(node, ast.Call) and _called(node.func) in names
    ]
    return calls[0] if len(calls) == 1 else None


def _called(function: ast.expr) -> str | None:
    return getattr(function, "attr", getattr(function, "id", None))


def _argument(call: ast.Call, name: str) -> ast.expr | None:
    if call.args:
        return None if isinstance(call.args[0], ast.Starred) else call.args[0]
    return next((each.value for each in call.keywords if each.arg == name), None)


def _steps(node: ast.expr) -> tuple[str, tuple[Step, ...]] | None:
    """The variable at the bottom of an expression and the way from there."""
    if isinstance(node, ast.Name):
        return node.id, ()
    text = ast.unparse(node)
    if _is_joined(node):
        joined = _steps_of_parts(node.args[0])  # type: ignore[attr-defined]
        return None if joined is None else (joined[0], (*joined[1], ("call", None, text)))
    inner: ast.expr | None = None
    step: Step = ("call", None, text)
    if isinstance(node, ast.Attribute):
        inner = node.value
        step = step if node.attr in _VIEWS else ("attribute", node.attr, text)
    elif isinstance(node, ast.Subscript):
        inner = node.value
        if isinstance(node.slice, ast.Constant):
            step = ("key", node.slice.value, text)
        elif isinstance(node.slice, ast.Name):
            step = ("name", node.slice.id, text)
    elif isinstance(node, ast.BinOp):
        inner = _operand(node)
    elif isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
        inner = node.func.value if node.func.attr in _COPIERS else None
    found = None if inner is None else _steps(inner)
    return None if found is None else (found[0], (*found[1], step))


def _operand(node: ast.BinOp) -> ast.expr | None:
    """The tensor of a sum or a product, as far as one can see: not a number, and not what is
    multiplied by nothing."""
    sides = (node.left, node.right)
    if any(isinstance(side, ast.Constant) and not side.value for side in sides):
        return None
    return next((side for side in sides if _steps(side) is not None), None)


def _is_joined(node: ast.expr) -> bool:
    return isinstance(node, ast.Call) and _called(node.func) in _JOINERS and bool(node.args)


def _steps_of_parts(node: ast.expr) -> tuple[str, tuple[Step, ...]] | None:
    """The way to the first of the tensors that are joined: `[a, b]`, `losses`,
    `list(losses.values())`, `[losses[n] for n in names]`, `[x.sum() for x in losses]`."""
    if isinstance(node, (ast.List, ast.Tuple)):
        return _steps(node.elts[0]) if node.elts else None
    if isinstance(node, (ast.ListComp, ast.GeneratorExp)) and len(node.generators) == 1:
        return _steps_of_each(node.elt, node.generators[0])
    return _steps_into(node)


def _steps_into(node: ast.expr) -> tuple[str, tuple[Step, ...]] | None:
    """The way to the first of what lies in a list or in a dict."""
    if isinstance(node, ast.Call):
        called = _called(node.func)
        if isinstance(node.func, ast.Name) and called in ("list", "tuple") and node.args:
            return _steps_into(node.args[0])
        if isinstance(node.func, ast.Attribute) and called == "values" and not node.args:
            return _steps_into(node.func.value)
    found = _steps(node) if isinstance(node, (ast.Name, ast.Attribute)) else None
    return None if found is None else (found[0], (*found[1], ("any", None, ast.unparse(node))))


def _steps_of_each(
    part: ast.expr, loop: ast.comprehension
) -> tuple[str, tuple[Step, ...]] | None:
    found = _steps(part)
    if found is None:
        return None
    root, steps = found
    bound = [each.id for each in ast.walk(loop.target) if isinstance(each, ast.Name)]
    if root not in bound:
        parts = [_unbound(step, bound) for step in steps]
        return None if None in parts else (root, tuple(each for each in parts if each))
    source: ast.expr = loop.iter
    if len(bound) == 2 and root == bound[1] and isinstance(source, ast.Call):
        pairs = isinstance(source.func, ast.Attribute) and source.func.attr == "items"
        source = source.func.value if pairs else source  # type: ignore[attr-defined]
    elif len(bound) != 1:
        return None
    outer = _steps_into(source)
    return None if outer is None else (outer[0], (*outer[1], *steps))


def _unbound(step: Step, bound: list[str]) -> Step | None:
    """What lies under a key that the comprehension binds is any."""
    if step[0] == "name" and step[1] in bound:
        return ("any", None, step[2].rpartition("[")[0])
    return step
