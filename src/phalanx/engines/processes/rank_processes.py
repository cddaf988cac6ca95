"""The live processes of one world: start them, hear from them, end them.

Used by the processes engine. A team belongs to one nursery and is never repaired: after a
failure it is killed and the engine makes another. Must never decide what a failure means.
"""

from __future__ import annotations

import contextlib
import os
import pickle
import selectors
import socket
import sys
import weakref
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from multiprocessing.connection import Connection
from typing import Any, Literal

from phalanx.engines.processes.fork_server import Nursery, nursery
from phalanx.engines.processes.rank_messages import End, Start
from phalanx.engines.referee.codec import Counter, Outgoing
from phalanx.engines.remote import shared_memory_path
from phalanx.engines.serialization.buffers import Memory
from phalanx.engines.serialization.socket_wire import receive, send
from phalanx.errors import PhalanxError
from phalanx.system import monotonic

GOODBYE = 5.0
"""Seconds the ranks of a world that is closed have to leave by themselves."""

STDERR_KEPT = 40
"""Lines of standard error kept of each rank, for the report if it dies."""

READ_SIZE = 1 << 16

Stream = Literal["out", "err"]
OnOutput = Callable[[int, Stream, str], Any]


class Member:
    """One rank as the program sees it: its process, its socket, its two output pipes, and the
    line on which it announces its calls, if that is wanted."""

    def __init__(
        self,
        rank: int,
        pid: int,
        control: Connection,
        out: int,
        err: int,
        desk: socket.socket | None,
    ) -> None:
        self.rank = rank
        self.pid = pid
        self.control = control
        self.desk = desk
        self.pipes: dict[int, Stream] = {out: "out", err: "err"}
        self.rests = {out: b"", err: b""}
        self.stderr: deque[str] = deque(maxlen=STDERR_KEPT)
        self.exit_watch = _watch(pid)
        self.status: int | None = None

    def send(self, message: Any) -> None:
        self.send_bytes(pickle.dumps(message, pickle.HIGHEST_PROTOCOL))

    def send_bytes(self, data: bytes, memories: Sequence[Memory] = ()) -> None:
        """A rank that died meanwhile is noticed elsewhere."""
        with contextlib.suppress(OSError):
            send(self.control, data, memories)

    def close(self) -> None:
        self.control.close()
        for fd in (*self.pipes, *([] if self.exit_watch is None else [self.exit_watch])):
            os.close(fd)
        if self.desk is not None:
            self.desk.close()
        self.pipes, self.exit_watch, self.desk = {}, None, None


def _descriptors(member: Member) -> list[int]:
    desk = None if member.desk is None else member.desk.fileno()
    found = (member.control.fileno(), member.exit_watch, desk, *member.pipes)
    return [fd for fd in found if fd is not None]


def _watch(pid: int) -> int | None:
    """A file descriptor that can be read when the process ends. Without it (not Linux) the
    end of its socket says so."""
    try:
        return os.pidfd_open(pid)
    except (AttributeError, OSError):
        return None


def _enter(stack: contextlib.ExitStack, end: socket.socket) -> socket.socket:
    return stack.enter_context(end)


def _pipe(reader: contextlib.ExitStack, writer: contextlib.ExitStack) -> tuple[int, int]:
    out, out_end = os.pipe()
    reader.callback(os.close, out)
    writer.callback(os.close, out_end)
    return out, out_end


class Team:
    """All ranks of one world. `hear` yields what they say and who has ended; what they
    announce goes to the counter, and its answers back. `show` gets their output."""

    def __init__(
        self,
        starts: list[Start],
        listener: socket.socket,
        *,
        show: OnOutput,
        counter: Counter | None,
    ) -> None:
        self.nursery = nursery()
        self._board = shared_memory_path.make(len(starts)) if starts[0].has_board else None
        self.show = show
        self.counter = counter
        self.members: list[Member] = []
        self._selector = selectors.DefaultSelector()
        self._finalizer = weakref.finalize(
            self, _discard, self.nursery, self.members, self._selector, self._board
        )
        _open_teams.add(self)
        try:
            for start in starts:
                member = self._start(start, listener if start.rank == 0 else None)
                self.members.append(member)
                self._register(member)
                member.send(start)
        except BaseException:
            self.kill()
            raise

    @property
    def is_ours(self) -> bool:
        """False in a forked child of the program that started it."""
        return self in _open_teams

    def _start(self, start: Start, listener: socket.socket | None) -> Member:
        # What is made here is closed again if anything fails, the rank's ends in any case.
        with contextlib.ExitStack() as ours, contextlib.ExitStack() as theirs:
            control, control_end = map(_enter, (ours, theirs), socket.socketpair())
            out, out_end = _pipe(ours, theirs)
            err, err_end = _pipe(ours, theirs)
            given = [control_end.fileno(), out_end, err_end]
            desk = None
            if start.checked:
                desk, desk_end = map(_enter, (ours, theirs), socket.socketpair())
                given.append(desk_end.fileno())
            given += [self._board] if self._board is not None else []
            given += [listener.fileno()] if listener is not None else []
            os.set_blocking(out, False)
            os.set_blocking(err, False)
            pid = self.nursery.fork(given)
            ours.pop_all()
        return Member(start.rank, pid, Connection(control.detach()), out, err, desk)

    def _register(self, member: Member) -> None:
        for fd in _descriptors(member):
            self._selector.register(fd, selectors.EVENT_READ, member)

    def hear(self, timeout: float | None) -> Iterator[tuple[Member, Any]]:
        """Wait at most so long; each message with who sent it, and None for who has ended.
        What ranks print is shown meanwhile."""
        for key, _ in self._selector.select(timeout):
            member: Member = key.data
            if member.status is not None:
                continue
            if member.desk is not None and key.fd == member.desk.fileno():
                self.attend(member)
            elif key.fd in member.pipes:
                self._pass_on(member, key.fd)
            elif key.fd == member.exit_watch:
                yield from self._last_words(member)
            else:
                yield from self._message(member)

    def _message(self, member: Member) -> Iterator[tuple[Member, Any]]:
        try:
            yield member, receive(member.control)
        except (EOFError, OSError):
            yield from self._last_words(member)

    def _last_words(self, member: Member) -> Iterator[tuple[Member, Any]]:
        """What the rank had still said before it ended, then that it has."""
        with contextlib.suppress(EOFError, OSError):
            while member.control.poll():
                yield member, receive(member.control)
        self.attend(member)
        self._end(member)
        yield member, None

    def _end(self, member: Member) -> None:
        """Note how the rank ended, and stop listening to it."""
        if member.status is not None:
            return
        try:
            member.status = self.nursery.bury(member.pid)
        except PhalanxError:
            member.status = 9  # the nursery is gone, and its ranks with it
        try:
            self._drain(member, at_end=True)
        finally:
            for fd in _descriptors(member):
                self._unregister(fd)
            member.close()

    def _unregister(self, fd: int) -> None:
        if fd in self._selector.get_map():
            self._selector.unregister(fd)

    # -- the desk ---------------------------------------------------------------------------

    def begin(self, *, fresh: bool, replay: str | None) -> None:
        """A new call begins on all ranks, which do nothing yet."""
        if self._board is not None and fresh:
            shared_memory_path.clear(self._board, len(self.members))
        if self.counter is not None:
            self.counter.begin(fresh=fresh, replay=replay)

    def attend(self, member: Member) -> None:
        """Take in what the rank has announced until now, and answer."""
        while self.counter is not None and member.desk is not None:
            try:
                data = member.desk.recv(READ_SIZE, socket.MSG_DONTWAIT)
            except BlockingIOError:
                return
            except OSError:
                data = b""
            if not data:  # the rank is gone, or does not want to be watched any more
                self._unregister(member.desk.fileno())
                return
            self.answer(self.counter.feed(member.rank, data))
            if len(data) < READ_SIZE:
                return

    def attend_dead(self, member: Member) -> None:
        """Take in what the rank did and could not tell any more."""
        if self.counter is not None and self._board is not None:
            forms = shared_memory_path.past_of(self._board, len(self.members), member.rank)
            with contextlib.suppress(LookupError):  # it died before it had told what they are
                self.answer(self.counter.past(member.rank, forms))

    def answer(self, replies: Outgoing) -> None:
        for rank, data in replies:
            desk = self.members[rank].desk
            if desk is not None:
                with contextlib.suppress(OSError):  # it died, which is noticed elsewhere
                    desk.sendall(data)

    # -- output -----------------------------------------------------------------------------

    def drain(self, *, whole: bool = False) -> None:
        """Show what is in the pipes now; if `whole`, also lines that have not ended yet."""
        for member in self.members:
            if member.status is None:
                self._drain(member)
                for fd, stream in member.pipes.items() if whole else ():
                    rest, member.rests[fd] = member.rests[fd], b""
                    if rest:
                        self._tell(member, stream, rest)

    def _drain(self, member: Member, *, at_end: bool = False) -> None:
        for fd, stream in member.pipes.items():
            while self._pass_on(member, fd):
                pass
            if member.rests[fd] and at_end:
                self._tell(member, stream, member.rests[fd] + b"\n")

    def _pass_on(self, member: Member, fd: int) -> bool:
        """Show whole lines of what can be read now; whether there may be more."""
        try:
            data = os.read(fd, READ_SIZE)
        except BlockingIOError:
            return False
        if not data:  # the rank closed it: it would be ready to read for ever
            self._unregister(fd)
            return False
        lines, newline, rest = (member.rests[fd] + data).rpartition(b"\n")
        member.rests[fd] = rest
        if newline:
            self._tell(member, member.pipes[fd], lines + newline)
        return True

    def _tell(self, member: Member, stream: Stream, data: bytes) -> None:
        text = data.decode("utf-8", errors="replace")
        if stream == "err":
            member.stderr.extend(text.splitlines())
        self.show(member.rank, stream, text)

    # -- the end ----------------------------------------------------------------------------

    def close(self) -> None:
        """Let the ranks leave; kill those that do not."""
        for member in self.members:
            member.send(End())
        deadline = monotonic() + GOODBYE
        while any(m.status is None for m in self.members) and monotonic() < deadline:
            for _ in self.hear(deadline - monotonic()):
                pass
        self.kill()

    def kill(self) -> None:
        for member in self.members:
            with contextlib.suppress(OSError, ValueError):  # nowhere to show its last lines
                self._end(member)
        _open_teams.discard(self)
        self._finalizer()


def _discard(
    nursery: Nursery, members: list[Member], selector: Any, shared: int | None
) -> None:
    """For a team that nobody closed."""
    for member in members:
        if member.status is None:
            member.status = 0
            member.close()  # which the rank notices
            nursery.abandon(member.pid)
    selector.close()
    if shared is not None:
        os.close(shared)


_open_teams: weakref.WeakSet[Team] = weakref.WeakSet()


def _forget_all() -> None:
    """In a forked child of the program: the ranks are not ours, and must not be kept from
    seeing that the program has ended."""
    for team in list(_open_teams):
        team._finalizer.detach()
        for member in team.members:
            if member.status is None:
                member.status = 0
                member.close()
        team._selector.close()
        if team._board is not None:
            os.close(team._board)
    _open_teams.clear()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forget_all)


def print_line(rank: int, stream: Stream, text: str) -> None:
    """Show output of ranks as the program's own."""
    file = sys.stdout if stream == "out" else sys.stderr
    if file is not None:
        file.write(text)
        file.flush()
