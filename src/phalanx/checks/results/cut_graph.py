"""Gradients that end at a collective: a rule of `lost-result`.

The collectives of torch.distributed know nothing of autograd: what they write has no gradient,
whatever they were given. If a loss is computed of it, the parameters behind the input learn
nothing from that. Ranks note such calls, and whether a gradient came to the input on another
way (`backend/evidence/result_notes.py`); the source says whether `backward()` is called on
something that is computed of the output.

| a call gets a tensor that requires a gradient               | verdict                        |
|-------------------------------------------------------------|--------------------------------|
| `backward()` of what is computed of the output, and no      | warning                        |
| gradient ever comes to the input                            |                                |
| a gradient comes to the input, or to what it was computed   | legal: the rank's own part was |
| of                                                          | put back, or has a term of its |
|                                                             | own, or autograd is run by     |
|                                                             | hand                           |
| under `no_grad`, or in `forward` of an autograd function    | legal: gradients are off       |
| the input is detached                                       | legal: none is meant           |
| no `backward()` of what is computed of the output: metrics, | legal                          |
| or what was detached since, or left behind in `no_grad`     |                                |
| `backward()` in some branch or loop only, or in a library   | not known                      |
"""

from __future__ import annotations

import ast
from collections.abc import Iterator, Sequence

from phalanx.callsite import Mark, resolve
from phalanx.checks.results.noted_results import KIND, Cut, Places, Reached
from phalanx.journal.reader import Journal
from phalanx.matching.hints import name_ranks
from phalanx.model import CallBlock, Finding, Site
from phalanx.source_flows import FlowEnd, Follower, first_argument, follow, key_of, name_of

CUTTING = frozenset(
    (
        *("all_gather", "all_gather_into_tensor", "all_to_all", "all_to_all_single"),
        *("reduce_scatter", "reduce_scatter_tensor"),
    )
)
"""Calls whose outputs are other tensors than their inputs."""

_CUTS = frozenset(
    (
        *("argmax", "argmin", "argsort", "data", "detach", "device", "dim", "dtype", "item"),
        *("long", "int", "bool", "ndim", "numel", "numpy", "shape", "size", "stride"),
        *("tolist", "requires_grad", "is_leaf", "grad", "eq", "ne", "gt", "lt", "ge", "le"),
        *("isfinite", "isinf", "isnan", "tensor", "as_tensor", "new_tensor", "float", "hash"),
        *("format", "id", "isinstance", "len", "print", "range", "repr", "str"),
        *("empty_like", "full_like", "ones_like", "rand_like", "randn_like", "zeros_like"),
        *("new_empty", "new_full", "new_ones", "new_zeros", "bincount", "indices", "one_hot"),
        *("multinomial", "nonzero", "searchsorted", "unique"),
    )
)
"""Functions, methods and attributes whose result is no tensor or has no gradient."""
_TENSOR_METHODS = frozenset({"float"})
_JOINS = frozenset({"append", "extend", "insert"})


def find_cut_graphs(journal: Journal) -> Iterator[Finding]:
    """From what the ranks noted, once for each line."""
    cut: dict[Places, list[Cut]] = {}
    reached: set[Places] = set()
    for event in journal.noted(KIND):
        if isinstance(event.what, Cut):
            cut.setdefault(event.what.places, []).append(event.what)
        elif isinstance(event.what, Reached):
            reached.add(event.what.places)
    told: set[Mark] = set()
    for places, calls in cut.items():
        if places in reached or places[0] in told:
            continue
        loss = loss_of(places)
        if loss is not None:
            told.add(places[0])
            by = resolve(places[1]) if len(places) > 1 else None
            yield find_cut(calls, output=loss.name, loss=loss.sink.text, at=loss.site, by=by)


def loss_of(places: Sequence[Mark]) -> FlowEnd | None:
    """What `backward()` is called on, if it is computed of the output of the call at the first
    place."""
    return follow(places, LossFollower, first_argument)


def find_cut(
    calls: list[Cut], *, output: str, loss: str, at: Site, by: Site | None = None
) -> Finding:
    """Of one line: `output` is what the call writes, `by` calls the function that it is in, and
    `at` calls `backward()` on `loss`."""
    first = calls[0].op
    ranks = tuple(sorted({each.op.rank for each in calls}))
    verb = "lose" if len(ranks) > 1 else "loses"
    place = f" ({first.site})" if first.site is not None else ""
    notes = [f"its input requires a gradient, and {output} has none"]
    if by is not None and str(by) != str(at):
        notes.append(f"called from {by}")
    notes.append(f"{at} calls backward() on {loss}, which is computed of it")
    return Finding(
        kind=KIND,
        severity="warning",
        ranks=ranks,
        headline=(
            f"{name_ranks(ranks)} {verb} a gradient in {first.name}{place}: the loss uses "
            f"{output}, which has none"
        ),
        blocks=(CallBlock(ranks, first, tuple(notes)),),
        facts=(
            ("gradient", "none came to the input of the call, nor to what it is computed of"),
        ),
        hint=(
            "gather with a function that has a backward, such as one of "
            "torch.distributed.nn.functional, or put the rank's own tensor back into "
            f"{output}; if no gradient is meant, give the call a detached tensor"
        ),
    )


class LossFollower(Follower):
    """Looks for `backward()` of something that is computed of the value."""

    def method(self, name: str) -> bool:
        return name not in _CUTS or name in _TENSOR_METHODS

    def function(self, call: ast.Call) -> bool:
        return name_of(call.func) not in _CUTS

    def compared(self, node: ast.Compare | ast.BoolOp) -> bool:
        return isinstance(node, ast.BoolOp) and self.any_of(*node.values)

    def is_muted(self, block: ast.With | ast.AsyncWith) -> bool:
        made = (each.context_expr for each in block.items)
        names = {name_of(each.func) for each in made if isinstance(each, ast.Call)}
        return bool(names & {"no_grad", "inference_mode"})

    def look_at(self, call: ast.Call) -> None:
        function, name = call.func, name_of(call.func)
        if name == "backward" and isinstance(function, ast.Attribute):
            for given in (function.value, *call.args[:1]):
                if self.any_of(given):
                    self.found(call, given)
        elif name == "grad" and call.args and "autograd" in ast.unparse(function):
            if self.any_of(call.args[0]):
                self.found(call, call.args[0])
        elif name in _JOINS and isinstance(function, ast.Attribute):
            key = key_of(function.value)
            if key is not None and self.any_of(*call.args):
                self.names.add(key)
