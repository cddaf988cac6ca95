"""What the referee may ask about the calls of ranks that are threads: their journals as trails,
the kinds of their groups, and the branches that they are in."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from itertools import islice
from typing import Any, TypeVar

from phalanx.backend.evidence.call_description import TensorReader
from phalanx.backend.evidence.rank_branches import with_branch
from phalanx.backend.session import RankContext
from phalanx.callsite import resolve
from phalanx.matching.descriptions import CallReader, describe_history
from phalanx.matching.divergence import Pace, Stride, find_other_kind, tell_other_kind
from phalanx.matching.referee import MOST_TRAIL
from phalanx.matching.slots import Assembly
from phalanx.model import Deadlock, Mismatch, Op

_Judged = TypeVar("_Judged", Mismatch, Deadlock)


class RankEvidence:
    """Of these ranks, while they stand still."""

    def __init__(self, ranks: Sequence[RankContext]) -> None:
        self._ranks = ranks

    def reader(self) -> TensorReader:
        return TensorReader()

    def history(
        self, met: Assembly, number: int, reader: CallReader
    ) -> dict[int, tuple[Op, ...]]:
        return describe_history(met, number, reader)

    def trail(self, rank: int, length: int) -> list[Pace]:
        calls = reversed(self._ranks[rank].journal)
        return [_pace(step) for step in islice(calls, length)][::-1]

    def name_place(self, place: Any) -> str:
        site = resolve(place)
        return str(site) if site is not None else "a call without a line"

    def refine(self, verdict: _Judged) -> _Judged:
        verdict = self._with_other_kind(verdict)
        return with_branch(self._ranks, verdict) if isinstance(verdict, Mismatch) else verdict

    def _with_other_kind(self, verdict: _Judged) -> _Judged:
        """Where it is open who is at fault: who took a group of another kind than most."""
        if isinstance(verdict, Mismatch):
            concerned = {rank for block in verdict.blocks for rank in block.ranks}
            is_open = not verdict.ranks
        else:
            concerned = set(verdict.cycle)
            is_open = len(verdict.ranks) > 1
        journals = [context.journal for context in self._ranks]
        if not is_open or any(len(journal) == journal.maxlen for journal in journals):
            return verdict
        ways = {context.rank: _strides(context) for context in self._ranks}
        found = find_other_kind(ways)
        if found is None or concerned.isdisjoint(found.odd):
            return verdict
        odd = tuple(sorted(concerned.intersection(found.odd)))
        hint = tell_other_kind(found, self.name_place)
        if isinstance(verdict, Deadlock):
            return replace(verdict, ranks=odd, hint=hint)
        blocks = [replace(b, odd=not set(odd).isdisjoint(b.ranks)) for b in verdict.blocks]
        blocks.sort(key=lambda block: block.odd)
        return replace(verdict, ranks=odd, blocks=tuple(blocks), hint=hint)


def _strides(context: RankContext) -> list[Stride]:
    """Of the rank's own thread, up to `MOST_TRAIL`."""
    return [
        Stride(step.mark, step.name, _kind_of(step.assembly, context.rank))
        for step in islice(context.journal, MOST_TRAIL)
        if not step.thread
    ]


def _kind_of(met: Assembly, rank: int) -> str | None:
    """What the group calls itself: groups of one dimension of a mesh have one name for it."""
    end = met.ends.get(rank)
    return None if end is None else str(end.group_desc)


def _pace(step: Any) -> Pace:
    met = step.assembly
    slot = (id(met), step.number) if step.number is not None else None
    return Pace(slot, met.ranks, step.mark, step.name, step.number)
