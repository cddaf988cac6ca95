"""The referee over TCP, in a thread of its own: for ranks that torchrun starts.

Used by the torchrun engine's launcher, once for all nodes. Ranks of its own machine are handed
over by the launcher, which knows them (`adopt`). Every other rank says hello with the secret
token and its rank. Ranks that torchrun starts again after a failure get a server of their own.
Whoever does not know the token, or says to be a rank that is here, is sent away.
What the referee does not understand ends the checks, and the ranks go on without them. Must
never end a rank: torchrun does that.
"""

from __future__ import annotations

import contextlib
import hmac
import selectors
import socket
import threading
from collections import deque
from collections.abc import Callable
from typing import Any

from phalanx.engines.look.remote_watch import Heard, heard_by
from phalanx.engines.referee.codec import Outgoing, RefereeCodec
from phalanx.engines.referee.referee_key import new_offer
from phalanx.engines.remote import frames
from phalanx.engines.remote.frames import Decoder
from phalanx.engines.snapshots import group_views
from phalanx.engines.tests_of_ranks import VerdictType
from phalanx.errors import VerdictError
from phalanx.journal.reader import Journal
from phalanx.journal.writer import JournalWriter
from phalanx.kinds import ALL
from phalanx.model import RankView, Snapshot, Tally, Verdict, ViewBlock
from phalanx.system import monotonic

READ_SIZE = 1 << 16

GREETING = 10.0
"""Seconds that a caller has to say hello."""

BACKLOG = 256
"""Callers that may wait, so that strangers do not keep ranks out."""

LOOK = 0.05
"""Seconds between two looks at ranks that wait."""

LAST_WORDS = 5.0
"""Seconds until all is heard that ranks said before they ended."""

DIED = "died"
"""What is said of a rank whose connection ended without a word."""


class _Caller:
    """A connection that has not said who it is, or a rank's. Messages are read of those only
    that knew the token."""

    def __init__(self, connection: socket.socket) -> None:
        self.connection = connection
        self.hello = b""
        self.until = monotonic() + GREETING
        self.rank: int | None = None
        self.said_goodbye = False


class RefereeServer:
    """Listens until closed, on a port unless `host` is None. `offer` is for ranks of other
    machines, `adopt` for those of this one."""

    def __init__(
        self,
        ranks: int,
        *,
        host: str | None = "127.0.0.1",
        key: str = "",
        replay: str | None = None,
        kinds: frozenset[str] = ALL,
        profile: str | None = None,
        on_journal: Callable[[JournalWriter], Any] | None = None,
    ) -> None:
        self.ranks = ranks
        self._lock = threading.Lock()
        self._codec = RefereeCodec(ranks, replay, kinds=kinds, profile=profile)
        if on_journal is not None:
            on_journal(self._codec.referee.journal)
        self._looked = 0.0
        self._left = threading.Condition(self._lock)
        self._failures: dict[int, str] = {}
        self._trouble: str | None = None
        self._strangers: set[_Caller] = set()
        self._callers: dict[int, _Caller] = {}
        self._adopted: deque[tuple[socket.socket, int]] = deque()
        self._selector = selectors.DefaultSelector()
        self._listener = None if host is None else _listen(host, ranks)
        if self._listener is not None:
            self._selector.register(self._listener, selectors.EVENT_READ)
        self.offer = new_offer(_port_of(self._listener), key)
        self.token = self.offer.token(key)
        self._wake, self._woken = socket.socketpair()
        self._selector.register(self._woken, selectors.EVENT_READ)
        self._thread = threading.Thread(target=self._serve, daemon=True, name="phalanx-referee")
        self._thread.start()

    def adopt(self, connection: socket.socket, rank: int) -> None:
        """A rank that is known to be one. From any thread."""
        self._adopted.append((connection, rank))
        with contextlib.suppress(OSError):
            self._wake.send(b"a")

    # -- what came out ----------------------------------------------------------------------

    @property
    def error(self) -> VerdictError | None:
        """What the referee found first as the error that ranks raise."""
        with self._lock:
            return self._codec.error

    @property
    def trouble(self) -> str | None:
        """Why the ranks go on unchecked, if they do."""
        with self._lock:
            return self._trouble

    @property
    def failures(self) -> dict[int, str]:
        """What ranks raised, in the order it was heard; `died` for those that just ended."""
        with self._lock:
            return dict(self._failures)

    @property
    def stopped(self) -> tuple[ViewBlock, ...]:
        """Where the others were when the first one failed."""
        with self._lock:
            views: dict[int, RankView] = self._codec.referee.stopped
            return group_views([views[rank] for rank in sorted(views)])

    def snapshot(self) -> Snapshot:
        """What every rank is doing now, as far as the referee knows."""
        with self._lock:
            return self._codec.referee.snapshot()

    def hear(self) -> Heard:
        """The same with figures, for those who watch."""
        with self._lock:
            return heard_by(self._codec.referee)

    def tally(self) -> Tally:
        """How much was checked."""
        with self._lock:
            return self._codec.referee.tally()

    def read_journal(self, *, at_end: bool) -> Journal:
        """What happened; `at_end`, once all is heard that ranks have
        said."""
        with self._lock:
            if at_end:
                self._left.wait_for(lambda: not self._callers, LAST_WORDS)
            return self._codec.referee.read_journal()

    def with_tests(self, verdict: VerdictType) -> VerdictType:
        """The verdict with the tests of pytest that ranks have said they are in."""
        with self._lock:
            return self._codec.with_tests(verdict)

    def find_at_end(self) -> list[Verdict]:
        """Once all ranks have ended well, and all that they said has been heard."""
        with self._lock:
            self._left.wait_for(lambda: not self._callers, LAST_WORDS)
            return self._codec.find_at_end() if self._trouble is None else []

    def close(self) -> None:
        self._wake.close()
        self._thread.join()
        self._woken.close()
        while self._adopted:
            self._adopted.pop()[0].close()

    # -- the thread -------------------------------------------------------------------------

    def _serve(self) -> None:
        try:
            while self._serve_once():
                pass
        except Exception as error:
            with self._lock:
                self._trouble = _named(error)
        finally:
            self._end()

    def _serve_once(self) -> bool:
        patience = LOOK if self._callers else 1.0 if self._strangers else None
        for key, _ in self._selector.select(patience):
            if key.fileobj is self._woken:
                if not self._woken.recv(READ_SIZE):
                    return False
                self._take_adopted()
            elif key.fileobj is self._listener:
                self._accept()
            else:
                self._attend(key.data)
        for caller in [each for each in self._strangers if monotonic() > each.until]:
            self._hang_up(caller)
        if self._callers and monotonic() - self._looked > LOOK:
            self._looked = monotonic()
            with self._lock:
                self._send(self._codec.look())
        return True

    def _end(self) -> None:
        """Nobody may wait for an answer that does not come."""
        for key in list(self._selector.get_map().values()):
            if key.data is not None:
                key.data.connection.close()
        self._selector.close()
        if self._listener is not None:
            self._listener.close()

    def _take_adopted(self) -> None:
        while self._adopted:
            connection, rank = self._adopted.popleft()
            caller = _Caller(connection)
            self._selector.register(connection, selectors.EVENT_READ, caller)
            with self._lock:
                self._admit(caller, rank)

    def _accept(self) -> None:
        assert self._listener is not None
        with contextlib.suppress(OSError):
            connection, _ = self._listener.accept()
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            caller = _Caller(connection)
            self._selector.register(connection, selectors.EVENT_READ, caller)
            self._strangers.add(caller)

    def _attend(self, caller: _Caller) -> None:
        if caller.connection.fileno() < 0:
            return  # hung up on while another one was heard
        hello = len(frames.encode(frames.HELLO, body=self.token.encode()))
        try:
            most = READ_SIZE if caller.rank is not None else hello - len(caller.hello)
            data = caller.connection.recv(most)
        except OSError:
            data = b""
        with self._lock:
            if not data:
                self._hang_up(caller)
            elif caller.rank is None:
                caller.hello += data
                if frames.announced(caller.hello) not in (None, hello):
                    self._hang_up(caller)
                elif len(caller.hello) == hello:
                    self._greet(caller)
            else:
                try:
                    self._hear(caller, caller.rank, data)
                except Exception as error:  # of another version, or no rank of ours
                    self._give_up(_named(error))

    def _give_up(self, why: str) -> None:
        """The referee does not know any more what the ranks do: they go on without it."""
        self._trouble = why
        callers = list(self._callers.values())
        self._callers.clear()
        self._left.notify_all()
        for caller in callers:
            self._hang_up(caller)

    def _hang_up(self, caller: _Caller) -> None:
        with contextlib.suppress(KeyError, ValueError):  # it may be closed already
            self._selector.unregister(caller.connection)
        caller.connection.close()
        self._strangers.discard(caller)
        rank = caller.rank
        if rank is None or self._callers.get(rank) is not caller:
            return
        del self._callers[rank]
        self._notify_left()
        stopped = rank in self._codec.referee.stopped  # and went without another word
        if not caller.said_goodbye and not stopped:
            self._failures.setdefault(rank, DIED)
            self._send(self._codec.failed(rank, DIED))

    def _notify_left(self) -> None:
        if not self._callers:
            self._left.notify_all()

    def _greet(self, caller: _Caller) -> None:
        (hello,) = Decoder().feed(caller.hello)
        known = hello.kind == frames.HELLO and hmac.compare_digest(
            hello.body, self.token.encode()
        )
        if known:
            self._admit(caller, hello.call_id)
        else:
            self._hang_up(caller)

    def _admit(self, caller: _Caller, rank: int) -> None:
        if not 0 <= rank < self.ranks or rank in self._callers:
            self._hang_up(caller)
            return
        if self._trouble is not None:
            with contextlib.suppress(OSError):  # it goes on unchecked, as the others do
                caller.connection.sendall(frames.encode(frames.PONG))
            self._hang_up(caller)
            return
        self._strangers.discard(caller)
        caller.rank = rank
        self._callers[rank] = caller

    def _hear(self, caller: _Caller, rank: int, data: bytes) -> None:
        if self._callers.get(rank) is not caller:
            return
        self._send(self._codec.feed(rank, data))
        status = self._codec.referee.status_of(rank)
        caller.said_goodbye = status is not None
        if status == "failed":
            self._failures.setdefault(rank, self._codec.referee.error_of(rank) or DIED)

    def _send(self, replies: Outgoing) -> None:
        for rank, data in replies:
            caller = self._callers.get(rank)
            if caller is not None:
                with contextlib.suppress(OSError):  # noticed when it is read from
                    caller.connection.sendall(data)


def _listen(host: str, ranks: int) -> socket.socket:
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    return socket.create_server((host, 0), family=family, backlog=max(ranks, BACKLOG))


def _port_of(listener: socket.socket | None) -> int:
    return 0 if listener is None else int(listener.getsockname()[1])


def _named(error: Exception) -> str:
    return f"the referee did not understand a rank: {type(error).__name__}: {error}"
