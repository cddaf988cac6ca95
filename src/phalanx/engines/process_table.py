"""What the system tells of other processes: what they have computed, whether they are stopped,
what they have started.

Used by the engines whose ranks are processes. Where the system does not tell (not Linux),
nothing is taken for standing still. Must never end a process, but for `kill_all` and
`kill_group`.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress

from phalanx.system import monotonic

LOOK = 1.0
"""Seconds between two looks."""
TRACKER = b"from multiprocessing.resource_tracker import main"
LITTLE = 0.05
"""The part of a core that processes use which only wait: their threads look about."""


def cpu_ticks(pid: int) -> int:
    """What the process has computed so far. Unknown: the wall clock."""
    fields = _stat(pid)
    if fields is None:
        return int(monotonic() * os.sysconf("SC_CLK_TCK"))
    return int(fields[11]) + int(fields[12])


def is_stopped(pid: int) -> bool:
    """By SIGSTOP and the like: it hears nothing but SIGKILL."""
    fields = _stat(pid)
    return fields is not None and fields[0] in ("T", "t")


def is_at_work(pid: int) -> bool:
    """Whether it computes, waits for a core to do so, or for a disk."""
    fields = _stat(pid)
    return fields is not None and fields[0] in ("R", "D")


def family_of(pid: int) -> list[int]:
    """The process and all that it has started, and so on, the oldest first."""
    started: dict[int, list[int]] = {}
    with suppress(OSError):
        for name in os.listdir("/proc"):
            fields = _stat(int(name)) if name.isdigit() else None
            if fields is not None:
                started.setdefault(int(fields[1]), []).append(int(name))
    found = [pid]
    for each in found:
        found += started.get(each, ())
    return found


@contextmanager
def held(pids: Iterable[int]) -> Iterator[list[int]]:
    """File descriptors of processes, which stand for no others that come to have the same
    number."""
    found = []
    try:
        for pid in pids:
            with suppress(AttributeError, OSError):
                found.append(os.pidfd_open(pid))
        yield found
    finally:
        for each in found:
            os.close(each)


def kill_all(processes: Iterable[int]) -> None:
    """By SIGKILL, which stopped processes hear, too."""
    for each in processes:
        with suppress(OSError):
            signal.pidfd_send_signal(each, signal.SIGKILL)


def is_resource_tracker(pid: int) -> bool:
    """Whether it is the process of `multiprocessing` that removes named semaphores and shared
    memory when those that use them are gone, and then ends. Killed with them it leaves all that
    they had in /dev/shm."""
    try:
        with open(f"/proc/{pid}/cmdline", "rb") as file:
            return TRACKER in file.read()
    except OSError:
        return False


def kill_group(group: int, *, but: int = 0) -> None:
    """Kill the process group by SIGKILL, without resource trackers and without process `but`.
    Who is sent the signal starts nothing more, so that nothing is missed when a further look
    finds nobody new."""
    try:
        os.killpg(group, 0)
    except OSError:  # the usual case: nobody is left
        return
    if not os.path.exists("/proc/self/stat"):
        os.killpg(group, signal.SIGKILL)
        return
    known = {but}
    while new := [each for each in _members_of(group) if each not in known]:
        known.update(new)
        for each in new:
            if not is_resource_tracker(each):
                with suppress(OSError):
                    os.kill(each, signal.SIGKILL)


def _members_of(group: int) -> list[int]:
    pids = [int(name) for name in os.listdir("/proc") if name.isdigit()]
    stats = ((pid, _stat(pid)) for pid in pids)
    return [pid for pid, fields in stats if fields is not None and int(fields[2]) == group]


def named(what: str, pid: int) -> str:
    """As a report calls it."""
    return f"{what} (process {pid}{', stopped' if is_stopped(pid) else ''})"


def _stat(pid: int) -> list[str] | None:
    """The fields of /proc/PID/stat from the state on."""
    try:
        with open(f"/proc/{pid}/stat", encoding="utf-8", errors="replace") as file:
            return file.read().rpartition(")")[2].split()
    except OSError:
        return None


def bytes_moved(pid: int) -> int:
    """How much the process has read and written, into files, pipes and the terminal."""
    with suppress(OSError, ValueError, IndexError):
        with open(f"/proc/{pid}/io", encoding="ascii") as file:
            read, written = file.readline(), file.readline()
        return int(read.split()[1]) + int(written.split()[1])
    return 0


class Work:
    """Whether processes compute, or read from a disk. `pids` says which. With `moves_bytes`
    what they read and write counts as well, for those whose output nobody else sees."""

    def __init__(self, pids: Callable[[], Iterable[int]], *, moves_bytes: bool = False) -> None:
        self._pids = pids
        self._moves_bytes = moves_bytes
        self._ticks = self._bytes = 0
        self._looked = monotonic()

    def is_time_to_look(self) -> bool:
        return monotonic() - self._looked > LOOK

    def goes_on(self) -> bool:
        """Since the last look."""
        now, pids = monotonic(), list(self._pids())
        ticks = sum(map(cpu_ticks, pids))
        moved = sum(map(bytes_moved, pids)) if self._moves_bytes else 0
        used, elapsed = abs(ticks - self._ticks), now - self._looked
        has_moved, self._bytes = moved != self._bytes, moved
        self._ticks, self._looked = ticks, now
        computes = used > LITTLE * elapsed * os.sysconf("SC_CLK_TCK")
        return computes or has_moved or any(map(is_at_work, pids))
