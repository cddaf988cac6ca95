"""Render a stall: time ran out, nothing is proved, so show where every rank is.

Used by `text`. Must never call a stall a deadlock.
"""

from __future__ import annotations

from collections.abc import Sequence

from phalanx.callsite import MOST_FRAMES
from phalanx.model import Op, RankView, Site, Stall, ViewBlock, rank_list
from phalanx.report.calls import call_text
from phalanx.report.layout import Block, compose, labelled, lay_blocks, shorten, verb
from phalanx.report.situations import (
    find_fates,
    last_call_text,
    left_text,
    need_text,
    site_of,
    situation_block,
)
from phalanx.shown.folded_stack import fold

_HEADLINE_RANKS = 24
SHOWN_CALLERS = 25
"""So many lines from inside and from outside, of those by which a rank came where it is."""


def render_stall(verdict: Stall, *, replay: str | None = None) -> str:
    fates = find_fates(verdict.blocks)
    blocks = [
        _block(part, verdict.stacks.get(part.ranks[0], ()), fates)
        for block in sorted(verdict.blocks, key=_order)
        for part in _split_by_stack(block, verdict)
    ]
    return compose(
        headline_stall(verdict),
        lay_blocks(shorten(blocks)),
        [line for op in verdict.pending for line in labelled("pending", _pending(op))],
        [
            line
            for ranks, site in verdict.threads
            for line in labelled("thread", _thread(ranks, site))
        ],
        labelled("proof", _proof(verdict)),
        labelled("replay", replay, whole=True) if replay else (),
    )


def headline_stall(verdict: Stall) -> str:
    if verdict.locked:
        return _headline_of_locked(verdict)
    if verdict.awaited:
        return f"no sign of life for {verdict.seconds:g} s; waited for {verdict.awaited}"
    if not all(block.view.traced for block in verdict.blocks):
        return _headline_of_processes(verdict)
    start = _start(verdict)
    for status, one, several in (
        ("outside", "is outside Phalanx's sight", "are outside Phalanx's sight"),
        ("computing", "is computing", "are computing"),
        (
            "lingering",
            "has returned, but not its thread",
            "have returned, but not their threads",
        ),
        ("sleeping", "sleeps", "sleep"),
    ):
        blocks = [block for block in verdict.blocks if block.view.status == status]
        if blocks:
            ranks = tuple(rank for block in blocks for rank in block.ranks)
            who = rank_list(ranks, width=_HEADLINE_RANKS)
            return f"{start}; {who} {verb(ranks, one, several)}{_place(blocks, verdict)}"
    return start


def _start(verdict: Stall) -> str:
    if verdict.over_limit:
        return f"over the limit of {verdict.seconds:g} s"
    return f"no rank moved for {verdict.seconds:g} s" if verdict.seconds else "no rank moves"


def _headline_of_locked(verdict: Stall) -> str:
    start = _start(verdict)
    holding = [block for block in verdict.blocks if block.view.status == "holding"]
    if not holding:
        return f"{start}; code outside Phalanx's sight holds Python's lock"
    ranks = rank_list(verdict.ranks, width=_HEADLINE_RANKS)
    who = f"{ranks} {verb(verdict.ranks, 'holds', 'hold')}"
    return f"{start}; {who} Python's lock{_place(holding, verdict)}"


def _proof(verdict: Stall) -> str:
    if verdict.locked:
        return "none: given more time, the code that holds the lock might have returned"
    if verdict.over_limit or verdict.awaited:
        return "none: given more time, the run might have ended"
    return "none: a rank that is out of sight may still go on"


def _pending(op: Op) -> str:
    place = f" at {op.site}" if op.site is not None else ""
    return f"{call_text(op)} of rank {op.rank}{place}; nothing has met it"


def _thread(ranks: tuple[int, ...], site: Site) -> str:
    source = f": {site.source}" if site.source else ""
    return f"of {rank_list(ranks)} at {site} in {site.function}{source}"


def _headline_of_processes(verdict: Stall) -> str:
    """For ranks that are processes, all that is known is where they are."""
    parts = [_start(verdict)]
    places: dict[str, list[int]] = {}
    for block in verdict.blocks:
        ended = block.view.status in ("finished", "failed")
        for rank in block.ranks:
            site = _site(rank, block.view, verdict)
            gone = left_text(block.view.left, place=False)
            place = gone if ended else f"at {site}" if site else "out of sight"
            places.setdefault(place, []).append(rank)
    for place, ranks in sorted(places.items(), key=lambda item: item[1])[:3]:
        parts.append(f"{rank_list(tuple(ranks), width=_HEADLINE_RANKS)} {place}")
    return "; ".join(parts)


def _place(blocks: Sequence[ViewBlock], verdict: Stall) -> str:
    sites = {str(_site(rank, block.view, verdict)) for block in blocks for rank in block.ranks}
    site = sites.pop() if len(sites) == 1 else "None"
    there = any(b.view.site or verdict.stacks.get(rank) for b in blocks for rank in b.ranks)
    return "" if site == "None" else f" {'at' if there else 'after'} {site}"


def _site(rank: int, view: RankView, verdict: Stall) -> Site | None:
    stack = verdict.stacks.get(rank, ())
    return stack[-1] if stack else site_of(view)


def _order(block: ViewBlock) -> tuple[int, int]:
    """Ranks outside of any call first: the reader must look at these."""
    places = {
        "holding": 0,
        "outside": 0,
        "computing": 1,
        "lingering": 2,
        "ready": 3,
        "sleeping": 4,
    }
    return places.get(block.view.status, 5 + (block.view.status != "waiting")), block.ranks[0]


def _split_by_stack(block: ViewBlock, verdict: Stall) -> list[ViewBlock]:
    parts: dict[tuple[Site, ...], list[int]] = {}
    for rank in block.ranks:
        parts.setdefault(verdict.stacks.get(rank, ()), []).append(rank)
    return [ViewBlock(tuple(ranks), block.view) for ranks in parts.values()]


def _callers(stack: tuple[Site, ...]) -> list[str]:
    """The lines through which a rank came where it is, innermost first."""
    notes = [
        f"called from {each} in {each.function}" if isinstance(each, Site) else str(each)
        for each in fold(reversed(stack[:-1]), ends=SHOWN_CALLERS)
    ]
    return [*notes, "called from further lines"] if len(stack) >= MOST_FRAMES else notes


def _block(block: ViewBlock, stack: tuple[Site, ...], fates: dict[int, str]) -> Block:
    view = block.view
    notes = _callers(stack)
    if view.wait is not None and view.status == "waiting" and view.traced:
        notes.insert(0, need_text(view.wait, fates))
    elif view.last is not None and view.site is None and not stack:
        notes.insert(0, last_call_text(view.last, block.ranks))
    shown = situation_block(block, notes)
    return Block(shown.ranks, shown.pieces, stack[-1] if stack else shown.site, shown.notes)
