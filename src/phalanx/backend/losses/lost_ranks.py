"""What others see when the process of a rank is gone, or nothing arrives between two sides."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from datetime import timedelta
from typing import TYPE_CHECKING, Any

import torch.distributed

from phalanx.backend.losses.injured_mailbox import InjuredMailbox, injure
from phalanx.backend.losses.injuries import Injuries, injuries_of, pairs
from phalanx.backend.losses.lost_stores import lose_stores_of, wake_cut_off
from phalanx.core.strand import here
from phalanx.matching.mailboxes import GroupMailbox

if TYPE_CHECKING:
    from phalanx.backend.session import RankContext, Session

dist: Any = torch.distributed  # torch's type stubs leave several of the names below out


def lose_rank(session: Session, rank: int, how: str = "was killed") -> None:
    """Its process is gone, its connections close. Calls of others that need it directly end
    with Gloo's `RuntimeError` ("Connection closed by peer", then which rank it was and `how` it
    went); those that need it through others wait until their timeout; all others go on. On NCCL
    whatever needs it waits. The stores that it served are lost. Does nothing to the rank's own
    threads. The caller holds the baton, or no strand runs."""
    injuries = injuries_of(session)
    if rank in injuries.dead:
        return
    injuries.dead[rank] = how
    for met in list(session.mailboxes.values()):
        _lose_in_group(met, rank, injuries)
    lose_stores_of(session, rank)


def _lose_in_group(met: GroupMailbox, rank: int, injuries: Injuries) -> None:
    """For one group, which the rank may be a member of."""
    member = met.ranks.index(rank) if rank in met.ranks else None
    if member is not None and met.is_known(member):
        text = f"Connection closed by peer (rank {rank} {injuries.dead[rank]})"
        injure(met, injuries).lose_member(member, text)


def end_rank(session: Session, rank: int) -> None:
    """Its program has ended, and with its process all connections close. Only groups on Gloo
    that have lost connections already notice that: in others who waits for a rank that has
    ended is in a deadlock, which says more. The caller holds the baton."""
    why = f"Connection closed by peer (rank {rank} has ended)"
    for met in list(session.mailboxes.values()):
        notices = isinstance(met, InjuredMailbox) and met.closed and not met.is_nccl
        if notices and rank in met.ranks:
            injure(met, session.losses).close_member(met.ranks.index(rank), why, why)


def await_members(context: RankContext, ranks: Sequence[int], timeout: timedelta) -> None:
    """Before a rank makes a group on Gloo, where it connects with all members: raises
    `DistStoreError` after the timeout if one of them is gone."""
    strand = here.strand
    injuries: Injuries = context.session.losses
    lost = [rank for rank in ranks if rank in injuries.dead]
    if strand is None or not lost or context.rank not in ranks:
        return
    seconds = timeout.total_seconds()
    until = strand.baton.clock.now() + seconds
    while strand.baton.park(strand, None, deadline=until, sleeping=True):
        strand.baton.run_pending_callbacks(strand)
    who = ", ".join(f"rank {rank} {injuries.dead[rank]}" for rank in lost)
    raise dist.DistStoreError(f"wait timeout after {seconds * 1000:.0f}ms: {who}")


def partition(session: Session, one: Iterable[int], other: Iterable[int]) -> None:
    """From now on nothing arrives between the two sides. Calls that need the other side wait:
    until `heal`, or until their timeout. Connections stay open."""
    injuries = injuries_of(session)
    for met in session.mailboxes.values():
        injure(met, injuries).play_open()
    injuries.cuts |= pairs(one, other)


def heal(session: Session, one: Iterable[int], other: Iterable[int]) -> None:
    """What was sent meanwhile arrives, and calls whose timeout is not over yet go on. What
    closed meanwhile is closed, and the other side hears of it now."""
    injuries = injuries_of(session)
    injuries.cuts -= pairs(one, other)
    for met in list(session.mailboxes.values()):
        injure(met, injuries).mend()
    wake_cut_off(injuries)
