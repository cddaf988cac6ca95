"""The lines of the program through which ranks that are threads came to where they stand.

Read when a verdict is made: the ranks stand still then, and no call pays for it.
`checks/call_paths.py` says what they show.
"""

from __future__ import annotations

from collections.abc import Sequence

from phalanx import callsite
from phalanx.backend.evidence.model_names import THREAD
from phalanx.backend.session import RankContext
from phalanx.model import StackLine
from phalanx.system import current_frames


def find_stacks(ranks: Sequence[RankContext]) -> dict[int, tuple[StackLine, ...]]:
    """Of the ranks' main threads."""
    frames = current_frames()
    found = {
        context.rank: callsite.call_stack(frames.get(context.saved.get(THREAD, 0)))
        for context in ranks
    }
    return {rank: stack for rank, stack in found.items() if stack}
