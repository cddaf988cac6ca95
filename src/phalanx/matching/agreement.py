"""Compare the ops that meet in one slot, or a send with its receive.

Used by the backend when the last member arrives, and when nobody can move any more and a slot
is only partly filled. Says what differs and, by majority, who; it must never render text for
the reader beyond the hint, and never judge one rank's arguments on their own.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Hashable, Sequence
from dataclasses import replace

from phalanx.matching.agreement_rules import (
    FITS_EVERYONE,
    RULES,
    Column,
    compare,
    count_elements,
    is_standalone,
    payload,
    rule_for,
)
from phalanx.matching.hints import LINES_HINT, hint_mismatch, name_ranks
from phalanx.model import CallBlock, Finding, Group, Meeting, Mismatch, Op, OpBlock, Site

__all__ = ["RULES", "find_mismatch", "find_pair_mismatch", "find_reshaped"]

_Key = tuple[Hashable, ...]


_LAYOUT_HINT = (
    "the backend takes memory as it lies there, and would mix up the elements; "
    "pass c = tensor.contiguous(), then tensor.copy_(c)"
)


def find_mismatch(meeting: Meeting) -> Mismatch | None:
    """What the ops of a slot disagree in, or None. Members that are missing do not vote.

    >>> world = Group("world", (0, 1))
    >>> ops = (Op(0, "barrier", world, 0), Op(1, "broadcast", world, 0, root=0))
    >>> find_mismatch(Meeting(world, 0, ops)).differs
    ('operation',)
    """
    if len(meeting.ops) < 2 or _is_uniform(meeting.ops):
        return None
    ops = _in_group_order(meeting.ops, meeting.group)
    columns = _differing_columns(ops, meeting.group)
    if not columns:
        return None
    keys: list[_Key] = list(zip(*columns.values(), strict=True))
    blocks = _build_blocks(ops, keys, shapes_matter="shape" in columns)
    arrived = {op.rank for op in ops}
    differs = tuple(columns)
    lines = _lines_of_last(meeting)
    return Mismatch(
        kind="mismatch",
        severity="error",
        ranks=tuple(sorted(rank for block in blocks if block.odd for rank in block.ranks)),
        group=meeting.group,
        number=meeting.number,
        blocks=blocks,
        differs=differs,
        agreed=_last_shared(meeting),
        from_lines=lines,
        missing=tuple(sorted(rank for rank in meeting.group.ranks if rank not in arrived)),
        hint=_LAYOUT_HINT
        if differs == ("memory layout",)
        else hint_mismatch(meeting, ops, blocks=blocks, differs=differs)
        or (LINES_HINT if lines else None),
    )


_ONE_SHAPE = frozenset({"all_reduce", "broadcast", "reduce"})
"""Operations that pair the elements of one tensor of each rank."""


def find_reshaped(meeting: Meeting) -> Finding | None:
    """Ops that agree in the number of elements and not in the shape: backends pair elements as
    they lie in memory, so a transposed tensor gets another one's. Dimensions of size 1 make no
    difference, and a flat tensor fits all.

    >>> from phalanx.model import TensorSpec
    >>> world = Group("world", (0, 1))
    >>> shapes = [(2, 3), (3, 2)]
    >>> ops = [
    ...     Op(rank, "all_reduce", world, 0, inputs=(TensorSpec("float32", shape),))
    ...     for rank, shape in enumerate(shapes)
    ... ]
    >>> find_reshaped(Meeting(world, 0, tuple(ops))).headline
    'rank 1 passed float32[3, 2] where rank 0 passed float32[2, 3] to all_reduce'
    """
    if meeting.ops[0].name not in _ONE_SHAPE:
        return None
    shaped: dict[tuple[int, ...], list[Op]] = {}
    for op in _in_group_order(meeting.ops, meeting.group):
        specs = payload(op)
        shape = tuple(size for size in specs[0].shape if size != 1) if len(specs) == 1 else ()
        if len(shape) > 1 and 0 not in shape:
            shaped.setdefault(shape, []).append(op)
    if len(shaped) < 2:
        return None
    most, *others = sorted(shaped.values(), key=lambda ops: -len(ops))
    odd = [op for ops in others for op in ops]
    is_known = 2 * len(most) > sum(map(len, shaped.values()))
    mark = "<- differs" if is_known else ""
    return Finding(
        kind="mismatch",
        severity="warning",
        ranks=tuple(sorted(op.rank for op in odd)) if is_known else (),
        headline=(f"{_passed(others[0])} where {_passed(most)} to {most[0].name}"),
        blocks=tuple(
            CallBlock(tuple(op.rank for op in ops), ops[0], (), "" if ops is most else mark)
            for ops in (most, *others)
        ),
        facts=(("rule", "elements are paired as they lie in memory, whatever the shape"),),
        hint=(
            "if one of them is transposed, its elements meet others than are meant: give all "
            "ranks one shape, or t.view(-1) where the order is meant"
        ),
    )


def _passed(ops: Sequence[Op]) -> str:
    return f"{name_ranks(op.rank for op in ops)} passed {payload(ops[0])[0]}"


def find_pair_mismatch(send: Op, recv: Op) -> Mismatch | None:
    """What a send and the receive that takes it disagree in: dtype, number of elements.

    >>> from phalanx.model import TensorSpec
    >>> world = Group("world", (0, 1))
    >>> send = Op(0, "send", world, peer=1, tag=0, inputs=(TensorSpec("float32", (4,)),))
    >>> recv = Op(1, "recv", world, peer=0, tag=0, outputs=(TensorSpec("float32", (3,)),))
    >>> find_pair_mismatch(send, recv).differs
    ('shape',)
    """
    sent, room = payload(send), payload(recv)
    differs = []
    if [spec.dtype for spec in sent] != [spec.dtype for spec in room]:
        differs.append("dtype")
    if list(map(count_elements, sent)) != list(map(count_elements, room)):
        differs.append("shape")
    if not differs:
        return None
    return Mismatch(
        kind="mismatch",
        severity="error",
        ranks=(),
        group=send.group,
        number=None,
        blocks=(OpBlock((send.rank,), send), OpBlock((recv.rank,), recv)),
        differs=tuple(differs),
    )


def _is_uniform(ops: Sequence[Op]) -> bool:
    """The usual case, decided without building anything: every rank gave the same arguments."""
    first = ops[0]
    if not is_standalone(rule_for(first.name)):
        return False
    name, root, reduce_op = first.name, first.root, first.reduce_op
    inputs, outputs = first.inputs, first.outputs
    return all(
        op.name == name
        and op.root == root
        and op.reduce_op == reduce_op
        and op.inputs == inputs
        and op.outputs == outputs
        for op in ops
    )


def _in_group_order(ops: Sequence[Op], group: Group) -> list[Op]:
    position = {rank: at for at, rank in enumerate(group.ranks)}
    return sorted(ops, key=lambda op: position[op.rank])


def _differing_columns(ops: Sequence[Op], group: Group) -> dict[str, Column]:
    """The fields that differ. What only follows from a field that differs is not compared:
    other operations have other arguments, other roots other lists."""
    names: Column = [op.name for op in ops]
    if len(set(names)) > 1:
        return {"operation": names}
    rule = rule_for(ops[0].name)
    columns: dict[str, Column] = {}
    for field in rule.agree:
        if field in ("dtype", "shape") and "number of tensors" in columns:
            continue
        if field == "shape" and "root" in columns and not is_standalone(rule):
            continue
        if field == "memory layout" and columns:
            continue
        column = compare(field, ops, group)
        if len(set(column)) > 1:
            columns[field] = column
    return columns


def _majority(keys: Sequence[_Key]) -> _Key | None:
    """What more than half of the ops share, or what needs no vote."""
    if (FITS_EVERYONE,) in keys:
        return (FITS_EVERYONE,)
    key, votes = Counter(keys).most_common(1)[0]
    return key if 2 * votes > len(keys) else None


def _build_blocks(
    ops: Sequence[Op], keys: Sequence[_Key], *, shapes_matter: bool
) -> tuple[OpBlock, ...]:
    majority = _majority(keys)
    gathered: dict[Hashable, list[Op]] = {}
    odd: dict[Hashable, bool] = {}
    for op, key in zip(ops, keys, strict=True):
        shown = payload(op) if shapes_matter and is_standalone(rule_for(op.name)) else None
        same = (key, op.site, shown)
        gathered.setdefault(same, []).append(op)
        odd[same] = majority is not None and key != majority
    blocks = [
        OpBlock(tuple(sorted(op.rank for op in alike)), _common_op(alike), odd[same])
        for same, alike in gathered.items()
    ]
    blocks.sort(key=lambda block: (block.odd, -len(block.ranks), block.ranks))
    return tuple(blocks)


def _common_op(ops: Sequence[Op]) -> Op:
    """The op of the lowest rank, less the values that not all of `ops` share: a block must
    not show one rank's tensors as those of all."""
    first = min(ops, key=lambda op: op.rank)
    if any(op.root != first.root for op in ops):
        first = replace(first, root=None)
    if any(op.reduce_op != first.reduce_op for op in ops):
        first = replace(first, reduce_op=None)
    if any(op.inputs != first.inputs or op.outputs != first.outputs for op in ops):
        first = replace(first, inputs=(), outputs=())
    if any(
        op.input_splits != first.input_splits or op.output_splits != first.output_splits
        for op in ops
    ):
        first = replace(first, input_splits=(), output_splits=())
    return first


def _last_shared(meeting: Meeting) -> Op | None:
    for rank in sorted(meeting.history):
        for op in reversed(meeting.history[rank]):
            if op.number is not None and op.number < meeting.number:
                return op
    return None


def _lines_of_last(meeting: Meeting) -> tuple[tuple[tuple[int, ...], Site], ...]:
    """From where the ranks called what they shared last, if not all from one line: calls may
    have met that were not meant for each other."""
    lines: dict[Site, list[int]] = {}
    for rank, past in meeting.history.items():
        for op in past:
            if op.number == meeting.number - 1 and op.site is not None:
                lines.setdefault(op.site, []).append(rank)
    if len(lines) < 2:
        return ()
    told = [(tuple(sorted(ranks)), site) for site, ranks in lines.items()]
    return tuple(sorted(told, key=lambda each: each[0]))
