"""The ranks' journals as trails for `matching/divergence.py`. Used where verdicts are made."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import replace
from itertools import islice
from typing import Any, TypeVar, cast

from phalanx.backend.evidence.rank_branches import with_branch
from phalanx.backend.session import RankContext, Session
from phalanx.callsite import resolve
from phalanx.matching.divergence import (
    Pace,
    Parting,
    Stride,
    find_other_kind,
    find_parting,
    tell_other_kind,
    tell_parting,
)
from phalanx.matching.slots import Assembly
from phalanx.model import Deadlock, Mismatch, Verdict

MOST_STEPS = 8000
LEAST_STEPS = 8
"""How many steps are looked at: of all ranks together, and of each at least."""

_Any = TypeVar("_Any", bound=Verdict)


def with_parting(
    session: Session, verdict: _Any, ranks: Iterable[int], ended: Iterable[int] = ()
) -> _Any:
    """The verdict, with the place where the ways of these ranks parted if that is clear."""

    def trail(rank: int, length: int) -> list[Pace]:
        return _trail(session.ranks[rank], length)

    verdict = cast(_Any, _with_other_kind(session, verdict))
    if isinstance(verdict, Mismatch):
        verdict = cast(_Any, with_branch(session, verdict))
    return add_parting(verdict, ranks, ended, trail=trail, name_place=_name)


def _with_other_kind(session: Session, verdict: Verdict) -> Verdict:
    """Where it is open who is at fault: who took a group of another kind than most ranks."""
    if isinstance(verdict, Mismatch):
        concerned = {rank for block in verdict.blocks for rank in block.ranks}
        is_open = not verdict.ranks
    elif isinstance(verdict, Deadlock):
        concerned = set(verdict.cycle)
        is_open = len(verdict.ranks) > 1
    else:
        return verdict
    journals = [context.journal for context in session.ranks]
    if not is_open or any(len(journal) == journal.maxlen for journal in journals):
        return verdict
    ways = {context.rank: _strides(context) for context in session.ranks}
    found = find_other_kind(ways)
    if found is None or concerned.isdisjoint(found.odd):
        return verdict
    odd = tuple(sorted(concerned.intersection(found.odd)))
    hint = tell_other_kind(found, _name)
    if isinstance(verdict, Deadlock):
        return replace(verdict, ranks=odd, hint=hint)
    blocks = [replace(b, odd=not set(odd).isdisjoint(b.ranks)) for b in verdict.blocks]
    blocks.sort(key=lambda block: block.odd)
    return replace(verdict, ranks=odd, blocks=tuple(blocks), hint=hint)


def _strides(context: RankContext) -> list[Stride]:
    """Of the rank's own thread, up to `MOST_STEPS`."""
    return [
        Stride(step.mark, step.name, _kind_of(step.assembly, context.rank))
        for step in islice(context.journal, MOST_STEPS)
        if not step.thread
    ]


def _kind_of(met: Assembly, rank: int) -> str | None:
    """What the group calls itself: groups of one dimension of a mesh have one name for it."""
    end = met.ends.get(rank)
    return None if end is None else str(end.group_desc)


def add_parting(
    verdict: _Any,
    ranks: Iterable[int],
    ended: Iterable[int] = (),
    *,
    trail: Callable[[int, int], list[Pace]],
    name_place: Callable[[Any], str],
) -> _Any:
    """The same for any engine. `trail` gives a rank's last steps, at most so many."""
    if not isinstance(verdict, (Mismatch, Deadlock)) or not _asks_for_it(verdict):
        return verdict
    among = list(ranks)
    length = max(LEAST_STEPS, MOST_STEPS // max(1, len(among)))
    parting = find_parting({rank: trail(rank, length) for rank in among}, frozenset(ended))
    if parting is None or _is_told(verdict, parting):
        return verdict
    return replace(verdict, parted=tell_parting(parting, name_place))


def _asks_for_it(verdict: Mismatch | Deadlock) -> bool:
    """Where other arguments than the operation differ, the way was the same."""
    return not isinstance(verdict, Mismatch) or "operation" in verdict.differs


def _is_told(verdict: Mismatch | Deadlock, parting: Parting) -> bool:
    """A hint about the very call that does not fit, or about ranks that made fewer calls, says
    the same in other words."""
    if verdict.hint is None:
        return False
    if isinstance(verdict, Mismatch):
        return parting.number == verdict.number
    return any(place is None for _, place in parting.ways)


def _trail(context: RankContext, length: int) -> list[Pace]:
    calls = reversed(context.journal)
    return [_pace(step) for step in islice(calls, length)][::-1]


def _pace(step: Any) -> Pace:
    met = step.assembly
    slot = (id(met), step.number) if step.number is not None else None
    return Pace(slot, met.ranks, step.mark, step.name, step.number)


def _name(place: Any) -> str:
    site = resolve(place)
    return str(site) if site is not None else "a call without a line"
