"""Render a finding that has no form of its own: headline, calls, labelled lines, hint.

Used by `text`. Must never depend on the kind of finding: the finding has all the text.
"""

from __future__ import annotations

from phalanx.model import Finding
from phalanx.report.calls import call_pieces
from phalanx.report.layout import Block, compose, labelled, lay_blocks, shorten


def render_finding(verdict: Finding, *, replay: str | None = None) -> str:
    blocks = [
        Block(
            block.ranks,
            call_pieces(block.op, where=True),
            block.op.site,
            block.notes,
            block.mark,
        )
        for block in verdict.blocks
    ]
    facts = [line for label, text in verdict.facts for line in labelled(label, text)]
    if verdict.hint:
        facts += labelled("hint", verdict.hint)
    return compose(
        headline_finding(verdict),
        lay_blocks(shorten(blocks)),
        facts,
        labelled("replay", replay, whole=True) if replay else (),
    )


def headline_finding(verdict: Finding) -> str:
    return verdict.headline
