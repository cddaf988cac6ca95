"""Take the stores that this process serves from the network, and serve new ones there later.

Used in ranks, for `drop_store`. To those who use such a store its server has ended: their
connections end, and nobody answers at its port. The one that is served there later is empty,
as after a server has been started again; torch's clients of before do not connect to it. Must
never touch a socket that is at no store's port.
"""

from __future__ import annotations

import os
import socket
from collections.abc import Iterable
from contextlib import suppress
from typing import Any

from torch.distributed import TCPStore  # type: ignore[attr-defined]

from phalanx.backend.torch_private.private_lookups import without_name_servers
from phalanx.engines.real_faults.sockets_of_ranks import is_listening, own_end, own_sockets

BACKLOG = 128
_CLIENTS = {socket.AF_INET: "127.0.0.1", socket.AF_INET6: "localhost"}


class UnservedStores:
    """Of one process."""

    def __init__(self) -> None:
        self._lost: list[tuple[int, tuple[Any, ...]]] = []
        """The family and the address of each server."""
        self._served: list[Any] = []
        """Stores that are served anew, which live as long as the process."""

    def lose(self, ports: Iterable[int]) -> bool:
        """Whether this process serves a store at one of these ports."""
        wanted, found = set(ports), list(own_sockets())
        served = {_port_of(each) for _, each in found if is_listening(each)} & wanted
        listening = []
        for number, each in found:
            with each:
                if _port_of(each) not in served:
                    continue
                if is_listening(each):
                    listening.append(number)
                    self._lost.append((int(each.family), tuple(each.getsockname())))
                else:
                    with suppress(OSError):
                        each.shutdown(socket.SHUT_RDWR)
        for number in listening:
            _close_behind(number)
        return bool(served)

    def serve_again(self) -> None:
        """At the same addresses."""
        lost, self._lost = self._lost, []
        for family, address in lost:
            with suppress(OSError), socket.socket(family) as listener:
                listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
                listener.bind(address)
                listener.listen(BACKLOG)
                self._served.append(serve_on(listener))


def _port_of(found: socket.socket) -> int | None:
    end = own_end(found)
    return None if end is None else end[1]


def _close_behind(number: int) -> None:
    """Close the socket and keep its number, which the server's thread knows it by."""
    with socket.socket() as idle:
        os.dup2(idle.fileno(), number, inheritable=False)


def serve_on(listener: socket.socket) -> Any:
    """A store that lives as long as the object; the socket is its own from now on."""
    family, address = int(listener.family), tuple(listener.getsockname())
    return _serve(listener.detach(), family, address)


def _serve(listener: int, family: int, address: tuple[Any, ...]) -> Any:
    with without_name_servers():
        return TCPStore(
            _CLIENTS[socket.AddressFamily(family)],
            address[1],
            is_master=True,
            wait_for_workers=False,
            master_listen_fd=listener,
        )
