"""The ranks that reached a call through a branch that tests the rank: `if rank == 0: ...`.

Used where calls disagree and no majority says which rank is wrong. The ranks stand still
meanwhile, so their frames can be read. Calls that are over are not described.
"""

from __future__ import annotations

from collections.abc import Sequence
from types import FrameType

from phalanx import callsite
from phalanx.backend.evidence.model_names import THREAD
from phalanx.backend.session import RankContext
from phalanx.matching.hints import Branch, blame_branch
from phalanx.model import Mismatch, OpBlock
from phalanx.source_text import branch_by_rank
from phalanx.system import current_frames

MOST_RANKS = 16
_DEPTH = 32


def with_branch(ranks: Sequence[RankContext], verdict: Mismatch) -> Mismatch:
    """The verdict, with the ranks that alone are in such a branch as those at fault, if that is
    clear."""
    if verdict.ranks or len(verdict.blocks) != 2 or "operation" not in verdict.differs:
        return verdict
    frames = current_frames()
    return blame_branch(verdict, [_branch_of(ranks, each, frames) for each in verdict.blocks])


def _branch_of(
    ranks: Sequence[RankContext], block: OpBlock, frames: dict[int, FrameType]
) -> Branch:
    """The place of the branch if all ranks of the block are in it, None if no rank is in one,
    False if that is not known."""
    if len(block.ranks) > MOST_RANKS:
        return False
    found = {_of_rank(ranks, rank, block, frames) for rank in block.ranks}
    return found.pop() if len(found) == 1 else False


def _of_rank(
    ranks: Sequence[RankContext], rank: int, block: OpBlock, frames: dict[int, FrameType]
) -> Branch:
    frame = frames.get(ranks[rank].saved.get(THREAD, 0))
    marks = [(each.f_code, each.f_lasti) for each in _users(frame)]
    site = callsite.resolve(marks[0]) if marks else None
    if site is None or site != block.op.site:
        return False  # it has gone on since
    for mark in marks:
        line = branch_by_rank(mark)
        if line is not None:
            return f"{callsite.resolve(mark)!s}".rpartition(":")[0] + f":{line}"
    return None


def _users(frame: FrameType | None) -> Sequence[FrameType]:
    found: list[FrameType] = []
    while frame is not None and len(found) < _DEPTH:
        if not callsite.is_library(frame.f_code.co_filename):
            found.append(frame)
        elif found and callsite.is_own_file(frame.f_code.co_filename):
            break
        frame = frame.f_back
    return found
