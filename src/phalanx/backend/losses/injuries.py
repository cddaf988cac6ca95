"""What a run with faults has lost so far: ranks, connections, stores.

`Session.losses` holds it. It is None in runs without faults, so that these pay nothing. All
other modules of this folder change it, while the caller holds the baton.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import partial
from typing import TYPE_CHECKING, Any

from phalanx.core.strand import here

if TYPE_CHECKING:
    from phalanx.backend.session import Session
    from phalanx.core.baton import Baton
    from phalanx.matching.mailboxes import GroupMailbox
    from phalanx.matching.slots import Call


class Injuries:
    """Of one run."""

    def __init__(self) -> None:
        self.dead: dict[int, str] = {}
        """Ranks whose processes are gone, and how they say that."""
        self.cuts: set[frozenset[int]] = set()
        """Pairs of ranks between which nothing arrives."""
        self.lost_stores: dict[int, Any] = {}
        """Stores without a server, by their identity."""
        self.broken: set[tuple[int, int]] = set()
        """Connections to stores that were lost once: the rank, and the store's identity."""
        self.server_is_away = False
        """Whether nobody serves stores to new connections."""
        self.waits_for_network: list[Any] = []
        """Strands that go on when a cut ends."""

    def time_out(self, call: Call, timeout: float, explicit: bool) -> Exception | None:
        """The backend's error for a wait that has outlived its timeout."""
        from phalanx.backend.losses.group_timeouts import timeout_error  # which needs this

        return timeout_error(self, call, timeout, explicit=explicit)

    def join(self, met: GroupMailbox) -> None:
        """A group has been made."""
        from phalanx.backend.losses.lost_ranks import join_injured  # which needs this

        join_injured(self, met)

    def is_cut(self, one: int, other: int) -> bool:
        return bool(self.cuts) and frozenset((one, other)) in self.cuts


def begin_losses(session: Session, baton: Baton) -> Injuries:
    """At the beginning of a run with a plan of faults: from now on limits of groups and stores
    are a way out of a wait, so that the clock comes to them before a deadlock is proved."""
    if session.losses is None:
        session.losses = Injuries()
        _count_limits(baton)
    found: Injuries = session.losses
    return found


def injuries_of(session: Session) -> Injuries:
    """Those of the run; made by the first injury if nobody has called `begin_losses`."""
    if session.losses is None:
        strand = here.strand
        assert strand is not None  # else the engine has to say it before
        begin_losses(session, strand.baton)
    found: Injuries = session.losses
    return found


def pairs(one: Iterable[int], other: Iterable[int]) -> set[frozenset[int]]:
    others = list(other)
    return {frozenset((a, b)) for a in one for b in others}


def _count_limits(baton: Any) -> None:
    """In the place of `Baton.park`, so that runs without faults are not slowed down."""
    if "park" not in vars(baton):
        baton.park = partial(_park, baton.park)


def _park(
    park: Callable[..., bool],
    strand: Any,
    why: Any = None,
    *,
    deadline: float | None = None,
    sleeping: bool = False,
) -> bool:
    return park(strand, why, deadline=deadline, sleeping=sleeping or deadline is not None)
