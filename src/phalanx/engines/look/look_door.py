"""The door at which `phalanx look` asks a run what its ranks do.

Every run has one. It does nothing until the run has lasted a moment, so that short runs pay
nothing; then it listens at a socket that is in no folder (`look_address.py`). The thread that
waits for the ranks calls `tick`; there is no other thread, and nothing here blocks. Must never
disturb the run: whatever fails here only shuts the door.
"""

from __future__ import annotations

import itertools
import json
import os
import socket
import weakref
from contextlib import suppress
from typing import Protocol

from phalanx.engines.look.look_address import (
    BRIEFLY,
    VERSION,
    WITH_STACKS,
    LookAddress,
    is_available,
    may_ask,
    peer_of,
)
from phalanx.report.live.live_rows import RunState, rows_as_data, rows_of
from phalanx.system import getpid, monotonic

OPENS_AFTER = 0.3
"""Seconds that a run must last before it can be asked."""
BETWEEN = 0.05
PATIENCE = 1.0
"""Seconds that ranks have to say where they are."""
HANGS_UP = 5.0
"""Seconds after which a visitor is sent away, whatever is left to say."""
FEW_ROWS, MOST_ROWS = 200, 4096
"""Rows beyond which ranks are folded more roughly, and rows that are told at most."""

_numbers = itertools.count(1)


class RunWatch(Protocol):
    """What a running engine can say of its ranks, to the thread that ticks."""

    def ask(self) -> None:
        """Ask the ranks where they are, if they have to be asked."""

    def has_answers(self) -> bool:
        """Whether all that were asked have answered."""

    def state(self, *, stacks: bool) -> RunState | None:
        """What ranks do; None if that cannot be said at this moment."""


class LookDoor:
    """One run's. `close` is called when the run has ended."""

    def __init__(self, watch: RunWatch, *, engine: str) -> None:
        self._watch = watch
        self._engine = engine
        self._began = monotonic()
        self._next = self._began + OPENS_AFTER
        self._listener: socket.socket | None = None
        self._visitor: _Visitor | None = None

    def tick(self) -> None:
        now = monotonic()
        if now < self._next:
            return
        self._next = now + BETWEEN
        try:
            if self._listener is None:
                self._open()
            elif self._visitor is None:
                self._let_in()
            elif not self._serve(self._visitor):
                self._visitor.connection.close()
                self._visitor = None
        except Exception:  # a look may fail, the run may not
            self.close()

    def close(self) -> None:
        self._next = float("inf")
        if self._visitor is not None:
            self._visitor.connection.close()
            self._visitor = None
        if self._listener is not None:
            self._listener.close()
            self._listener = None
            _open_doors.discard(self)

    def _open(self) -> None:
        if not is_available():
            self._next = float("inf")
            return
        listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self._listener = listener
        _open_doors.add(self)
        listener.setblocking(False)
        listener.bind(LookAddress(os.geteuid(), getpid(), next(_numbers)).name)
        listener.listen(8)

    def _let_in(self) -> None:
        assert self._listener is not None
        try:
            connection, _ = self._listener.accept()
        except BlockingIOError:
            return
        connection.setblocking(False)
        if may_ask(peer_of(connection)[1]):
            self._visitor = _Visitor(connection)
        else:
            connection.close()

    def _serve(self, visitor: _Visitor) -> bool:
        """Whether the visitor stays. A question, then the ranks' answers, then ours."""
        now = monotonic()
        if now - visitor.came > HANGS_UP:
            return False
        with suppress(BlockingIOError):
            if visitor.question is None:
                visitor.question = visitor.connection.recv(1)
                if visitor.question not in (BRIEFLY, WITH_STACKS):
                    return False
                visitor.asked = now
                self._watch.ask()
            if visitor.answer is None and (
                self._watch.has_answers() or now - visitor.asked > PATIENCE
            ):
                visitor.answer = self._answer(visitor.question == WITH_STACKS)
            if visitor.answer is not None:
                return visitor.send()
        return True

    def _answer(self, stacks: bool) -> bytes | None:
        state = self._watch.state(stacks=stacks)
        if state is None:
            return None
        rows = rows_of(state, most=FEW_ROWS, with_stacks=stacks)
        data = {
            "version": VERSION,
            "engine": self._engine,
            "ranks": len(state.snapshot.ranks),
            "seconds": round(monotonic() - self._began, 1),
            "rows": rows_as_data(rows[:MOST_ROWS]),
        }
        return json.dumps(data).encode()


class _Visitor:
    def __init__(self, connection: socket.socket) -> None:
        self.connection = connection
        self.came = self.asked = monotonic()
        self.question: bytes | None = None
        self.answer: bytes | None = None

    def send(self) -> bool:
        """As much as fits; whether something is left."""
        while self.answer:
            self.answer = self.answer[self.connection.send(self.answer) :]
        return False


_open_doors: weakref.WeakSet[LookDoor] = weakref.WeakSet()


def _close_in_child() -> None:
    """A forked child is in no run; its copy of the socket would keep the name."""
    for door in list(_open_doors):
        door.close()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_close_in_child)
