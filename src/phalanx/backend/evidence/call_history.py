"""What the referee may ask about the calls of ranks that are threads: what the journal has of
them, the kinds of their groups, and the branches that they are in."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import TypeVar

from phalanx.backend.evidence.call_description import TensorReader
from phalanx.backend.evidence.call_stacks import find_stacks
from phalanx.backend.session import RankContext
from phalanx.checks.call_paths import with_branch
from phalanx.journal.reader import Journal
from phalanx.matching.divergence import Stride, find_other_kind, tell_other_kind
from phalanx.matching.mailboxes import GroupMailbox
from phalanx.matching.referee import MOST_TRAIL, name_place
from phalanx.model import Deadlock, Mismatch

_Judged = TypeVar("_Judged", Mismatch, Deadlock)


class RankEvidence:
    """Of these ranks, while they stand still."""

    def __init__(self, ranks: Sequence[RankContext]) -> None:
        self._ranks = ranks

    def reader(self) -> TensorReader:
        return TensorReader()

    def read_journal(self) -> Journal:
        return self._ranks[0].session.journal.reader()

    def refine(self, verdict: _Judged) -> _Judged:
        verdict = self._with_other_kind(verdict)
        if isinstance(verdict, Mismatch) and not verdict.ranks:
            return with_branch(verdict, find_stacks(self._ranks))
        return verdict

    def _with_other_kind(self, verdict: _Judged) -> _Judged:
        """Where it is open who is at fault: who took a group of another kind than most."""
        if isinstance(verdict, Mismatch):
            concerned = {rank for block in verdict.blocks for rank in block.ranks}
            is_open = not verdict.ranks
        else:
            concerned = set(verdict.cycle)
            is_open = len(verdict.ranks) > 1
        if not is_open or not self.read_journal().has_all_calls():
            return verdict
        ways = {context.rank: _strides(context) for context in self._ranks}
        found = find_other_kind(ways)
        if found is None or concerned.isdisjoint(found.odd):
            return verdict
        odd = tuple(sorted(concerned.intersection(found.odd)))
        hint = tell_other_kind(found, name_place)
        if isinstance(verdict, Deadlock):
            return replace(verdict, ranks=odd, hint=hint)
        blocks = [replace(b, odd=not set(odd).isdisjoint(b.ranks)) for b in verdict.blocks]
        blocks.sort(key=lambda block: block.odd)
        return replace(verdict, ranks=odd, blocks=tuple(blocks), hint=hint)


def _strides(context: RankContext) -> list[Stride]:
    """Of the rank's own thread, up to `MOST_TRAIL`."""
    mailboxes = context.session.mailboxes.values()
    kinds = {met.record: _kind_of(met, context.rank) for met in mailboxes}
    return [
        Stride(call.mark, call.name, kinds.get(call.group))
        for call in list(context.ring.calls)[:MOST_TRAIL]
        if not call.thread
    ]


def _kind_of(met: GroupMailbox, rank: int) -> str | None:
    """What the group calls itself: groups of one dimension of a mesh have one name for it."""
    end = met.ends.get(rank)
    return None if end is None else str(end.group_desc)
