"""`TCPStore` in runs that are explored: ranks find the servers of their own run, in any order.

A run follows the other within a moment, in one process: the server of the one before may still
be at the port that a rank wants to serve. Then it serves at a free one, and those that connect
to the port which it was given are led there. A rank that connects before there is a server, or
when it is gone, waits on the clock of the run. Used by `store.py`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch.distributed

from phalanx.backend.stores.run_listeners import Listener, is_served_outside, listen
from phalanx.backend.stores.tcp_arguments import TCPArguments, read_tcp_arguments
from phalanx.core.strand import RUNNING, Strand

dist: Any = torch.distributed  # torch's type stubs leave several of the names below out

_PATIENCE = 60.0
"""Seconds at least that torch has to connect to the server of the run: the timeout that the
program says is one of the virtual clock, and lookups of names take real time."""

Wait = Callable[[Callable[[], bool], str, float, bool], bool]
"""Parks until something holds at an address, for so many seconds at most; and whether the
program says how many. Returns whether it held in time."""


@dataclass
class Server:
    """A store that a rank serves."""

    listener: Listener
    tenant: int | None
    """With `multi_tenant` the rank whose process has it, where more stores may share it."""
    joined: int = 0
    """How many have come, of those for which it may wait."""
    has_failed: bool = False
    """Its constructor has raised, or the rank was killed in it."""


def is_served_here(servers: dict[int, Server], store: Any) -> bool:
    """Whether a rank of this run serves the store: nobody else changes it."""
    return isinstance(store, dist.TCPStore) and store.port in servers


@contextmanager
def waiting_for_server(strand: Strand) -> Iterator[None]:
    """Keep the baton, which the monitor would take from a strand that blocks: the server is a
    thread of this process and answers, but it and torch's client ask the system for names of
    addresses, which may take seconds. How long may not decide who comes next."""
    if strand.state is not RUNNING:
        yield
        return
    baton = strand.baton
    before, baton.critical = baton.critical, True
    try:
        yield
    finally:
        baton.critical = before


def make_tcp_store(
    strand: Strand, wait: Wait, original: Any, store: Any, *args: Any, **kwargs: Any
) -> None:
    """As `TCPStore.__init__`, which is `original`."""
    given = read_tcp_arguments(args, kwargs)
    if given is None or given.master_listen_fd is not None:
        original(store, *args, **kwargs)
        return
    making = _Making(strand, wait, original, store, given)
    if given.is_master:
        making.serve()
    else:
        making.connect()


@dataclass
class _Making:
    """One `TCPStore` is made."""

    strand: Strand
    wait: Wait
    original: Any
    store: Any
    given: TCPArguments

    def serve(self) -> None:
        """And wait for the workers, if there is a number of them."""
        given, shared = self.given, self._server()
        if shared is not None and (shared.tenant is None or shared.tenant != self._tenant):
            raise dist.DistNetworkError(
                "The server socket has failed to listen on any local network address. port: "
                f"{given.port}, useIpv6: false, code: -98, name: EADDRINUSE, message: address "
                "already in use"
            )
        server = shared or self._start()
        if shared is not None:
            self._make(server, wait_for_workers=False)
        server.joined += given.workers > 0
        have_come = False
        try:
            have_come = self._await(lambda: server.joined >= given.workers)
        finally:
            server.has_failed |= shared is None and not have_come
        if not have_come:
            raise dist.DistStoreError(
                f"Timed out after {given.seconds:g} seconds waiting for clients. "
                f"{server.joined}/{given.workers} clients joined."
            )

    def connect(self) -> None:
        """Once there is a server; to one of nobody in the run if it is there now."""
        given = self.given
        if given.port not in self._servers and is_served_outside(given.host_name, given.port):
            self.original(self.store, **vars(given))
            return
        self._await(lambda: self._server() is not None)
        server = self._server()
        if server is None:
            raise dist.DistNetworkError(
                f"The client socket has timed out after {given.seconds * 1000:.0f}ms while "
                f"trying to connect to ({given.host_name}, {given.port})."
            )
        self._make(server)
        server.joined += given.workers > 0

    @property
    def _servers(self) -> dict[int, Server]:
        servers: dict[int, Server] = self.strand.local.session.tcp_servers
        return servers

    @property
    def _tenant(self) -> int | None:
        return int(self.strand.local.rank) if self.given.multi_tenant else None

    @property
    def _lost_ports(self) -> set[int]:
        losses = self.strand.local.session.losses
        return set() if losses is None else losses.lost_ports

    def _server(self) -> Server | None:
        """That of the port, if it is alive, and so is its rank."""
        server = self._servers.get(self.given.port)
        if server is None or server.has_failed or not server.listener.is_open():
            return None
        return None if server.listener.port in self._lost_ports else server

    def _await(self, holds: Callable[[], bool]) -> bool:
        given = self.given
        address = f"{given.host_name}:{given.port}"
        return self.wait(holds, address, given.seconds, given.says_timeout)

    def _start(self) -> Server:
        """Without waiting for anybody."""
        given = self.given
        listener = listen(given.port, self._lost_ports)
        server = Server(listener, self._tenant)
        waits = given.workers == 1
        try:
            self._make(server, wait_for_workers=waits, master_listen_fd=listener.descriptor)
        except BaseException:
            listener.close()
            raise
        self._servers[listener.port] = self._servers[given.port or listener.port] = server
        return server

    def _make(self, server: Server, **changed: Any) -> None:
        given = self.given
        changed = {"port": server.listener.port, **changed}
        changed["timeout"] = max(given.seconds, _PATIENCE)
        with waiting_for_server(self.strand):
            self.original(self.store, **{**vars(given), **changed})
        dist.Store.set_timeout(self.store, given.timeout)
