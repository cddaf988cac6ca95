"""The launcher's ends of its connections: ranks' messages, lines of output.

Used by `launcher.py`, whose loop calls each of these when it can be read; the answer False
says that it is at its end. Must never block.
"""

from __future__ import annotations

import json
import os
import pickle
import socket
from collections.abc import Callable
from contextlib import suppress
from multiprocessing.connection import Connection
from typing import Any

from phalanx.running.processes import wire
from phalanx.running.torchrun.messages import Hello

READ_SIZE = 1 << 16


class Member:
    """The control connection of a rank, or of the agent. Called when it can be read."""

    def __init__(
        self, take_in: Callable[[Member, Any], Any], hello: Hello, control: Connection
    ) -> None:
        self._take_in = take_in
        self.rank = hello.rank
        self.pid = hello.pid
        self._control = control

    def send(self, message: Any) -> None:
        with suppress(OSError):
            wire.send(self._control, pickle.dumps(message, pickle.HIGHEST_PROTOCOL))

    def __call__(self) -> bool:
        try:
            message = wire.receive(self._control)
        except (EOFError, OSError):
            self._take_in(self, None)
            return False
        self._take_in(self, message)
        return True


class Lines:
    """Whole lines out of a pipe or socket. Called when it can be read."""

    def __init__(self, fd: int, tell: Callable[[str], Any]) -> None:
        self._fd = fd
        self._tell = tell
        self._rest = b""

    def __call__(self) -> bool:
        try:
            data = os.read(self._fd, READ_SIZE)
        except BlockingIOError:
            return True
        except OSError:
            data = b""
        if not data:
            if self._rest:
                self._tell(self._rest.decode(errors="replace") + "\n")
            return False
        lines, newline, self._rest = (self._rest + data).rpartition(b"\n")
        if newline:
            self._tell((lines + newline).decode(errors="replace"))
        return True


def read_hello(end: socket.socket) -> Hello | None:
    data = b""
    while not data.endswith(b"\n") and len(data) < 1000:
        more = end.recv(1)  # not a byte of what follows
        if not more:
            return None
        data += more
    try:
        return Hello(**json.loads(data))
    except (ValueError, TypeError):
        return None
