"""Send and receive one message over a rank's socket, with the memory that belongs to it.

Used by both ends of the processes engine. A message is one pickle; the file descriptors of its
serialized's memory follow it. Must never look into a serialized.
"""

from __future__ import annotations

import pickle
import socket
from collections.abc import Sequence
from multiprocessing.connection import Connection
from typing import Any

from phalanx.engines.serialization.buffers import Memory

AT_ONCE = 128
"""File descriptors in one datagram; Linux takes up to 253."""

_CLOSE_ON_EXEC = getattr(socket, "MSG_CMSG_CLOEXEC", 0)


def memories_of(message: Any) -> Sequence[Memory]:
    """What `send` has to send with the message."""
    serialized = getattr(message, "serialized", None)
    return () if serialized is None else serialized.memories


def send(control: Connection, data: bytes, memories: Sequence[Memory] = ()) -> None:
    """Send a message that is pickled already: often the same to many."""
    control.send_bytes(data)
    if memories:
        _over_socket(control, lambda end: _send_fds(end, [each.fd for each in memories]))


def receive(control: Connection) -> Any:
    """The next message. EOFError or OSError if the other end is gone."""
    message = pickle.loads(control.recv_bytes())
    memories = memories_of(message)
    if memories:
        fds = _over_socket(control, lambda end: _receive_fds(end, len(memories)))
        for memory, fd in zip(memories, fds, strict=True):
            memory.fd = fd
    return message


def _over_socket(control: Connection, use: Any) -> Any:
    end = socket.socket(fileno=control.fileno())
    try:
        return use(end)
    finally:
        end.detach()


def _send_fds(end: socket.socket, fds: list[int]) -> None:
    for first in range(0, len(fds), AT_ONCE):
        socket.send_fds(end, [b"m"], fds[first : first + AT_ONCE])


def _receive_fds(end: socket.socket, count: int) -> list[int]:
    found: list[int] = []
    while len(found) < count:
        most = min(AT_ONCE, count - len(found))
        data, fds, _, _ = socket.recv_fds(end, 1, most, _CLOSE_ON_EXEC)
        if not data or not fds:
            raise EOFError
        found += fds
    return found
