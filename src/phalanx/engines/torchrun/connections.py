"""The launcher's ends of its connections: ranks' messages, lines of output.

Used by `torchrun_launcher.py`, whose loop calls each of these when it can be read; the answer
False says that it is at its end. Must never block.
"""

from __future__ import annotations

import hmac
import os
import pickle
import socket
from collections.abc import Callable
from contextlib import suppress
from multiprocessing.connection import Connection
from typing import Any

from phalanx.engines.serialization import socket_wire
from phalanx.engines.torchrun.launch_outcome import Incarnation
from phalanx.engines.torchrun.launcher_messages import Hello, read_hello
from phalanx.system import monotonic

READ_SIZE = 1 << 16

LONGEST_HELLO = 1000

GREETING = 5.0
"""Seconds that a caller has to say hello."""


class Member:
    """The control connection of a rank, or of the agent. Called when it can be read."""

    def __init__(
        self,
        take_in: Callable[[Member, Any], Any],
        hello: Hello,
        control: Connection,
        now: Incarnation,
    ) -> None:
        self._take_in = take_in
        self.now = now
        """Those it belongs to; it may be heard when others have been started."""
        self.rank = hello.rank
        self.pid = hello.pid
        self._control = control

    def send(self, message: Any) -> None:
        with suppress(OSError):
            socket_wire.send(self._control, pickle.dumps(message, pickle.HIGHEST_PROTOCOL))

    def __call__(self) -> bool:
        try:
            message = socket_wire.receive(self._control)
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


class Greeting:
    """A connection that has not said who it is. Called when it can be read; `welcome` gets it
    with its first line, if that knows the token."""

    def __init__(
        self,
        end: socket.socket,
        token: str,
        welcome: Callable[[socket.socket, Hello], Any],
    ) -> None:
        self._end = end
        self._token = token
        self._welcome = welcome
        self._line = b""
        self._until = monotonic() + GREETING

    @property
    def is_late(self) -> bool:
        return monotonic() > self._until

    def __call__(self) -> bool:
        """False when the line is there, or is none of ours."""
        try:
            seen = self._end.recv(LONGEST_HELLO - len(self._line), socket.MSG_PEEK)
            # Not a byte of what follows.
            data = self._end.recv(len(seen.partition(b"\n")[0]) + (b"\n" in seen))
        except BlockingIOError:
            return True
        except OSError:
            data = b""
        self._line += data
        return bool(data) and b"\n" not in data and len(self._line) < LONGEST_HELLO

    def end(self) -> None:
        hello = self._hello()
        if hello is None:
            self._end.close()
        else:
            self._end.setblocking(True)
            self._welcome(self._end, hello)

    def _hello(self) -> Hello | None:
        hello = read_hello(self._line)
        if hello is None:
            return None
        given = hello.token.encode("utf-8", errors="surrogatepass")
        return hello if hmac.compare_digest(given, self._token.encode()) else None
