"""What a run with faults has in `Session.losses`: what is lost, and what groups, works and
stores ask there.

In runs without faults it is None, and all that is here is never reached.
"""

from __future__ import annotations

from typing import Any

from torch.distributed.distributed_c10d import default_pg_timeout

from phalanx.backend.losses import group_timeouts, lost_ranks, lost_stores
from phalanx.backend.losses.injured_mailbox import injure
from phalanx.backend.losses.injuries import Injuries
from phalanx.backend.session import RankContext, Session
from phalanx.core.strand import Strand
from phalanx.matching.mailboxes import GroupMailbox
from phalanx.matching.slots import Call


def begin_losses(session: Session) -> None:
    """At the beginning of a run with a plan of faults, which has a `HoldingBaton`: there the
    clock comes to the limits of groups and stores before a deadlock is proved."""
    if session.losses is None:
        session.losses = RunLosses()
        for met in session.mailboxes.values():
            session.losses.join(met)


class RunLosses(Injuries):
    """The backend asks it; what happens is in the modules beside this one."""

    def join(self, met: GroupMailbox) -> None:
        """A group has been made."""
        injure(met, self)

    def await_members(self, context: RankContext, given: Any, named: Any) -> None:
        """A rank is about to make a group, with these arguments of torch's maker."""
        if "gloo" in str(given[3]) or "nccl" not in str(given[3]):
            timeout = named.get("timeout") or default_pg_timeout
            lost_ranks.await_members(context, given[2], timeout)

    def time_out(self, call: Call, timeout: float, explicit: bool) -> Exception | None:
        """The backend's error for a wait that has outlived its timeout."""
        return group_timeouts.timeout_error(self, call, timeout, explicit=explicit)

    def close_connections(self, call: Call, why: str) -> None:
        """The member that made this call closes all its connections in the group."""
        group_timeouts.close_connections(self, call, why)

    def reach(self, strand: Strand, store: Any, name: str) -> bool:
        """Before an operation on a store: False if it goes into the void; it may raise."""
        return lost_stores.reach(strand, store, name)

    def make_store(self, strand: Strand, make: Any, store: Any, given: Any, named: Any) -> None:
        """A rank makes a store that may connect to a server."""
        lost_stores.make_store(strand, make, store, given, named)

    def await_server(self, strand: Strand, where: str) -> None:
        """A rank connects to the store of the rendezvous."""
        lost_stores.await_server(strand, where)

    def note_connection(self, context: RankContext, store: Any) -> None:
        """It has done so."""
        lost_stores.note_connection(context, store)
