"""The live processes of one world: start them, hear from them, end them.

Used by the processes engine. The processes belong to one fork server and are never repaired:
after a failure they are killed and the engine starts others. Must never decide what a failure
means.
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

from phalanx.engines.processes.fork_server import ForkServer, ForkServerSilent, fork_server
from phalanx.engines.processes.rank_messages import End, Start
from phalanx.engines.referee.codec import Outgoing, RefereeCodec
from phalanx.engines.remote import shared_memory_path
from phalanx.engines.run_settings import IDLE_STALL
from phalanx.engines.serialization.buffers import Memory
from phalanx.engines.serialization.socket_wire import receive, send
from phalanx.engines.standstill import stall_outside
from phalanx.errors import PhalanxError, StallError
from phalanx.system import monotonic

GOODBYE = 5.0
"""Seconds the ranks of a world that is closed have to leave by themselves."""

STDERR_KEPT = 40
"""Lines of standard error kept of each rank, for the report if it dies."""

READ_SIZE = 1 << 16

Stream = Literal["out", "err"]
OnOutput = Callable[[int, Stream, str], Any]


class MemberProcess:
    """One rank as the program sees it: its process, its socket, its two output pipes, and the
    line on which it announces its calls, if that is wanted."""

    def __init__(
        self,
        rank: int,
        pid: int,
        control: Connection,
        out: int,
        err: int,
        referee: socket.socket | None,
    ) -> None:
        self.rank = rank
        self.pid = pid
        self.control = control
        self.referee = referee
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
        if self.referee is not None:
            self.referee.close()
        self.pipes, self.exit_watch, self.referee = {}, None, None


def _descriptors(member: MemberProcess) -> list[int]:
    referee = None if member.referee is None else member.referee.fileno()
    found = (member.control.fileno(), member.exit_watch, referee, *member.pipes)
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


class RankProcesses:
    """All ranks of one world. `hear` yields what they say and who has ended; what they
    announce goes to the codec, and its answers back. `show` gets their output."""

    def __init__(
        self,
        starts: list[Start],
        listener: socket.socket | None,
        *,
        show: OnOutput,
        codec: RefereeCodec | None,
        timeout: float | None = None,
        replay: str | None = None,
    ) -> None:
        self._replay = replay
        self.store: Any = None
        """The store of the ranks, if the program serves it."""
        self.store_port = starts[0].store_port
        self.patience = IDLE_STALL if timeout is None else timeout
        """Seconds for the fork server to give a sign of life; then a `StallError` is raised."""
        self.fork_server = fork_server()
        self._fast_path = (
            shared_memory_path.make(len(starts)) if starts[0].has_fast_path else None
        )
        self.show = show
        self.bytes_shown = 0
        """How much the ranks have written."""
        self.codec = codec
        self.members: list[MemberProcess] = []
        self._selector = selectors.DefaultSelector()
        self._finalizer = weakref.finalize(
            self, _discard, self.fork_server, self.members, self._selector, self._fast_path
        )
        _open_worlds.add(self)
        try:
            for start in starts:
                member = self._start(start, listener if start.rank == 0 else None)
                self.members.append(member)
                self._register(member)
                member.send(start)
        except BaseException:
            with contextlib.suppress(StallError):
                self.kill()
            raise

    @property
    def is_ours(self) -> bool:
        """False in a forked child of the program that started it."""
        return self in _open_worlds

    def _start(self, start: Start, listener: socket.socket | None) -> MemberProcess:
        # What is made here is closed again if anything fails, the rank's ends in any case.
        with contextlib.ExitStack() as ours, contextlib.ExitStack() as theirs:
            control, control_end = map(_enter, (ours, theirs), socket.socketpair())
            out, out_end = _pipe(ours, theirs)
            err, err_end = _pipe(ours, theirs)
            given = [control_end.fileno(), out_end, err_end]
            referee = None
            if start.options.checked:
                referee, referee_end = map(_enter, (ours, theirs), socket.socketpair())
                given.append(referee_end.fileno())
            given += [self._fast_path] if self._fast_path is not None else []
            given += [listener.fileno()] if listener is not None else []
            os.set_blocking(out, False)
            os.set_blocking(err, False)
            try:
                pid = self.fork_server.fork(given, self.patience)
            except ForkServerSilent as error:
                raise self._stall(error, "to start ranks") from None
            ours.pop_all()
        return MemberProcess(start.rank, pid, Connection(control.detach()), out, err, referee)

    def _register(self, member: MemberProcess) -> None:
        for fd in _descriptors(member):
            self._selector.register(fd, selectors.EVENT_READ, member)

    def hear(self, timeout: float | None) -> Iterator[tuple[MemberProcess, Any]]:
        """Wait at most so long; each message with who sent it, and None for who has ended.
        What ranks print is shown meanwhile."""
        for key, _ in self._selector.select(timeout):
            member: MemberProcess = key.data
            if member.status is not None:
                continue
            if member.referee is not None and key.fd == member.referee.fileno():
                self.attend(member)
            elif key.fd in member.pipes:
                self._pass_on(member, key.fd)
            elif key.fd == member.exit_watch:
                yield from self._last_words(member)
            else:
                yield from self._message(member)

    def _message(self, member: MemberProcess) -> Iterator[tuple[MemberProcess, Any]]:
        try:
            yield member, receive(member.control)
        except (EOFError, OSError):
            yield from self._last_words(member)

    def _last_words(self, member: MemberProcess) -> Iterator[tuple[MemberProcess, Any]]:
        """What the rank had still said before it ended, then that it has."""
        with contextlib.suppress(EOFError, OSError):
            while member.control.poll():
                yield member, receive(member.control)
        self.attend(member)
        self._end(member)
        yield member, None

    def _end(self, member: MemberProcess) -> None:
        """Note how the rank ended, and stop listening to it."""
        if member.status is not None:
            return
        try:
            member.status = self.fork_server.reap(member.pid, self.patience)
        except ForkServerSilent as error:
            member.status = 9
            raise self._stall(error, f"to say how rank {member.rank} ended") from None
        except PhalanxError:
            member.status = 9  # the fork server is gone, and its ranks with it
        finally:
            try:
                self._drain(member, at_end=True)
            finally:
                for fd in _descriptors(member):
                    self._unregister(fd)
                member.close()

    def _stall(self, error: ForkServerSilent, wanted: str) -> BaseException:
        return stall_outside(error.seconds, f"{error.awaited} {wanted}", self._replay)

    def _unregister(self, fd: int) -> None:
        if fd in self._selector.get_map():
            self._selector.unregister(fd)

    # -- the referee ---------------------------------------------------------------------------

    def begin(self, *, fresh: bool, replay: str | None) -> None:
        """A new call begins on all ranks, which do nothing yet."""
        if self._fast_path is not None and fresh:
            shared_memory_path.clear(self._fast_path, len(self.members))
        if self.codec is not None:
            self.codec.begin(fresh=fresh, replay=replay)

    def attend(self, member: MemberProcess) -> None:
        """Take in what the rank has announced until now, and answer."""
        while self.codec is not None and member.referee is not None:
            try:
                data = member.referee.recv(READ_SIZE, socket.MSG_DONTWAIT)
            except BlockingIOError:
                return
            except OSError:
                data = b""
            if not data:  # the rank is gone, or does not want to be watched any more
                self._unregister(member.referee.fileno())
                return
            self.answer(self.codec.feed(member.rank, data))
            if len(data) < READ_SIZE:
                return

    def attend_dead(self, member: MemberProcess) -> None:
        """Take in what the rank did and could not tell any more."""
        if self.codec is not None and self._fast_path is not None:
            told = shared_memory_path.past_of(self._fast_path, len(self.members), member.rank)
            with contextlib.suppress(LookupError):  # it died before it had told what they are
                self.answer(self.codec.past(member.rank, told))

    def answer(self, replies: Outgoing) -> None:
        for rank, data in replies:
            referee = self.members[rank].referee
            if referee is not None:
                with contextlib.suppress(OSError):  # it died, which is noticed elsewhere
                    referee.sendall(data)

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

    def _drain(self, member: MemberProcess, *, at_end: bool = False) -> None:
        for fd, stream in member.pipes.items():
            while self._pass_on(member, fd):
                pass
            if member.rests[fd] and at_end:
                self._tell(member, stream, member.rests[fd] + b"\n")

    def _pass_on(self, member: MemberProcess, fd: int) -> bool:
        """Show whole lines of what can be read now; whether there may be more."""
        try:
            data = os.read(fd, READ_SIZE)
        except BlockingIOError:
            return False
        if not data:  # the rank closed it: it would be ready to read for ever
            self._unregister(fd)
            return False
        self.bytes_shown += len(data)
        lines, newline, rest = (member.rests[fd] + data).rpartition(b"\n")
        member.rests[fd] = rest
        if newline:
            self._tell(member, member.pipes[fd], lines + newline)
        return True

    def _tell(self, member: MemberProcess, stream: Stream, data: bytes) -> None:
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
        stall: StallError | None = None
        for member in self.members:
            try:
                self._end(member)
            except StallError as error:
                stall = stall or error
            except (OSError, ValueError):  # nowhere to show its last lines
                pass
        _open_worlds.discard(self)
        self._finalizer()
        if stall is not None:
            raise stall


def _discard(
    fork_server: ForkServer, members: list[MemberProcess], selector: Any, shared: int | None
) -> None:
    """For processes that nobody closed."""
    for member in members:
        if member.status is None:
            member.status = 0
            member.close()  # which the rank notices
            fork_server.abandon(member.pid)
    selector.close()
    if shared is not None:
        os.close(shared)


_open_worlds: weakref.WeakSet[RankProcesses] = weakref.WeakSet()


def _forget_all() -> None:
    """In a forked child of the program: the ranks are not ours, and must not be kept from
    seeing that the program has ended."""
    for ranks_alive in list(_open_worlds):
        ranks_alive._finalizer.detach()
        for member in ranks_alive.members:
            if member.status is None:
                member.status = 0
                member.close()
        ranks_alive._selector.close()
        if ranks_alive._fast_path is not None:
            os.close(ranks_alive._fast_path)
    _open_worlds.clear()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forget_all)


def print_line(rank: int, stream: Stream, text: str) -> None:
    """Show output of ranks as the program's own."""
    file = sys.stdout if stream == "out" else sys.stderr
    if file is not None:
        file.write(text)
        file.flush()
