"""Render calls that were begun and never answered: a warning at the end of a run.

Used by `text`. Must never call it an error: the program may not have needed the answer.
"""

from __future__ import annotations

from phalanx.model import Unmet, rank_list
from phalanx.report.calls import call_pieces, call_text, is_receive
from phalanx.report.layout import Block, compose, labelled, lay_blocks, shorten

_HEADLINE_RANKS = 24


def render_unmet(verdict: Unmet, *, replay: str | None = None) -> str:
    blocks = [
        Block(block.ranks, call_pieces(block.op, where=True), block.op.site)
        for block in verdict.blocks
    ]
    return compose(
        headline_unmet(verdict),
        lay_blocks(shorten(blocks)),
        [line for text in verdict.near for line in labelled("near", text)],
        [line for text in verdict.notes for line in labelled("note", text)],
        labelled("replay", replay, whole=True) if replay else (),
    )


def headline_unmet(verdict: Unmet) -> str:
    op = verdict.blocks[0].op
    who = rank_list(verdict.ranks, width=_HEADLINE_RANKS)
    others = rank_list(verdict.needs, width=_HEADLINE_RANKS)
    if op.number is not None:
        called = f'{op.name} (call #{op.number} on "{op.group.name}")'
        return f"{who} called {called}, unwaited; {others} never did"
    if len(verdict.ranks) > 1 or len(verdict.needs) > 1:
        what = (
            "a receive that no send answered"
            if is_receive(op)
            else "a send that nobody received"
        )
        return f"{who}: {what}, when the run ended"
    what = "was never answered by a send" if is_receive(op) else "was never received"
    return f"{call_text(op)} of {who} {what}; the run ended without it"
