"""Stores whose server is gone or out of reach: what operations on them give.

A connection to a `TCPStore` whose server was lost stays broken, also when a server is there
again; only a new connection is of use. The first `set` after the loss goes into the void, the
first other operation finds the end of the connection, later ones a broken pipe (measured, see
docs/faults.md). Stores without a server (`HashStore`, `FileStore`) lose none. Called by
`stores/store.py` and `stores/rendezvous.py` in runs with faults only.
"""

from __future__ import annotations

import weakref
from typing import TYPE_CHECKING, Any

import torch.distributed
from torch.distributed.distributed_c10d import PrefixStore

from phalanx.backend.losses.injuries import Injuries, injuries_of
from phalanx.backend.stores.tcp_arguments import read_tcp_arguments

if TYPE_CHECKING:
    from phalanx.backend.session import RankContext, Session
    from phalanx.core.strand import Strand

dist: Any = torch.distributed  # torch's type stubs leave several of the names below out

CLOSED = (
    "Failed to recv, got 0 bytes. Connection was likely closed. Did the remote server "
    "shutdown or crash?"
)
BROKEN = "Broken pipe"
DEFAULT_TIMEOUT = 300.0
"""Of a store, in seconds."""
SERVING_RANK = 0
"""On whose machine the store of torchrun's agent is."""


class CutOff:
    """Why a rank is parked: it cannot reach a store."""

    __slots__ = ()


def lose_store(session: Session) -> None:
    """All stores that have a server lose it: operations on them fail from now on, as those of a
    `TCPStore` do, and so do waits in progress. Nobody can connect either, until
    `restore_store`. The caller holds the baton, or is an action of the clock."""
    injuries = injuries_of(session)
    injuries.losses += 1
    injuries.server_is_away = True
    _end_waits(session)


def restore_store(session: Session) -> None:
    """A server is there again, at the same address. It answers those who connect anew: the
    connections of before stay broken."""
    injuries = injuries_of(session)
    injuries.server_is_away = False
    wake_cut_off(injuries)


def lose_stores_of(session: Session, rank: int) -> None:
    """The stores that this rank's own process served are lost with it, for good: that of
    `tcp://`, or of `env://` where no agent of torchrun serves it, and those that it made with
    `TCPStore(is_master=True)`."""
    injuries = injuries_of(session)
    served = [each for each in session.stores.values() if _server_of(each) == rank]
    injuries.lost_stores |= {id(each): each for each in served}
    injuries.lost_ports |= injuries.served_ports.pop(rank, set())
    if served or injuries.lost_ports:
        _end_waits(session)


def reach(strand: Strand, store: Any, name: str) -> bool:
    """Before an operation of a rank on a store: False if it goes into the void. Raises
    `DistNetworkError` where the connection is lost; waits while nothing arrives there."""
    context = strand.local
    injuries: Injuries = context.session.losses
    below = _underlying(store)
    if not _has_server(below):
        return True
    if injuries.cuts and name != "set":
        _wait_for_network(strand, below, injuries)
    key = (context.rank, id(below))
    if not _is_lost(injuries, below, key):
        return True
    if name == "set" and not injuries.sent_in_vain[key]:
        injuries.sent_in_vain[key] += 1
        return False
    injuries.sent_in_vain[key] += 1
    raise dist.DistNetworkError(CLOSED if injuries.sent_in_vain[key] == 1 else BROKEN)


def await_server(strand: Strand, where: str, limit: float = DEFAULT_TIMEOUT) -> None:
    """A rank connects to the store that is `where`. Raises `DistNetworkError` if no server is
    there before so many seconds are over."""
    injuries: Injuries = strand.local.session.losses
    until = strand.baton.clock.now() + limit
    while injuries.server_is_away:
        injuries.cut_off.append(strand)
        if not strand.baton.park(strand, CutOff(), deadline=until, sleeping=True):
            raise dist.DistNetworkError(
                f"The client socket has timed out after {limit * 1000:.0f}ms while trying to "
                f"connect to {where}: the store has lost its server"
            )


def note_connection(context: RankContext, store: Any) -> None:
    """A rank has a new connection to a store."""
    injuries: Injuries = context.session.losses
    key = (context.rank, id(store))
    injuries.connected[key] = injuries.losses
    injuries.sent_in_vain.pop(key, None)
    weakref.finalize(store, _forget_connection, injuries, key).atexit = False


def _forget_connection(injuries: Injuries, key: tuple[int, int]) -> None:
    """The store is gone, and another one may have its identity."""
    injuries.connected.pop(key, None)
    injuries.sent_in_vain.pop(key, None)


def make_store(strand: Strand, make: Any, store: Any, given: Any, named: Any) -> None:
    """A rank makes a `TCPStore` or a `FileStore`, by `make` with these arguments, in a run with
    faults. It serves a `TCPStore` itself if it says so."""
    arguments = read_tcp_arguments(given, named) if isinstance(store, dist.TCPStore) else None
    if arguments is None:  # a `FileStore`, or torch refuses
        make()
        return
    if not arguments.is_master:
        where = f"({arguments.host_name}, {arguments.port})"
        await_server(strand, where, arguments.seconds)
    make()
    note_connection(strand.local, store)
    if arguments.is_master:
        injuries: Injuries = strand.local.session.losses
        injuries.served_ports.setdefault(strand.local.rank, set()).add(store.port)


def wake_cut_off(injuries: Injuries) -> None:
    """A cut has ended, or a server is there: who could not reach a store looks again."""
    waiting, injuries.cut_off = injuries.cut_off, []
    for strand in waiting:
        strand.baton.wake(strand)


def _is_lost(injuries: Injuries, store: Any, key: tuple[int, int]) -> bool:
    if id(store) in injuries.lost_stores:
        return True
    if injuries.lost_ports and getattr(store, "port", None) in injuries.lost_ports:
        return True
    return injuries.connected.get(key, 0) < injuries.losses


def _wait_for_network(strand: Strand, store: Any, injuries: Injuries) -> None:
    """As `TCPStore` does, however long: its client has no timeout of its own for an answer."""
    server = _server_of(store)
    server = SERVING_RANK if server is None else server
    while injuries.is_cut(strand.local.rank, server):
        injuries.cut_off.append(strand)
        strand.baton.park(strand, CutOff())


def _end_waits(session: Session) -> None:
    """Of ranks that wait for keys: those of a store that is lost."""
    injuries = injuries_of(session)
    waiters, session.store_waiters = session.store_waiters, []
    for strand in waiters:
        below = _underlying(getattr(strand.why, "store", None))  # it may not wait any more
        key = (strand.local.rank, id(below))
        if below is not None and _has_server(below) and _is_lost(injuries, below, key):
            strand.baton.wake(strand, dist.DistNetworkError(CLOSED))
        else:
            session.store_waiters.append(strand)


def _server_of(store: Any) -> int | None:
    """The rank whose process serves a store of the rendezvous; None: the agent."""
    return SERVING_RANK if getattr(store, "waits_for_clients", False) else None


def _has_server(store: Any) -> bool:
    if isinstance(store, dist.TCPStore):
        return True
    address = getattr(store, "address", None)
    return address is not None and not address.startswith("file:")


def _underlying(store: Any) -> Any:
    while isinstance(store, PrefixStore):
        store = store.underlying_store
    return store
