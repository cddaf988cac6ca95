"""Render where each rank is, without a verdict: what Ctrl-C prints.

Used by the engines. Must never name a cause.
"""

from __future__ import annotations

from collections.abc import Sequence

from phalanx.model import ViewBlock
from phalanx.report.layout import compose, lay_blocks
from phalanx.report.situations import situation_block


def render_positions(headline: str, blocks: Sequence[ViewBlock]) -> str:
    """The headline, then a block for ranks in the same place."""
    ordered = sorted(blocks, key=lambda block: block.ranks)
    return compose(headline, lay_blocks([situation_block(block) for block in ordered]))
