"""What a run with faults has lost so far: ranks, connections, stores.

`Session.losses` holds it. It is None in runs without faults, so that these pay nothing. All
other modules of this folder change it, while the caller holds the baton.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable
from functools import partial
from typing import TYPE_CHECKING, Any

from torch.distributed.distributed_c10d import default_pg_timeout

from phalanx.core.holding_baton import HoldingBaton
from phalanx.core.strand import Strand, here

if TYPE_CHECKING:
    from phalanx.backend.session import RankContext, Session
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
        self.losses = 0
        """How often all stores have lost their server."""
        self.server_is_away = False
        """Whether nobody serves stores to new connections."""
        self.lost_stores: dict[int, Any] = {}
        """Stores whose server is gone for good, by their identity."""
        self.served_ports: dict[int, set[int]] = {}
        """The ports of the stores that each rank's own process serves."""
        self.lost_ports: set[int] = set()
        self.connected: dict[tuple[int, int], int] = {}
        """Before how many of the `losses` a rank has connected to a store: the rank, and the
        store's identity. Not said: before the first one."""
        self.sent_in_vain: Counter[tuple[int, int]] = Counter()
        """How many operations have used such a connection since it was lost."""
        self.kept: list[Any] = []
        self.cut_off: list[Strand] = []
        """Strands that wait for a store from which a cut separates them."""

    def time_out(self, call: Call, timeout: float, explicit: bool) -> Exception | None:
        """The backend's error for a wait that has outlived its timeout."""
        from phalanx.backend.losses.group_timeouts import timeout_error  # which needs this

        return timeout_error(self, call, timeout, explicit=explicit)

    def close_connections(self, call: Call, why: str) -> None:
        """The member that made this call closes all its connections in the group."""
        from phalanx.backend.losses.group_timeouts import close_connections  # which needs this

        close_connections(self, call, why)

    def join(self, met: GroupMailbox) -> None:
        """A group has been made."""
        from phalanx.backend.losses.injured_mailbox import injure  # which needs this

        injure(met, self)

    def await_members(self, context: RankContext, given: Any, named: Any) -> None:
        """A rank is about to make a group, with these arguments of torch's maker."""
        from phalanx.backend.losses.lost_ranks import await_members  # which needs this

        if "nccl" not in str(given[3]):
            timeout = named.get("timeout") or default_pg_timeout
            await_members(context, given[2], timeout)

    def is_cut(self, one: int, other: int) -> bool:
        return bool(self.cuts) and frozenset((one, other)) in self.cuts


def begin_losses(session: Session, baton: Baton) -> Injuries:
    """At the beginning of a run with a plan of faults: from now on limits of groups and stores
    are a way out of a wait, so that the clock comes to them before a deadlock is proved."""
    if session.losses is None:
        session.losses = Injuries()
        if not (isinstance(baton, HoldingBaton) and baton.clock.jumps):  # that comes to them
            _count_limits(baton)
        for met in session.mailboxes.values():
            session.losses.join(met)
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
