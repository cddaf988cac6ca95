"""The desk over TCP, in a thread of its own: for ranks that torchrun starts.

Used by the torchrun engine's launcher, once for all nodes. Every rank says hello with the
secret token, its rank and its generation; a later generation (torchrun restarts all ranks
after a failure) begins with an empty desk. Must never end a rank: torchrun does that.
"""

from __future__ import annotations

import contextlib
import hmac
import pickle
import secrets
import selectors
import socket
import threading

from phalanx.errors import VerdictError
from phalanx.model import RankView, Snapshot, ViewBlock
from phalanx.running.controller import wire
from phalanx.running.controller.counter import Counter, Outgoing
from phalanx.running.controller.wire import Decoder
from phalanx.running.snapshots import group_views

READ_SIZE = 1 << 16

DIED = "died"
"""What is said of a rank whose connection ended without a word."""


class _Caller:
    """A connection that has not said who it is, or a rank's. Pickles are read of those only
    that knew the token."""

    def __init__(self, connection: socket.socket) -> None:
        self.connection = connection
        self.decoder = Decoder()
        self.rank: int | None = None
        self.said_goodbye = False


class DeskServer:
    """Listens until closed. `port` and `token` are for the ranks."""

    def __init__(
        self,
        ranks: int,
        *,
        host: str = "127.0.0.1",
        port: int = 0,
        token: str | None = None,
        replay: str | None = None,
    ) -> None:
        self.ranks = ranks
        self.token = token or secrets.token_hex(16)
        self.generation = 0
        self._replay = replay
        self._lock = threading.Lock()
        self._counter = Counter(ranks, replay)
        self._failures: dict[int, str] = {}
        self._callers: dict[int, _Caller] = {}
        family = socket.AF_INET6 if ":" in host else socket.AF_INET
        self._listener = socket.create_server((host, port), family=family, backlog=ranks)
        self.port: int = self._listener.getsockname()[1]
        self._selector = selectors.DefaultSelector()
        self._selector.register(self._listener, selectors.EVENT_READ)
        self._wake, self._woken = socket.socketpair()
        self._selector.register(self._woken, selectors.EVENT_READ)
        self._thread = threading.Thread(target=self._serve, daemon=True, name="phalanx-desk")
        self._thread.start()

    # -- what came out ----------------------------------------------------------------------

    @property
    def error(self) -> VerdictError | None:
        """What the desk found first in the latest generation, as the error that ranks raise."""
        with self._lock:
            return self._counter.error

    @property
    def failures(self) -> dict[int, str]:
        """What ranks raised, in the order it was heard; `died` for those that just ended."""
        with self._lock:
            return dict(self._failures)

    @property
    def stopped(self) -> tuple[ViewBlock, ...]:
        """Where the others were when the first one failed."""
        with self._lock:
            views: dict[int, RankView] = self._counter.desk.stopped
            return group_views([views[rank] for rank in sorted(views)])

    def snapshot(self) -> Snapshot:
        """What every rank is doing now, as far as the desk knows."""
        with self._lock:
            return self._counter.desk.snapshot()

    def close(self) -> None:
        self._wake.close()
        self._thread.join()
        self._listener.close()
        self._woken.close()

    # -- the thread -------------------------------------------------------------------------

    def _serve(self) -> None:
        while True:
            for key, _ in self._selector.select():
                if key.fileobj is self._woken:
                    self._end()
                    return
                if key.fileobj is self._listener:
                    self._accept()
                else:
                    self._attend(key.data)

    def _end(self) -> None:
        for key in list(self._selector.get_map().values()):
            if key.data is not None:
                key.data.connection.close()
        self._selector.close()

    def _accept(self) -> None:
        with contextlib.suppress(OSError):
            connection, _ = self._listener.accept()
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            caller = _Caller(connection)
            self._selector.register(connection, selectors.EVENT_READ, caller)

    def _attend(self, caller: _Caller) -> None:
        try:
            data = caller.connection.recv(READ_SIZE)
        except OSError:
            data = b""
        with self._lock:
            try:
                if not data:
                    self._hang_up(caller)
                elif caller.rank is None:
                    self._greet(caller, data)
                else:
                    self._hear(caller, caller.rank, data)
            except (pickle.UnpicklingError, LookupError, ValueError):
                self._hang_up(caller)  # whatever that was, it was not one of our ranks

    def _hang_up(self, caller: _Caller) -> None:
        with contextlib.suppress(KeyError):
            self._selector.unregister(caller.connection)
        caller.connection.close()
        rank = caller.rank
        if rank is None or self._callers.get(rank) is not caller:
            return
        del self._callers[rank]
        stopped = rank in self._counter.desk.stopped  # and went without another word
        if not caller.said_goodbye and not stopped:
            self._failures.setdefault(rank, DIED)
            self._send(self._counter.failed(rank, DIED))

    def _greet(self, caller: _Caller, data: bytes) -> None:
        frames = list(caller.decoder.feed(data))
        if not frames:
            return
        hello, rest = frames[0], frames[1:]
        known = hello.kind == wire.HELLO and hmac.compare_digest(
            hello.body, self.token.encode()
        )
        if not known or not hello.ticket < self.ranks or hello.number < self.generation:
            self._hang_up(caller)
            return
        if hello.number > self.generation:
            self._begin(hello.number)
        caller.rank = hello.ticket
        self._callers[caller.rank] = caller
        again = b"".join(map(wire.encoded, rest)) + caller.decoder.rest
        if again:
            self._hear(caller, caller.rank, again)

    def _begin(self, generation: int) -> None:
        self.generation = generation
        self._counter = Counter(self.ranks, self._replay)
        self._failures.clear()
        self._callers.clear()

    def _hear(self, caller: _Caller, rank: int, data: bytes) -> None:
        if self._callers.get(rank) is not caller:
            return  # left over from an earlier generation
        self._send(self._counter.feed(rank, data))
        status = self._counter.desk.status_of(rank)
        caller.said_goodbye = status is not None
        if status == "failed":
            self._failures.setdefault(rank, self._counter.desk.error_of(rank) or DIED)

    def _send(self, replies: Outgoing) -> None:
        for rank, data in replies:
            caller = self._callers.get(rank)
            if caller is not None:
                with contextlib.suppress(OSError):  # noticed when it is read from
                    caller.connection.sendall(data)
