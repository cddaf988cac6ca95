"""`TCPStore` in runs that are explored: ranks find the servers of their own run, in any order.

A run follows the other within a moment, in one process: the server of the one before may still
be there. So a rank that serves does so at a free port, and those that connect to the port which
it was given are led there; a rank that connects before there is a server waits on the clock of
the run. Used by `store.py`.
"""

from __future__ import annotations

import socket
import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch.distributed

from phalanx.core.strand import RUNNING, Strand

dist: Any = torch.distributed  # torch's type stubs leave several of the names below out

_ARGUMENTS = (
    *("host_name", "port", "world_size", "is_master", "timeout"),
    *("wait_for_workers", "multi_tenant", "master_listen_fd", "use_libuv"),
)
_TIMEOUT = 300.0
_PATIENCE = 0.2
"""Seconds that a server of no rank has to accept a connection."""

Wait = Callable[[Callable[[], bool], str, float, bool], bool]
"""Parks until something holds at an address, for so many seconds at most; and whether the
program says how many. Returns whether it held in time."""


@dataclass
class Server:
    """A store that a rank serves."""

    port: int
    store: weakref.ref[Any]
    joined: int = 1
    """How many have come, of those for which it may wait."""


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
    given = {**dict(zip(_ARGUMENTS, args, strict=False)), **kwargs}
    is_usual = len(args) <= len(_ARGUMENTS) and {"host_name", "port"} <= set(given)
    if not is_usual or given.get("master_listen_fd") is not None:
        original(store, *args, **kwargs)
        return
    timeout = given.get("timeout")
    seconds = _TIMEOUT if timeout is None else timeout.total_seconds()
    servers: dict[int, Server] = strand.local.session.tcp_servers
    address = f"{given['host_name']}:{given['port']}"
    if given.get("is_master"):
        server = _serve(strand, original, store, given)
        workers = given.get("world_size") or 0
        if given.get("wait_for_workers", True) and not wait(
            lambda: server.joined >= workers, address, seconds, timeout is not None
        ):
            raise dist.DistStoreError(
                f"Timed out after {seconds:g} seconds waiting for clients. "
                f"{server.joined}/{workers} clients joined."
            )
        return
    port = int(given["port"])
    if port in servers or not _is_served_outside(given["host_name"], port):
        if not wait(lambda: port in servers, address, seconds, timeout is not None):
            raise dist.DistNetworkError(
                f"The client socket has timed out after {seconds * 1000:.0f}ms while trying to "
                f"connect to ({given['host_name']}, {port})."
            )
        given["port"] = servers[port].port
        with waiting_for_server(strand):
            original(store, **given)
    else:
        original(store, **given)
    if port in servers and given.get("world_size") and given.get("wait_for_workers", True):
        servers[port].joined += 1


def _serve(strand: Strand, original: Any, store: Any, given: Any) -> Server:
    """Without waiting for anybody."""
    servers: dict[int, Server] = strand.local.session.tcp_servers
    port = int(given["port"])
    before = servers.get(port)
    if port and before is not None and before.store() is not None:
        raise dist.DistNetworkError(
            "The server socket has failed to listen on any local network address. port: "
            f"{port}, useIpv6: false, code: -98, name: EADDRINUSE, message: address already in "
            "use"
        )
    workers = given.get("world_size")
    waits = given.get("wait_for_workers", True) and (workers or 0) < 2
    with waiting_for_server(strand):
        original(store, **{**given, "port": 0, "wait_for_workers": waits})
    server = servers[store.port] = Server(store.port, weakref.ref(store))
    if port:
        servers[port] = server
    return server


def _is_served_outside(host: str, port: int) -> bool:
    try:
        with socket.create_connection((host, port), _PATIENCE):
            return True
    except (OSError, OverflowError):
        return False
