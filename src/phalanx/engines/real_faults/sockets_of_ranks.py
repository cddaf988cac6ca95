"""The TCP sockets of this process and of others, as Linux tells of them in `/proc`.

Used in ranks, to cut their traffic and to take their stores from the network. Sockets are
found by their number as a file: backends and stores keep theirs in C++. Must never change one.
"""

from __future__ import annotations

import os
import socket
import struct
from collections.abc import Iterable, Iterator
from contextlib import suppress
from pathlib import Path

Endpoint = tuple[str, int]
"""An address and a port; addresses of IPv4 are written as such wherever they come from."""

_TABLES = ("/proc/net/tcp", "/proc/net/tcp6")
_OWN = "/proc/self/fd"
_MAPPED = "::ffff:"


def own_sockets() -> Iterator[tuple[int, socket.socket]]:
    """The number of each TCP socket of this process, and a second handle on it, which whoever
    takes it closes."""
    for number in [each for each in map(int, os.listdir(_OWN)) if _is_socket(each)]:
        with suppress(OSError):  # closed meanwhile
            found = _second_handle(number)
            if found.family in (socket.AF_INET, socket.AF_INET6):
                yield number, found
            else:
                found.close()


def _second_handle(number: int) -> socket.socket:
    """OSError if there is none, or if the number is that of something else by now."""
    handle = os.dup(number)
    try:
        return socket.socket(fileno=handle)
    except OSError:
        os.close(handle)
        raise


def _is_socket(number: int) -> bool:
    with suppress(OSError):
        return os.readlink(f"{_OWN}/{number}").startswith("socket:")
    return False


def is_listening(found: socket.socket) -> bool:
    return bool(found.getsockopt(socket.SOL_SOCKET, socket.SO_ACCEPTCONN))


def own_end(found: socket.socket) -> Endpoint | None:
    with suppress(OSError):
        return _endpoint(found.getsockname())
    return None


def far_end(found: socket.socket) -> Endpoint | None:
    """None if it is not connected."""
    with suppress(OSError):
        return _endpoint(found.getpeername())
    return None


def _endpoint(name: tuple[str, int]) -> Endpoint:
    return name[0].removeprefix(_MAPPED), name[1]


def ends_of(pids: Iterable[int]) -> set[Endpoint]:
    """Where the connections of these processes end on their side."""
    wanted = {number for pid in pids for number in _socket_numbers(pid)}
    return {
        _address(local)
        for table in _TABLES
        for local, number in _rows(table)
        if number in wanted
    }


def _socket_numbers(pid: int) -> Iterator[str]:
    """By which the system knows the sockets of a process; none of one that has ended."""
    with suppress(OSError):
        for name in os.listdir(f"/proc/{pid}/fd"):
            with suppress(OSError):
                target = os.readlink(f"/proc/{pid}/fd/{name}")
                if target.startswith("socket:["):
                    yield target[len("socket:[") : -1]


def _rows(table: str) -> Iterator[tuple[str, str]]:
    """The local address of each socket in the table, and its number."""
    with suppress(OSError):
        for line in Path(table).read_text().splitlines()[1:]:
            words = line.split()
            yield words[1], words[9]


def _address(text: str) -> Endpoint:
    """As the tables write it: the words of the address in the order of this machine's bytes.

    >>> _address("0100007F:07E8")
    ('127.0.0.1', 2024)
    """
    words, port = text.split(":")
    packed = b"".join(
        struct.pack("=I", int(words[at : at + 8], 16)) for at in range(0, len(words), 8)
    )
    family = socket.AF_INET if len(packed) == 4 else socket.AF_INET6
    return socket.inet_ntop(family, packed).removeprefix(_MAPPED), int(port, 16)
