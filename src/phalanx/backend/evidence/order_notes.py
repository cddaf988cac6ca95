"""Crossed order: collectives of one shape that ranks call in different orders.

`note` is called for some calls of each group, the same ones on every rank; `look` when a group
or the run has ended. Deciding is done in `checks/crossed_order.py`.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable
from typing import Any, Literal

from torch import Tensor

from phalanx.backend.evidence import source_text
from phalanx.backend.evidence.frame_reader import Reading, read_frames
from phalanx.backend.torch_private.private_names import frame_of_program
from phalanx.callsite import resolve
from phalanx.checks import registry
from phalanx.checks.crossed_order import (
    Crossing,
    Level,
    Part,
    Source,
    Trace,
    find_crossing,
    find_other_part,
)
from phalanx.journal.events import REDUCE_OPS, GroupRecord
from phalanx.journal.reader import Journal
from phalanx.matching.slots import Call
from phalanx.model import CallBlock, Finding, Op, Site, Verdict
from phalanx.report.layout import rank_list

KIND: Literal["crossed-order"] = "crossed-order"
PERIOD = 4096
"""Of so many calls on a group the first `session.watched` are noted. A power of two."""
LEVELS = 3
LONGEST_TRAIL = 1024
DULL = 32
"""After how many calls, by all ranks, of one place that tell nothing new."""
MOST_SHOWN = 3
LONGEST_LABEL = 28

_SOURCE = Source(source_text.together, source_text.expression, source_text.picks)


class OrderNotes:
    """What was noted on one group: a trail for each member; and places that told the same
    again and again, with how often: they are left alone for the rest of a period."""

    __slots__ = ("dull", "parts", "trails")

    def __init__(self, size: int) -> None:
        self.trails: list[list[Any]] = [[] for _ in range(size)]
        self.parts: list[dict[int, Part]] = [{} for _ in range(size)]
        self.dull: dict[tuple[int, int], list[Any]] = {}


def note(call: Call) -> None:
    """Remember what the user's frames say about this call."""
    tensor = _tensor_of(call)
    mark = call.mark
    if tensor is None or mark is None:
        return
    notes = call.mailbox.record.evidence.get(KIND)
    if notes is None:
        notes = call.mailbox.record.evidence[KIND] = OrderNotes(call.mailbox.size)
    frame, module = frame_of_program(sys._getframe(1))
    if module is not None:
        parts = notes.parts[call.member]
        if len(parts) < LONGEST_TRAIL:
            parts[call.number] = Part(module, call.name, mark)  # type: ignore[index]
    place = (id(mark[0]), mark[1])
    seen = notes.dull.get(place)
    if seen is not None and seen[1] >= DULL and seen[2] == call.number // PERIOD:  # type: ignore[operator]
        return
    trail = notes.trails[call.member]
    if len(trail) < LONGEST_TRAIL:
        what = (call.name, None if call.op is None else call.op[0], call.root)
        frames = read_frames(frame, tensor, most=LEVELS)
        trail.append((call.number, what, frames))
        _find_dull(notes, place, call.number // PERIOD, frames)  # type: ignore[operator]


def _find_dull(
    notes: OrderNotes, place: tuple[int, int], period: int, frames: tuple[Reading, ...]
) -> None:
    telling: list[Any] = []
    for code, offset, names, loop, _, _ in frames:
        if names:
            telling.append((code, offset, names))
        for _, value in loop:
            if type(value) is str:
                telling.append(value)
    seen = notes.dull.get(place)
    if seen is None or seen[0] != telling or seen[2] != period:
        notes.dull[place] = [telling, 0, period]
    else:
        seen[1] += 1


def look(group: GroupRecord) -> list[Verdict]:
    """What was noted on a group, judged and forgotten."""
    notes: OrderNotes | None = group.evidence.pop(KIND, None)
    if notes is None:
        return []
    if any(notes.parts):
        other = find_other_part(dict(zip(group.ranks, notes.parts, strict=False)))
        if other is not None:
            return [_other_module(group, *other)]
    if all(trail == notes.trails[0] for trail in notes.trails):
        return []
    common = set.intersection(*({noted[0] for noted in trail} for trail in notes.trails))
    trails = [[noted for noted in trail if noted[0] in common] for trail in notes.trails]
    if all(trail == trails[0] for trail in trails):
        return []
    by_rank = {
        rank: [_trace(*noted) for noted in trail]
        for rank, trail in zip(group.ranks, trails, strict=True)
    }
    crossing = find_crossing(by_rank, _SOURCE)
    return [] if crossing is None else [_finding(group, crossing)]


def _other_module(group: GroupRecord, number: int, parts: list[Any]) -> Finding:
    (usual, ranks), (other, others), *_ = parts
    return Finding(
        kind=KIND,
        severity="warning",
        ranks=tuple(others) if 2 * len(ranks) > len(group.ranks) else (),
        headline=(
            f"{rank_list(others, width=24)} called {other.name} for FSDP's "
            f"{_module(other)} where {rank_list(ranks, width=24)} called it for "
            f"{_module(usual)}"
        ),
        blocks=tuple(
            CallBlock(
                tuple(each),
                _op(group, each[0], number, (part.name, None, None), resolve(part.place)),
                (f"for {_module(part)}",),
                "" if part is usual else "<- crossed",
            )
            for part, each in parts
        ),
        facts=(("rule", "ranks that share a module's parameters must use it all at once"),),
    )


def _module(part: Part) -> str:
    return f'module "{_short(part.part)}"' if part.part else "whole model"


def find_crossed_order(journal: Journal, host: object) -> Iterable[Verdict]:
    return [each for group in journal.groups for each in look(group)]


registry.AT_END[KIND] = find_crossed_order


def _tensor_of(call: Call) -> Any:
    """The tensor by which the program would name this call."""
    for given in (call.inputs, call.outputs):
        if given and isinstance(given[0], Tensor):
            return given[0]
    return None


def _trace(number: int, what: Any, frames: tuple[Reading, ...]) -> Trace:
    levels = tuple(
        Level((code, offset), names, loop, swept, tied)
        for code, offset, names, loop, swept, tied in frames
    )
    return Trace(number, what, levels)


def _finding(group: GroupRecord, crossing: Crossing) -> Finding:
    """What each side had in each call, in the order of the calls."""
    turned = (*crossing.labels[1:], crossing.labels[0])
    rows = sorted(
        zip(crossing.pairs, crossing.labels, turned, strict=True),
        key=lambda row: row[0].number,
    )
    ranks, others = crossing.ranks, crossing.others
    blocks = []
    for pair, label, theirs in rows[:MOST_SHOWN]:
        for who, place, level, mine, mark in (
            (ranks, pair.places[0], pair.one, label, ""),
            (others, pair.places[1], pair.other, theirs, "<- crossed"),
        ):
            op = _op(group, who[0], pair.number, crossing.what, resolve(place))
            notes = [f"with {mine}"]
            if level.place != place:
                notes.append(f"by way of {resolve(level.place)}")
            blocks.append(CallBlock(who, op, tuple(notes), mark))
    return Finding(
        kind=KIND,
        severity="warning",
        ranks=others if len(others) < len(ranks) else (),
        headline=(
            f"{rank_list(others, width=24)} called {crossing.what[0]} with "
            f"{_in_order([row[2] for row in rows])}; {rank_list(ranks, width=24)} "
            f"{'the other way round' if len(rows) == 2 else 'in another order'}"
        ),
        blocks=tuple(blocks),
        hint=_hint(crossing, resolve(rows[0][0].one.place)),
    )


def _op(group: GroupRecord, rank: int, number: int, what: Any, site: Site | None) -> Op:
    name, code, root = what
    return Op(
        rank=rank,
        name=name,
        group=group.as_group(),
        number=number,
        root=None if root is None else group.ranks[root],
        reduce_op=None if code is None else REDUCE_OPS[code],
        site=site,
    )


def _in_order(labels: list[str]) -> str:
    shown = ", then ".join(map(_short, labels[:2]))
    return shown if len(labels) == 2 else f"{shown}, ..."


def _short(label: str) -> str:
    """Long names differ at their ends, if anywhere; the blocks have them whole."""
    return label if len(label) <= LONGEST_LABEL else f"{label[:8]}...{label[-16:]}"


def _hint(crossing: Crossing, site: Site | None) -> str:
    others = rank_list(crossing.others)
    if crossing.in_loop:
        return (
            f"the loop around {site} goes another way on {others}: "
            "go through it in one order on all ranks, e.g. over sorted(...)"
        )
    return f"{others} came to these calls in another order: all ranks must call them in one"
