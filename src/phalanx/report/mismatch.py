"""Render a mismatch: which ranks called what, side by side.

Used by `text`. Must never decide anything: the verdict says who is odd and what differs.
"""

from __future__ import annotations

import re
from dataclasses import replace

from phalanx.model import Mismatch, Op, OpBlock, Site, rank_list
from phalanx.report.calls import (
    call_pieces,
    call_text,
    caller_texts,
    devices_text,
    group_text,
    tensors_text,
)
from phalanx.report.layout import (
    Block,
    compose,
    count,
    cut,
    labelled,
    lay_blocks,
    shorten,
    verb,
)
from phalanx.report.uneven_text import uneven_lines

_HEADLINE_RANKS = 32
_SHOWN_LINES = 4
_OBJECTS = re.compile(r"\b(\w+_object(?:_list|s)?)\(")

# What several ranks did where no two sides can be told apart, by the field that differs.
_DIFFERENTLY = {
    "operation": "called {} different operations",
    "root": "named {} different roots",
    "reduce op": "used {} different reduce ops",
    "dtype": "passed {} different dtypes",
    "shape": "passed {} different shapes",
    "device type": "passed {} different device types",
    "number of tensors": "passed {} different numbers of tensors",
    "memory layout": "passed tensors that lie in memory in {} different ways",
}

_Side = tuple[tuple[int, ...], str]


def render_mismatch(verdict: Mismatch, *, replay: str | None = None) -> str:
    return compose(
        headline_mismatch(verdict),
        uneven_lines(verdict.uneven),
        labelled("group", _where(verdict)),
        lay_blocks(
            shorten([_block(block, verdict) for block in verdict.blocks if not block.odd])
            + shorten([_block(block, verdict) for block in verdict.blocks if block.odd])
        ),
        _findings(verdict),
        labelled("replay", replay, whole=True) if replay else (),
    )


def headline_mismatch(verdict: Mismatch) -> str:
    if verdict.number is None and len(verdict.blocks) == 2:
        return _pair_headline(*verdict.blocks)
    if verdict.unrelated:
        return _places_headline(verdict)
    field = verdict.differs[0]
    # What goes in tells the sides apart, unless they part in what comes out.
    short, long = (
        {_did(field, block.op, whole=whole) for block in verdict.blocks}
        for whole in (False, True)
    )
    whole = len(short) < len(long)
    odd = _sides([block for block in verdict.blocks if block.odd], field, whole=whole)
    usual = _sides([block for block in verdict.blocks if not block.odd], field, whole=whole)
    tail = _tail(verdict, field)
    if field == "splits":
        return _splits_headline(verdict) + tail
    if not odd and len(usual) == 2:
        odd, usual = usual[:1], usual[1:]
    if len(usual) == 1 and 1 <= len(odd) <= 2:
        told = " and ".join(f"{_ranks(ranks)} {did}" for ranks, did in odd)
        return f"{told} where {_ranks(usual[0][0])} {usual[0][1]}{tail}"
    everyone = tuple(rank for block in verdict.blocks for rank in block.ranks)
    if not odd:
        return f"{_ranks(everyone)} {_DIFFERENTLY[field].format(len(usual))}{tail}"
    others = tuple(rank for ranks, _ in usual for rank in ranks)
    disagree = verb(verdict.ranks, "disagrees", "disagree")
    return f"{_ranks(verdict.ranks)} {disagree} with {_ranks(others)} on the {field}{tail}"


def _places_headline(verdict: Mismatch) -> str:
    """Of calls that were not meant to meet: what they differ in says nothing."""
    sides: dict[tuple[str, Site | None], list[int]] = {}
    for block in verdict.blocks[::-1]:
        sides.setdefault((block.op.name, block.op.site), []).extend(block.ranks)
    (one, place), (other, there) = sides
    few, many = sides.values()
    name = "it" if other == one else other
    is_near = place and there and place.file == there.file
    where = f"line {there.line}" if there and is_near else str(there)
    return (
        f"{_ranks(few)} called {one} at {place} where {_ranks(many)} called {name} at {where}"
    )


def _pair_headline(send: OpBlock, recv: OpBlock) -> str:
    return (
        f"{_ranks(send.ranks)} sent {tensors_text(send.op)} "
        f"where {_ranks(recv.ranks)} receives {tensors_text(recv.op)}"
    )


def _splits_headline(verdict: Mismatch) -> str:
    others = [rank for block in verdict.blocks if not block.odd for rank in block.ranks]
    if len(verdict.ranks) == 1:
        return f"{_ranks(verdict.ranks)} gave splits that do not fit those of {_ranks(others)}"
    everyone = verdict.ranks or others
    return f"{_ranks(everyone)} gave splits that do not fit each other"


def _sides(blocks: list[OpBlock], field: str, *, whole: bool) -> list[_Side]:
    """Blocks that differ only in their line are one side of the disagreement."""
    sides: dict[str, tuple[int, ...]] = {}
    for block in blocks:
        did = _did(field, block.op, whole=whole)
        sides[did] = (*sides.get(did, ()), *block.ranks)
    return [(ranks, did) for did, ranks in sides.items()]


def _did(field: str, op: Op, *, whole: bool = True) -> str:
    if field == "operation":
        return f"called {op.name}"
    if field == "root":
        return f"named root {op.root}"
    if field == "reduce op":
        return f"used {op.reduce_op}"
    if field == "dtype":
        return f"passed {_dtypes(op)}"
    if field == "device type":
        return f"passed {devices_text(op) or 'another device'}"
    if field == "number of tensors":
        return f"passed {count(max(len(op.inputs), len(op.outputs)), 'tensor')}"
    return f"passed {cut(_tensors(op, whole), 32) or 'tensors that fit each other'}"


def _tensors(op: Op, whole: bool) -> str:
    return tensors_text(op if whole else replace(op, outputs=() if op.inputs else op.outputs))


def _dtypes(op: Op) -> str:
    kinds = [spec.dtype for spec in (op.inputs or op.outputs)]
    return cut(", ".join(dict.fromkeys(kinds)), 32) or "another dtype"


def _tail(verdict: Mismatch, field: str) -> str:
    name = verdict.blocks[0].op.name
    if field == "operation":
        return ""
    return f" to {name}" if field not in ("root", "reduce op", "splits") else f" in {name}"


def _ranks(ranks: tuple[int, ...] | list[int]) -> str:
    return rank_list(ranks, width=_HEADLINE_RANKS)


def _where(verdict: Mismatch) -> str:
    text = group_text(verdict.group)
    return text if verdict.number is None else f"{text}, call #{verdict.number} on this group"


def _block(block: OpBlock, verdict: Mismatch) -> Block:
    return Block(
        ranks=block.ranks,
        pieces=call_pieces(block.op),
        site=block.op.site,
        notes=(*caller_texts(verdict, block.ranks, block.op.site), *_inside(block.op)),
        mark="<- differs" if block.odd else "",
    )


def _inside(op: Op) -> tuple[str, ...]:
    """The line calls something that is made of calls: objects travel as sizes and bytes."""
    source = op.site.source if op.site is not None else ""
    found = _OBJECTS.search(source)
    if found is None or op.name in source.replace(found[1], ""):
        return ()
    sizes = any(spec.dtype == "int64" for spec in (*op.inputs, *op.outputs))
    what = "the sizes of its pickled objects" if sizes else "its pickled objects"
    return (f"inside {found[1]}: {what}",)


def _findings(verdict: Mismatch) -> list[str]:
    # What calls differ in that were not meant to meet says nothing: only who is odd does.
    is_odd = any(block.odd for block in verdict.blocks)
    lines = [] if verdict.unrelated and is_odd else labelled("differs", _differs(verdict))
    if verdict.number is not None:
        lines += labelled("agreed", _agreed(verdict))
    if verdict.missing:
        has = verb(verdict.missing, "has", "have")
        lines += labelled("missing", f"{rank_list(verdict.missing)} {has} not arrived")
    if verdict.parted:
        lines += labelled("parted", verdict.parted)
    if verdict.hint:
        lines += labelled("hint", verdict.hint)
    return lines


def _differs(verdict: Mismatch) -> str:
    text = ", ".join(verdict.differs)
    if verdict.number is None or any(block.odd for block in verdict.blocks):
        return text
    return f"{text} (no majority: which ranks are at fault cannot be decided)"


def _agreed(verdict: Mismatch) -> str:
    number, last = verdict.number, verdict.agreed
    if not number:
        return "nothing yet: this is the first call on this group"
    calls = "call #0" if number == 1 else f"calls #0-#{number - 1}"
    if last is None:
        return calls
    was = "it was" if number == 1 else "the last was"
    text = f"{calls}; {was} {call_text(last)}"
    if verdict.from_lines:
        places = [f"{rank_list(ranks)} at {site}" for ranks, site in verdict.from_lines]
        more = f" and {len(places) - _SHOWN_LINES} more" if len(places) > _SHOWN_LINES else ""
        return f"{text}: {', '.join(places[:_SHOWN_LINES])}{more}"
    return text + (f" at {last.site}" if last.site else "")
