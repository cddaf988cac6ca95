"""Ranks that tell their numbers only when they make their group get the number they say.

Used by the engine for ranks that a program starts itself.
"""

from __future__ import annotations

from phalanx.backend.session import RankContext, Session
from phalanx.core.baton import Baton
from phalanx.engines.outcome import Outcomes


def exchange(
    session: Session, baton: Baton, outcomes: Outcomes, context: RankContext, rank: int
) -> None:
    """Give a rank that makes its group the number that it says, and the one that has it so
    far the other. Nobody has met either of them yet."""
    ranks, ends = session.ranks, outcomes.ranks
    other = ranks[rank]
    if other is context or other.initialised:
        return
    places = {context.rank: rank, rank: context.rank}
    for strand in baton.strands:
        strand.rank = places.get(strand.rank, strand.rank)
    a, b = places
    ranks[a], ranks[b] = ranks[b], ranks[a]
    ends[a], ends[b] = ends[b], ends[a]
    session.journal.exchange(a, b)
    for place in places:
        ranks[place].rank = ends[place].rank = place
