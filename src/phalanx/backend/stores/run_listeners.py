"""The sockets at which explored runs serve: opened here, handed to torch, and still known.

A server lives as long as torch needs it, which no Python object tells: a `PrefixStore` keeps
it after the `TCPStore` is gone. Its socket tells it. A server of another run, left over in this
process or alive in one that explores at the same time, is none that a rank may find: its
socket asks for segments of an odd size, which those who connect can read. Used by
`explored_tcp_stores.py`.
"""

from __future__ import annotations

import os
import socket
from collections.abc import Container
from dataclasses import dataclass

_PATIENCE = 0.2
"""Seconds that a server of no run has to accept a connection."""
_SEGMENT = 1111
"""Bytes that a server of a run takes at once; no network has that size by itself."""
_TIMESTAMPS = 12
"""How many of them the system may need for itself."""


@dataclass(frozen=True)
class Listener:
    """A socket that listens; torch closes it with the server."""

    port: int
    descriptor: int
    identity: tuple[int, int]

    def is_open(self) -> bool:
        """Whether the descriptor is still that of this socket."""
        try:
            return _identity(self.descriptor) == self.identity
        except OSError:
            return False

    def close(self) -> None:
        if self.is_open():
            os.close(self.descriptor)


def listen(port: int, avoid: Container[int]) -> Listener:
    """At this port if it is free, else at any other."""
    if port not in avoid:
        try:
            return _listen(port)
        except OSError:
            pass
    return _listen(0)


def is_served_outside(host: str, port: int) -> bool:
    """Whether there is a server, and it is that of no explored run."""
    try:
        with socket.create_connection((host, port), _PATIENCE) as made:
            segment = made.getsockopt(socket.IPPROTO_TCP, socket.TCP_MAXSEG)
    except OSError:
        return False
    return not _SEGMENT - _TIMESTAMPS <= segment <= _SEGMENT


def _listen(port: int) -> Listener:
    """At all addresses of the machine, as torch does."""
    dual = socket.has_dualstack_ipv6()
    family = socket.AF_INET6 if dual else socket.AF_INET
    with socket.create_server(("", port), family=family, dualstack_ipv6=dual) as made:
        made.setsockopt(socket.IPPROTO_TCP, socket.TCP_MAXSEG, _SEGMENT)
        found = int(made.getsockname()[1])
        descriptor = made.detach()
    return Listener(found, descriptor, _identity(descriptor))


def _identity(descriptor: int) -> tuple[int, int]:
    found = os.fstat(descriptor)
    return found.st_dev, found.st_ino
