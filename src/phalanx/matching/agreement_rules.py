"""What must agree when the ops of one collective meet, as a table.

Used by `agreement.py`, which compares ops, and by the engines, which give each call a signature
so that most need not be compared. A rule names the fields to compare; each field has a
function that gives one value per op, such that the ops agree exactly when all those values are
equal. Most values stand alone (a dtype, a root). Some relate one rank's list to another rank's
tensor; those give FITS to every op that fits, so that a vote over the values still finds the
odd one, or FITS_EVERYONE where the op has been held against each other one and needs no vote.

A rule must never call a legal program wrong. Hence shapes count by number of elements (the
backends move bytes), and what is wrong within one rank's own arguments is not judged here.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass
from math import prod
from types import MappingProxyType
from typing import NamedTuple

from phalanx.model import Group, Op, TensorSpec

Column = list[Hashable]
Compare = Callable[[Sequence[Op], Group], Column]
Row = tuple[int, ...]

FITS = "fits"
FITS_EVERYONE = "fits everyone"


@dataclass(frozen=True)
class Rule:
    """`agree` are the fields to compare, in the order to report; `shape` says how sizes fit."""

    agree: tuple[str, ...]
    shape: Compare


def rule_for(name: str) -> Rule:
    """The rule of an op. One that is not in the table must agree in name and root only."""
    return RULES.get(name, _UNKNOWN)


def is_standalone(rule: Rule) -> bool:
    """Whether ops with equal arguments always agree under this rule."""
    return rule.shape is by_count


def compare(field: str, ops: Sequence[Op], group: Group) -> Column:
    """One value per op for a field; `ops` all have the same name and follow group order."""
    if field == "shape":
        return rule_for(ops[0].name).shape(ops, group)
    return _FIELDS[field](ops, group)


def count_elements(spec: TensorSpec) -> int:
    return prod(spec.shape)


def payload(op: Op) -> tuple[TensorSpec, ...]:
    """The tensors whose size all ranks must share, for ops that have such a thing."""
    return op.inputs or op.outputs


def by_count(ops: Sequence[Op], group: Group) -> Column:
    """Every rank brings the same number of elements, tensor by tensor."""
    return [tuple(map(count_elements, payload(op))) for op in ops]


def by_layout(ops: Sequence[Op], group: Group) -> Column:
    """Backends take memory as it lies there: elements in another order get mixed up."""
    written = ops[0].name in _WRITTEN_AS_THEY_LIE
    sides = [op.outputs if written else op.inputs for op in ops]
    return [tuple(spec.strides for spec in side) for side in sides]


def by_slot(ops: Sequence[Op], group: Group) -> Column:
    """Rank i's input fills slot i of every rank's list. Lists may be uneven, but are alike."""
    position = _positions(group)
    column: Column = []
    slots: Row = ()
    last: tuple[TensorSpec, ...] | None = None
    for op in ops:
        if op.outputs is not last and op.outputs != last:
            last, slots = op.outputs, tuple(map(count_elements, op.outputs))
        own = position[op.rank]
        given = count_elements(op.inputs[0]) if op.inputs else None
        fits = given is None or own >= len(slots) or slots[own] == given
        column.append((slots, FITS if fits else given))
    return column


def to_root(ops: Sequence[Op], group: Group) -> Column:
    """Rank i's input fills slot i of the root's list; only the root has one."""
    return _against_root(ops, group, [op.inputs for op in ops], _root_list(ops, "outputs"))


def from_root(ops: Sequence[Op], group: Group) -> Column:
    """Slot i of the root's list fills rank i's output; only the root has a list."""
    return _against_root(ops, group, [op.outputs for op in ops], _root_list(ops, "inputs"))


def by_pair(ops: Sequence[Op], group: Group) -> Column:
    """What rank i sends to rank j is what rank j expects from rank i, list by list."""
    sent = [tuple(map(count_elements, op.inputs)) for op in ops]
    expected = [tuple(map(count_elements, op.outputs)) for op in ops]
    return _blame(crossed_pairs(ops, group, sent, expected), sent, expected)


def by_splits(ops: Sequence[Op], group: Group) -> Column:
    """Input splits, in rows, are the transpose of output splits."""
    if _are_even_and_alike(ops):
        return [FITS] * len(ops)
    sent, expected = split_rows(ops, group)
    pairs = crossed_pairs(ops, group, sent, expected)
    if pairs and not _wrong_elements(ops, group):
        pairs = []
    return _blame(pairs, sent, expected)


def by_row_size(ops: Sequence[Op], group: Group) -> Column:
    """The splits fit in rows, so rows must be of one size. Silent where the splits do not fit.

    Rows of another size that still add up to the same elements are legal: only elements move.
    """
    sizes: Column = [(_row_size(op.inputs), _row_size(op.outputs)) for op in ops]
    if len(set(sizes)) == 1 and _row_size(ops[0].inputs) == _row_size(ops[0].outputs):
        return [FITS] * len(ops)
    if crossed_pairs(ops, group, *split_rows(ops, group)) or not _wrong_elements(ops, group):
        return [FITS] * len(ops)
    return sizes


def split_rows(ops: Sequence[Op], group: Group) -> tuple[list[Row], list[Row]]:
    """For each op the rows it sends to, and expects from, each member."""
    size = len(group.ranks)
    return (
        [_rows(op.input_splits, op.inputs, size) for op in ops],
        [_rows(op.output_splits, op.outputs, size) for op in ops],
    )


def crossed_pairs(
    ops: Sequence[Op], group: Group, sent: Sequence[Row], expected: Sequence[Row]
) -> list[tuple[int, int]]:
    """Pairs (i, j) of places in `ops` where i sends j another amount than j expects."""
    size = len(group.ranks)
    sent = [row if len(row) == size else (-1,) * size for row in sent]
    expected = [row if len(row) == size else (-2,) * size for row in expected]
    if len(ops) < size:
        position = _positions(group)
        here = [position[op.rank] for op in ops]
        sent = [tuple(row[at] for at in here) for row in sent]
        expected = [tuple(row[at] for at in here) for row in expected]
    pairs = []
    for i, wanted in enumerate(zip(*expected, strict=True)):
        if wanted != sent[i]:
            pairs += [(i, j) for j, rows in enumerate(wanted) if rows != sent[i][j]]
    return pairs


def _positions(group: Group) -> dict[int, int]:
    return {rank: at for at, rank in enumerate(group.ranks)}


def _root_list(ops: Sequence[Op], side: str) -> tuple[TensorSpec, ...]:
    for op in ops:
        if op.rank == op.root:
            specs: tuple[TensorSpec, ...] = getattr(op, side)
            return specs
    return ()


def _against_root(
    ops: Sequence[Op],
    group: Group,
    own: Sequence[tuple[TensorSpec, ...]],
    slots: tuple[TensorSpec, ...],
) -> Column:
    position = _positions(group)
    column: Column = []
    for op, specs in zip(ops, own, strict=True):
        at = position[op.rank]
        given = count_elements(specs[0]) if specs else None
        known = given is not None and at < len(slots)
        column.append(given if known and given != count_elements(slots[at]) else FITS)
    return column


def _blame(
    pairs: list[tuple[int, int]], sent: Sequence[Row], expected: Sequence[Row]
) -> Column:
    """FITS_EVERYONE for all but the one rank that is part of every bad pair, or for all but
    the ranks of the bad pairs where no single one explains them."""
    column: Column = [FITS_EVERYONE] * len(sent)
    if not pairs:
        return column
    common = set(pairs[0]).intersection(*pairs)
    for at in common if len(common) == 1 else set().union(*pairs):
        column[at] = (at, sent[at], expected[at])
    return column


def _rows(splits: Row, specs: tuple[TensorSpec, ...], size: int) -> Row:
    if splits or not specs:
        return splits
    rows = specs[0].shape[0] if specs[0].shape else 1
    return (rows // size,) * size


def _row_size(specs: tuple[TensorSpec, ...]) -> int:
    return prod(specs[0].shape[1:]) if specs else 0


def _wrong_elements(ops: Sequence[Op], group: Group) -> bool:
    sent, expected = split_rows(ops, group)
    sent = [_scaled(row, _row_size(op.inputs)) for op, row in zip(ops, sent, strict=True)]
    expected = [
        _scaled(row, _row_size(op.outputs)) for op, row in zip(ops, expected, strict=True)
    ]
    return bool(crossed_pairs(ops, group, sent, expected))


def _scaled(row: Row, factor: int) -> Row:
    return tuple(rows * factor for rows in row)


def _are_even_and_alike(ops: Sequence[Op]) -> bool:
    first = ops[0]
    if not first.inputs or first.inputs != first.outputs:
        return False
    return all(
        not op.input_splits
        and not op.output_splits
        and op.inputs == first.inputs
        and op.outputs == first.outputs
        for op in ops
    )


def _dtypes(op: Op) -> Hashable:
    kinds = [spec.dtype for spec in payload(op)]
    return kinds[0] if len(set(kinds)) == 1 else tuple(kinds)


def _device_types(op: Op) -> Hashable:
    return tuple(sorted({spec.device.partition(":")[0] for spec in payload(op)}))


_FIELDS: Mapping[str, Compare] = MappingProxyType(
    {
        "operation": lambda ops, group: [op.name for op in ops],
        "root": lambda ops, group: [op.root for op in ops],
        "reduce op": lambda ops, group: [op.reduce_op for op in ops],
        "dtype": lambda ops, group: [_dtypes(op) for op in ops],
        "device type": lambda ops, group: [_device_types(op) for op in ops],
        "number of tensors": lambda ops, group: [
            max(len(op.inputs), len(op.outputs)) for op in ops
        ],
        "splits": by_splits,
        "memory layout": by_layout,
    }
)

_LAYOUT = ("memory layout",)
_WRITTEN_AS_THEY_LIE = frozenset({"scatter", "reduce_scatter"})
_UNKNOWN = Rule(("operation", "root"), by_count)
_TENSOR = ("dtype", "shape", "device type")
_LIST = ("number of tensors", *_TENSOR)

RULES: Mapping[str, Rule] = MappingProxyType(
    {
        "broadcast": Rule(("operation", "root", *_TENSOR, *_LAYOUT), by_count),
        "all_reduce": Rule(("operation", "reduce op", *_LIST, *_LAYOUT), by_count),
        "reduce": Rule(("operation", "root", "reduce op", *_TENSOR, *_LAYOUT), by_count),
        "all_gather": Rule(("operation", *_LIST), by_slot),
        "all_gather_into_tensor": Rule(("operation", *_TENSOR), by_count),
        "gather": Rule(("operation", "root", *_TENSOR), to_root),
        "scatter": Rule(("operation", "root", *_TENSOR, *_LAYOUT), from_root),
        "reduce_scatter": Rule(("operation", "reduce op", *_LIST, *_LAYOUT), by_count),
        "reduce_scatter_tensor": Rule(("operation", "reduce op", *_TENSOR, *_LAYOUT), by_count),
        "all_to_all": Rule(("operation", *_LIST), by_pair),
        "all_to_all_single": Rule(("operation", "splits", *_TENSOR, *_LAYOUT), by_row_size),
        "barrier": Rule(("operation",), by_count),
        "monitored_barrier": Rule(("operation",), by_count),
        "all_reduce_coalesced": Rule(("operation", "reduce op", *_LIST), by_count),
        "all_gather_coalesced": Rule(("operation", *_LIST), by_count),
        "all_gather_into_tensor_coalesced": Rule(("operation", *_LIST), by_count),
        "reduce_scatter_tensor_coalesced": Rule(
            ("operation", "reduce op", *_LIST, *_LAYOUT), by_count
        ),
        "send": Rule(("dtype", "shape"), by_count),
        "recv": Rule(("dtype", "shape"), by_count),
    }
)


class SignedFacts(NamedTuple):
    """Which facts of a call make up its signature: equal signatures, and the calls agree.

    `tensors` names the side ("inputs", "outputs" or neither) whose dtypes, shapes and devices
    count, `layout` that whose order in memory does. Some rules relate one rank's list to
    another's tensor; such a call has a signature only if all its tensors are of one shape
    (`even`).
    """

    root: bool
    reduce_op: bool
    tensors: str
    layout: str
    even: bool


def signed_facts(name: str) -> SignedFacts:
    """What follows from the rule of an op.

    >>> signed_facts("broadcast")
    SignedFacts(root=True, reduce_op=False, tensors='inputs', layout='inputs', even=False)
    """
    rule = rule_for(name)
    written = "outputs" if name in _WRITTEN_AS_THEY_LIE else "inputs"
    tensors = "outputs" if rule.shape is from_root else "inputs"
    return SignedFacts(
        root="root" in rule.agree,
        reduce_op="reduce op" in rule.agree,
        tensors=tensors if "shape" in rule.agree else "",
        layout=written if "memory layout" in rule.agree else "",
        even=rule.shape in (by_slot, by_pair, by_row_size),
    )
