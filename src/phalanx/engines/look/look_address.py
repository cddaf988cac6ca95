"""Where a run can be asked what it does: a socket with an abstract name, which is in no folder.

The name holds user, process and a number, so that those who ask find all runs of a process, and
all of a user, in the system's table of sockets. The system forgets the name with its process,
however that ends. Abstract names have no permissions, so both sides look at who is at the other
end. Used by `look_door.py` and `look_client.py`; without torch.
"""

from __future__ import annotations

import os
import socket
import struct
import sys
from typing import NamedTuple

PREFIX = "phalanx-look"
TABLE = "/proc/net/unix"
BRIEFLY, WITH_STACKS = b"b", b"s"
"""What is asked: one byte."""
VERSION = 1


class LookAddress(NamedTuple):
    user: int
    process: int
    number: int

    @property
    def name(self) -> str:
        return f"\0{PREFIX}/{self.user}/{self.process}/{self.number}"


def is_available() -> bool:
    return sys.platform == "linux"


def find_addresses(table: str | None = None) -> list[LookAddress]:
    """Those that are listened at on this machine, as the text of the system's table says."""
    if table is None:
        try:
            with open(TABLE, encoding="utf-8", errors="replace") as file:
                table = file.read()
        except OSError:
            return []
    found = set()
    for line in table.splitlines():
        prefix, *parts = line.rpartition(" ")[2].split("/")
        numbers = [int(part) for part in parts if part.isascii() and part.isdigit()]
        if prefix == f"@{PREFIX}" and len(parts) == len(numbers) == 3:
            found.add(LookAddress(*numbers))
    return sorted(found)


def peer_of(connection: socket.socket) -> tuple[int, int]:
    """The process and the user at the other end, as the system knows them."""
    size = struct.calcsize("3i")
    data = connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, size)
    process, user, _ = struct.unpack("3i", data)
    return process, user


def may_ask(user: int) -> bool:
    return user in (0, os.geteuid())
