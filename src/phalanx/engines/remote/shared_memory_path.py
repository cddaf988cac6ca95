"""A fast path in shared memory on which ranks of one machine see each other's calls.

The short way past the referee, for the commonest calls: those that make their rank wait. Each
rank writes the number of its call on the group and a hash of its signature; who comes last sees
that all agree and wakes the others. Messages from one rank to another are a group of two.
Nobody asks the referee then, which takes two more wake-ups of a process that is busy with
everyone. Whatever is not that simple (calls that differ, that need not wait, a rank that is
late) goes to the referee: a call is on the fast path or at the referee, never on both, so what
the referee proves stays a proof. Used by the link; must never decide what is wrong.
"""

from __future__ import annotations

import ctypes
import fcntl
import hashlib
import mmap
import os
import platform
import struct
import sys
import threading
from collections.abc import Hashable

from phalanx.engines.remote.frames import Record
from phalanx.system import monotonic

ROWS = 512
"""Groups, and pairs of ranks that exchange messages, that have a place on the fast path; the
others go to the referee."""

PATIENCE = 0.005
"""Seconds that a rank waits here before it asks the referee."""

GLANCES = 0.0001
"""Seconds that a rank looks at the fast path again and again before it sleeps, if every rank
has a core of its own: being woken takes about as long."""

TRIES = 30
"""How often a rank tries to get the lock before it sleeps."""

AT_DESK = 1
"""Stands for a signature: the rank has taken this call to the referee."""

NEVER_HERE = 2
"""The rank takes all its calls on this group to the referee."""

MOST_PAST = 256
"""Calls of a rank that met here before it tells the referee of them. What it has to tell stands
behind the rows, for the case that it dies before that."""

_HEAD = struct.Struct("=QII")  # the group's key, completed calls, events (what is waited on)
_WORD = struct.Struct("=QQ")  # of each member: number of its call, signature
_EVENTS = 12
_NUMBER = struct.Struct("=I")  # of each rank: how many calls it has not told of, then these
_RECORD = struct.Struct("=IIId")
_PAST_SIZE = _NUMBER.size + MOST_PAST * _RECORD.size

_FUTEX = {"x86_64": 202, "aarch64": 98}.get(platform.machine())
_WAIT, _WAKE = 0, 1


def is_available() -> bool:
    return sys.platform == "linux" and _FUTEX is not None


def make(size: int) -> int:
    """A file descriptor for a fast path of so many ranks."""
    fd = os.memfd_create("phalanx-fast_path")
    os.ftruncate(fd, _size_of(size))
    return fd


def clear(fd: int, size: int) -> None:
    """Forget all groups. Only while no rank uses it."""
    os.pwrite(fd, bytes(_size_of(size)), 0)


def past_of(fd: int, size: int, rank: int) -> list[Record]:
    """Calls that a rank, which is dead, has not told the referee of."""
    data = os.pread(fd, _PAST_SIZE, _past_at(size, rank))
    (many,) = _NUMBER.unpack_from(data)
    return [_RECORD.unpack_from(data, _NUMBER.size + at * _RECORD.size) for at in range(many)]


def digest_of(signature: Hashable) -> int:
    """Equal for equal signatures, in all processes."""
    data = hashlib.blake2b(repr(signature).encode(), digest_size=8).digest()
    return max(int.from_bytes(data, "little"), NEVER_HERE + 1)


def _row_size(size: int) -> int:
    return _HEAD.size + size * _WORD.size


def _past_at(size: int, rank: int) -> int:
    return ROWS * _row_size(size) + rank * _PAST_SIZE


def _size_of(size: int) -> int:
    return _past_at(size, size)


class FastPath:
    """One rank's view of it."""

    def __init__(self, fd: int, size: int) -> None:
        self._fd = fd
        self._size = size
        self._memory = mmap.mmap(fd, _size_of(size))
        self.is_roomy = len(os.sched_getaffinity(0)) > size
        self._threads = threading.Lock()
        libc = ctypes.CDLL(None, use_errno=True)
        self._syscall = libc.syscall

    def note_past(self, rank: int, at: int, record: Record) -> None:
        """The rank has made such a call here; `at` others are not told to the referee yet."""
        if at >= MOST_PAST:
            return  # another thread is about to tell it
        start = _past_at(self._size, rank)
        _RECORD.pack_into(self._memory, start + _NUMBER.size + at * _RECORD.size, *record)
        _NUMBER.pack_into(self._memory, start, at + 1)

    def forget_past(self, rank: int) -> None:
        """The referee is about to be told."""
        _NUMBER.pack_into(self._memory, _past_at(self._size, rank), 0)

    def row(self, key: str, member: int, members: int) -> Row | None:
        """This rank's place in the row of a group, or of a pair; None if the fast path is
        full."""
        wanted = digest_of(key)
        for at in range(ROWS):
            start = (wanted + at) % ROWS * _row_size(self._size)
            with _Lock(self, start):
                found, done, events = _HEAD.unpack_from(self._memory, start)
                if found == 0:
                    _HEAD.pack_into(self._memory, start, wanted, done, events)
                if found in (0, wanted):
                    return Row(self, start, member, members)
        return None


class _Lock:
    """Held by one thread of one process at a time; the system takes it from a process that
    dies. To the system all threads of a process are one, and a process that holds one row
    and waits for another might be in a circle: so a process has one of these at a time."""

    def __init__(self, fast_path: FastPath, start: int) -> None:
        self._threads = fast_path._threads
        self._fd, self._start = fast_path._fd, start

    def __enter__(self) -> None:
        self._threads.acquire()
        try:
            self._take()
        except BaseException:
            self._threads.release()
            raise

    def __exit__(self, *error: object) -> None:
        try:
            fcntl.lockf(self._fd, fcntl.LOCK_UN, 1, self._start)
        finally:
            self._threads.release()

    def _take(self) -> None:
        for _ in range(TRIES):  # others hold it for microseconds: sleeping takes longer
            try:
                fcntl.lockf(self._fd, fcntl.LOCK_EX | fcntl.LOCK_NB, 1, self._start)
            except OSError:
                continue
            return
        fcntl.lockf(self._fd, fcntl.LOCK_EX, 1, self._start)


class Row:
    """One rank's place in the row of a group. `number` counts its calls there; `came_last` says
    of the latest that it completed its slot, so that the rank did not have to wait."""

    def __init__(self, fast_path: FastPath, start: int, member: int, members: int) -> None:
        self._fast_path = fast_path
        self._memory = fast_path._memory
        self._start = start
        self._own = start + _HEAD.size + member * _WORD.size
        self._words = struct.Struct(f"={2 * members}Q")
        self._lock = _Lock(fast_path, start)
        self._word = ctypes.c_uint32.from_buffer(fast_path._memory, start + _EVENTS)
        self._address = ctypes.addressof(self._word)
        self._closed = False
        self.number = 0
        self.came_last = False

    def meet(self, digest: int) -> bool:
        """Whether all members have made this call by now or soon, with this signature. If
        not, the referee knows more."""
        with self._lock:
            number, self.number = self.number, self.number + 1
            if self._closed:
                return False
            _WORD.pack_into(self._memory, self._own, number, digest)
            words = self._words.unpack_from(self._memory, self._start + _HEAD.size)
            here = words[1::2].count(digest) == len(words) // 2
            if here and words[::2].count(number) == len(words) // 2:
                self._change(done=number + 1)
                complete = True
            else:
                complete = False
                if self._is_elsewhere(words, number, digest):
                    self._take_away(number)
                    return False
                events = self._head()[2]
        self.came_last = complete
        if complete:
            self._wake()
            return True
        return self._wait(number, digest, events)

    def pass_by(self) -> None:
        """A call that goes to the referee at once."""
        with self._lock:
            number, self.number = self.number, self.number + 1
            if not self._closed:
                self._take_away(number)

    def close(self) -> None:
        """Take all calls to the referee from now on: after a verdict members may have made
        different numbers of calls."""
        with self._lock:
            if not self._closed:
                self._closed = True
                self._take_away(self.number, NEVER_HERE)

    def _wait(self, number: int, digest: int, events: int) -> bool:
        start = monotonic()
        if self._fast_path.is_roomy:
            while monotonic() - start < GLANCES:
                if self._head()[1] > number:
                    return True
        while True:
            left = start + PATIENCE - monotonic()
            if left > 0:
                self._sleep(events, left)
            if self._head()[1] > number:
                return True
            with self._lock:
                _, done, events = self._head()
                if done > number:
                    return True
                words = self._words.unpack_from(self._memory, self._start + _HEAD.size)
                if left <= 0 or self._is_elsewhere(words, number, digest):
                    self._take_away(number)
                    return False

    def _is_elsewhere(self, words: tuple[int, ...], number: int, digest: int) -> bool:
        """Whether a member will not meet this call here: it is at the referee, or is
        another."""
        for at in range(0, len(words), 2):
            if words[at + 1] == NEVER_HERE or words[at] > number:
                return True
            if words[at] == number and words[at + 1] not in (0, digest):
                return True
        return False

    def _take_away(self, number: int, mark: int = AT_DESK) -> None:
        _WORD.pack_into(self._memory, self._own, number, mark)
        self._change()
        self._wake()

    def _head(self) -> tuple[int, int, int]:
        key, done, events = _HEAD.unpack_from(self._memory, self._start)
        return key, done, events

    def _change(self, done: int | None = None) -> None:
        key, before, events = self._head()
        done = before if done is None else done
        _HEAD.pack_into(self._memory, self._start, key, done, (events + 1) & 0xFFFFFFFF)

    def _sleep(self, events: int, seconds: float) -> None:
        limit = _Timespec(0, int(seconds * 1e9))
        self._call(_WAIT, events, ctypes.byref(limit))

    def _wake(self) -> None:
        self._call(_WAKE, 0x7FFFFFFF, None)

    def _call(self, what: int, value: int, limit: object) -> None:
        address, nothing = ctypes.c_void_p(self._address), ctypes.c_void_p(None)
        number = ctypes.c_long(_FUTEX or 0)
        self._fast_path._syscall(
            number, address, what, ctypes.c_uint32(value), limit, nothing, 0
        )


class _Timespec(ctypes.Structure):
    _fields_ = (("seconds", ctypes.c_long), ("nanoseconds", ctypes.c_long))
