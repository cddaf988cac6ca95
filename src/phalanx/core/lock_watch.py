"""Notice code that holds Python's lock and never lets go: a small process beside looks on.

While such code runs (a C function called with `ctypes.PyDLL`, a loop in an extension), no
Python code of this process does, so neither the monitor nor Ctrl-C has any effect. The process
beside, `lock_watcher.py` of the threads engine, watches a counter that the launcher increments
at its ticks. If it stands still for the run's timeout while the launcher waits for the lock, it
has every thread's stack written, which `faulthandler` does without the lock, and interrupts the
call that holds it. If that frees the lock, the run ends with the stall, which is reported here.
Else it prints the report itself and ends this process with exit status 3.

The hot path is not touched: nothing is written where ranks run. A run connects to the process
that the one before has left; without one, it starts one, which does not wait to be there. It
ends a second after the last run. In this process nothing is left of it when a run ends, unless
somebody keeps the connection for the next one. Linux only; elsewhere, and where no process can
be started, nothing is watched.
"""

from __future__ import annotations

import ctypes
import faulthandler
import fcntl
import mmap
import os
import select
import signal
import socket
import struct
import sys
import threading
from collections.abc import Callable, Sequence
from contextlib import suppress
from json import dumps, loads
from typing import Any

from phalanx.system import getpid, monotonic

HEAD, TEXT = 1 << 16, 1 << 15
"""Bytes of the shared file in front of the stacks, and in front of the text that says what to
watch. The first byte is 1 from the moment at which the process beside has decided that the run
is stalled, the second while there is a run. At 8 is the counter, at 24 the number of the run
and the length of the text, and from 32 on two numbers for each rank: those of its thread. All
goes through memory, so that short runs never wake that process."""
MOST_RANKS = (TEXT - 32) // 16

MOST_WAITING = 1024
"""Runs that may have come and gone before the process beside is there."""

ANSWER = 2.0
"""Seconds within which it says what it has seen, once it has decided."""

RENEW = 0.5
"""Seconds after which a change of the threads is told, at the earliest."""

STACKS = signal.SIGRTMAX - 2 if hasattr(signal, "SIGRTMAX") else 0
"""The signal at which `faulthandler` writes the stacks."""
LEAVE = signal.SIGQUIT if hasattr(signal, "SIGQUIT") else 0
"""The signal at which the process leaves with status 3. Its handler is the C function `_exit`,
which gets the number of the signal, 3, as its argument and needs no lock."""

_SUPPORTED = sys.platform == "linux" and hasattr(os, "memfd_create") and LEAVE == 3

# During runs these names stand for calls that do more.
_kill, _waitpid, _getsignal = os.kill, os.waitpid, signal.getsignal
_main_thread = threading.main_thread

error_output: int | None = None
"""Where the process beside prints, if that is not file descriptor 2, as while pytest captures
what is written there."""

about_test: Callable[[], dict[str, Any]] = dict
"""What the report is to say of the test that runs: its name as `test`, as `after` those that
are still to come, and as `failed` those that have failed, each some names and how many."""
MOST_TESTS = 8
"""Of which the names are shown."""


class LockWatch:
    """The watch over one run. `terms` say when it is stalled; `program` is the file that the
    process beside executes. The launcher's thread calls all but `note_rank`."""

    def __init__(self, program: str, terms: dict[str, Any]) -> None:
        self._program = program
        self._terms = terms
        self._companion: _Companion | None = None
        self._message: dict[str, Any] = {}
        self._count = self._threads = 0
        self._renewed_at = 0.0

    def describe(self) -> dict[str, Any]:
        """The threads that ranks have started."""
        return {"threads": []}

    def begin(self) -> None:
        """Not in a nested run: the outer one's launcher goes on to tick."""
        global _watched
        if not _SUPPORTED or not sys.executable or _watched is not None:
            return
        message = {**self._terms, **about_test(), **self.describe()}
        with suppress(OSError, AttributeError, RuntimeError, ValueError):
            companion = _take_kept() or _Companion(self._program)
            try:
                companion.arm(message)
            except BaseException:
                companion.end()
                raise
            self._companion, self._message = companion, message
            _watched = companion

    def tick(self, threads: int) -> dict[str, Any] | None:
        """What the process beside has seen, if that was a stall. `threads` is how many there
        are."""
        companion = self._companion
        if companion is None:
            return None
        if _first:
            _reap_first(os.WNOHANG)
        self._count += 1
        companion.note(self._count)
        if threads != self._threads:
            now = monotonic()
            if now - self._renewed_at > RENEW:
                self._threads, self._renewed_at = threads, now
                companion.write({**self._message, **self.describe()})
        return companion.seen() if companion.has_decided else None

    def note_rank(self, rank: int, ident: int, native: int) -> None:
        """The thread of a rank begins."""
        companion = self._companion
        if companion is not None and rank < MOST_RANKS:
            companion.note_rank(rank, ident, native)

    def close(self) -> dict[str, Any] | None:
        """The run is over: what was seen and not told before."""
        global _watched, _kept
        companion, self._companion = self._companion, None
        if companion is None:
            return None
        _watched = None
        try:
            return companion.seen() if companion.has_decided else None
        finally:
            if _keepers:
                companion.disarm()
                _kept = companion
            else:
                companion.end()


class _Companion:
    """The process beside for one run, and what it needs of this one."""

    def __init__(self, program: str) -> None:
        self._told = False
        self._runs = 0
        self._output = error_output
        self._old_wakeup: int | None = None
        self._old_leave: int | None = None
        self._registered = False
        self._files: list[int] = []
        try:
            woken, self._wakeup = os.pipe()
            self._files += (woken, self._wakeup)
            os.set_blocking(self._wakeup, False)
            self._stacks = os.memfd_create("phalanx-stacks")
            self._files.append(self._stacks)
            os.ftruncate(self._stacks, HEAD)
            self._shared = mmap.mmap(self._stacks, HEAD)
            given = (woken, 2 if error_output is None else error_output, self._stacks)
            self._line = _reach(given) or _start(program, given)
        except BaseException:
            self._close_files()
            raise

    @property
    def has_decided(self) -> bool:
        return self._shared[0] != 0 and not self._told

    def note(self, count: int) -> None:
        self._shared[8:16] = count.to_bytes(8, "little")

    def note_rank(self, rank: int, ident: int, native: int) -> None:
        place = 32 + 16 * rank
        with suppress(ValueError):  # the run is over
            self._shared[place : place + 16] = struct.pack("<QQ", ident, native)

    def is_usable(self) -> bool:
        """Whether it is there, and prints where it should."""
        with suppress(BlockingIOError):
            self._line.recv(1, socket.MSG_PEEK | socket.MSG_DONTWAIT)
            return False  # closed, or told of a run that is over
        return self._output == error_output

    def arm(self, message: dict[str, Any]) -> None:
        self._told = False
        self._runs += 1
        self._shared[:TEXT] = bytes(TEXT)
        self.write(message)
        faulthandler.register(STACKS, file=self._stacks, all_threads=True)
        self._registered = True
        if threading.current_thread() is _main_thread():
            before = signal.set_wakeup_fd(self._wakeup, warn_on_full_buffer=False)
            if before == -1:
                self._old_wakeup = before
            else:  # somebody else uses it
                signal.set_wakeup_fd(before)
        if _getsignal(LEAVE) == signal.SIG_DFL:
            before = _replace_handler(_leave_address())
            if before == signal.SIG_DFL:
                self._old_leave = before
            else:
                _replace_handler(before)
        self._shared[1] = 1

    def write(self, message: dict[str, Any]) -> None:
        """What is to be watched, as far as there is room."""
        text = dumps(message).encode()[: HEAD - TEXT]
        self._shared[TEXT : TEXT + len(text)] = text
        self._shared[24:32] = struct.pack("<II", self._runs, len(text))

    def seen(self) -> dict[str, Any]:
        self._told = True
        with suppress(OSError, ValueError):
            if select.select([self._line], [], [], ANSWER)[0]:
                seen: dict[str, Any] = loads(self._line.recv(1 << 20))
                return seen
        return {}

    def disarm(self) -> None:
        self._shared[1] = 0
        self.put_back()

    def end(self) -> None:
        self.disarm()
        with suppress(OSError):  # a process that was forked in C may have it too
            self._line.shutdown(socket.SHUT_RDWR)
        self._line.close()
        self._close_files()
        _reap_first()

    def put_back(self) -> None:
        """What belongs to the process, unless somebody has replaced it since."""
        if self._old_wakeup is not None and threading.current_thread() is _main_thread():
            before = signal.set_wakeup_fd(self._old_wakeup)
            if before not in (self._wakeup, -1):
                signal.set_wakeup_fd(before)
            self._old_wakeup = None
        if self._old_leave is not None:
            before = _replace_handler(self._old_leave)
            if before != _leave_address():
                _replace_handler(before)
            self._old_leave = None
        if self._registered:
            self._registered = False
            faulthandler.unregister(STACKS)

    def forget(self) -> None:
        """In a forked child, which nobody watches."""
        self.put_back()
        self._line.close()
        self._close_files()

    def _close_files(self) -> None:
        if hasattr(self, "_shared"):
            self._shared.close()
        files, self._files = self._files, []
        for file in files:
            with suppress(OSError):
                os.close(file)


_watched: _Companion | None = None
_kept: _Companion | None = None
_keepers = 0


def keep() -> Callable[[], None]:
    """Stay connected between runs, until the returned function is called: it takes a tenth of
    a millisecond each time, which is much for a small test."""
    global _keepers
    _keepers += 1
    return _let_go


def _let_go() -> None:
    global _keepers, _kept
    _keepers -= 1
    if not _keepers and _kept is not None:
        _kept.end()
        _kept = None


def _take_kept() -> _Companion | None:
    global _kept
    companion, _kept = _kept, None
    if companion is not None and not companion.is_usable():
        companion.end()
        return None
    return companion


_name = ""
"""Where the process that was started last can be reached, if it is still there."""
_first: int = 0
"""The process that has started it, until it is waited for."""


def _reach(files: Sequence[int]) -> socket.socket | None:
    """The process that the last run has left."""
    if not _name:
        return None
    line = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    try:
        line.setblocking(False)
        line.connect(f"\0{_name}")
        line.setblocking(True)
        peer = line.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12)
        if struct.unpack("3i", peer)[1] == os.getuid():
            socket.send_fds(line, [b"run"], list(files))
            return line
    except OSError:
        pass
    line.close()
    return None


def _start(program: str, files: Sequence[int]) -> socket.socket:
    """Start one. It forks and lets its first process end, so that it is no child of this one:
    a program may wait for its children. `subprocess` belongs to the ranks during a run."""
    global _name, _first
    _name = f"phalanx-lock-{getpid()}-{os.urandom(8).hex()}"
    line, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    door = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    command = [sys.executable, "-I", "-S", program, str(getpid()), str(int(STACKS))]
    high: list[int] = []
    try:
        door.bind(f"\0{_name}")  # here: the next run may come before the process is there
        door.listen(MOST_WAITING)
        for file in (theirs.fileno(), *files, door.fileno()):
            high.append(fcntl.fcntl(file, fcntl.F_DUPFD_CLOEXEC, 64))
        moves = [(os.POSIX_SPAWN_DUP2, file, place) for place, file in enumerate(high)]
        _reap_first()
        _first = os.posix_spawn(command[0], command, dict(os.environ), file_actions=moves)
    except BaseException:
        _name = ""
        line.close()
        raise
    finally:
        theirs.close()
        door.close()
        for file in high:
            os.close(file)
    return line


def _reap_first(options: int = 0) -> None:
    """It ends as soon as it is there."""
    global _first
    if _first:
        try:
            gone = _waitpid(_first, options)[0]
        except OSError:
            gone = _first
        if gone:
            _first = 0


_libc: Any = None


def _leave_address() -> int:
    return ctypes.cast(_load_libc()._exit, ctypes.c_void_p).value or 0


def _replace_handler(address: int) -> int:
    """Set what C does at the signal, which Python's own table knows nothing of; what it did
    before."""
    return int(_load_libc().signal(int(LEAVE), address) or 0)


def _load_libc() -> Any:
    global _libc
    if _libc is None:
        libc = ctypes.CDLL(None)
        libc.signal.restype = ctypes.c_void_p
        libc.signal.argtypes = [ctypes.c_int, ctypes.c_void_p]
        _libc = libc
    return _libc


def _become_a_process() -> None:
    global _watched, _kept, _keepers, _name, _first
    companions = (_watched, _kept)
    _watched, _kept, _keepers, _name, _first = None, None, 0, "", 0
    for companion in filter(None, companions):
        with suppress(Exception):
            companion.forget()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_become_a_process)
