"""The process beside a run on threads that ends it when nothing else can: a program.

Started by `core/lock_watch.py`, which says why. It watches the counter that the launcher of the
run increments, counts the seconds in which the launcher waits for Python's lock, and in the end
has the stacks written, interrupts the call that holds the lock, or else prints the report and
ends the process. File descriptor 0 is the line to that process, 1 brings the numbers of signals
that have reached it, 2 is where to print, 3 is the file for the stacks, and the next run comes
to 4, for which it waits a second. It imports nothing but the standard library until it has
something to report, and ends with that process.
"""

from __future__ import annotations

import contextlib
import json
import os
import select
import signal
import socket
import struct
import sys
import time
from typing import Any

HEAD, TEXT = 1 << 16, 1 << 15
"""As in `lock_watch.py`, which says what the shared file has where."""
STEP = 1.0
"""Seconds between two looks, at most."""
LINGER = 1.0
"""Seconds for which it waits for the next run."""
SHORT = 0.1
"""Seconds of a run that need no watch."""
LEAST = 2.0
"""Seconds that say nothing yet: on a busy machine a thread waits for long."""
AFTER_INTERRUPT = 3.0
"""Seconds after Ctrl-C in which the code that holds the lock may end by itself; after the
second one, `AGAIN` seconds."""
AGAIN = 0.5
WAITS = 10.0
"""So often in a second a thread wakes up that waits for the lock, at least: Python has it look
every 5 ms."""
BUSY = 0.2
"""The part of a core that a process uses if it computes."""
TO_END = 1.0
"""Seconds until a process that was told to leave is killed."""


class LockWatcher:
    def __init__(self, run: int, stacks: int) -> None:
        self._run = run
        self._began = _stat_of(run)[_BEGAN]
        self._stacks = stacks
        self._door = socket.socket(fileno=4)
        self._line = socket.socket(fileno=0)
        self._alive = _pidfd(run)
        self._terms: dict[str, Any] = {}
        self._count = self._switches = 0
        self._connect()

    def _begin(self, terms: dict[str, Any]) -> None:
        """With a run that has just begun. Ctrl-C may have come already."""
        self._terms = terms
        self._is_free(0.0)
        self._cpu = _cpu_of(self._run)
        self._silent = self._locked = self._went_on = 0.0
        """Seconds without the lock: of those that count, of all; seconds of the run."""
        self._since_press = 0.0

    def _connect(self) -> None:
        """With a new pipe and a new file."""
        os.set_blocking(1, False)
        self._number = self._presses = 0
        self._terms = {}

    def serve(self) -> None:
        while self._watch() and self._find_next_run():
            pass

    def _find_next_run(self) -> bool:
        """Wait for the next run of the process. Runs that are shorter than `SHORT` cost it next
        to nothing, so that it takes no core from them: the last one counts."""
        limit = time.monotonic() + LINGER
        self._door.setblocking(False)
        while (left := limit - time.monotonic()) > 0 and self._is_there():
            ready = select.select([self._door.fileno(), *self._alive], [], [], left)[0]
            if self._door.fileno() not in ready:
                return False
            time.sleep(SHORT)
            line = self._last_comer()
            if line is not None:
                _, files, _, _ = socket.recv_fds(line, 16, 3)
                for place, file in enumerate((line.fileno(), *files)):
                    os.dup2(file, place)
                line.close()
                for file in files:
                    os.close(file)
                self._connect()
                return True
        return False

    def _last_comer(self) -> socket.socket | None:
        last = None
        with contextlib.suppress(BlockingIOError):
            while True:
                line = self._door.accept()[0]
                peer = line.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12)
                if struct.unpack("3i", peer)[0] == self._run:
                    if last is not None:
                        last.close()
                    last = line
                else:
                    line.close()
        return last

    def _is_there(self) -> bool:
        try:
            return _stat_of(self._run)[_BEGAN] == self._began
        except (OSError, IndexError):
            return False

    def _watch(self) -> bool:
        """Until the run is over; False once the process has ended."""
        before = time.monotonic()
        while self._is_there():
            files = [0, 1, *self._alive]
            for ready in select.select(files, [], [], self._pause())[0]:
                if ready == 0:
                    if not self._hear():
                        return True
                elif ready == 1:
                    self._note_signals(os.read(1, 512))
                else:
                    return False
            now = time.monotonic()
            passed = now - before
            if passed >= 0.05:
                before = now
                if self._read():
                    self._look(min(passed, 2 * STEP))
        return False

    def _pause(self) -> float:
        if not self._terms:
            return STEP
        if self._presses:
            return 0.1
        return max(0.1, min(STEP, self._patience() / 8))

    def _patience(self) -> float:
        return max(LEAST, float(self._terms["stall"]))

    def _read(self) -> bool:
        """Whether there is a run, and what is to be watched of it."""
        head = os.pread(3, 32, 0)
        if not head[1]:
            self._terms = {}
            return False
        number, length = struct.unpack("<II", head[24:])
        with contextlib.suppress(ValueError):  # it is being written
            terms = json.loads(os.pread(3, length, TEXT))
            if number != self._number:
                self._begin(terms)
                self._number = number
                return False
            self._terms = terms
        return bool(self._terms)

    def _hear(self) -> bool:
        """False when the connection is over."""
        return bool(self._line.recv(64))

    def _note_signals(self, numbers: bytes) -> None:
        pressed = numbers.count(signal.SIGINT)
        if pressed and not self._presses:
            self._since_press = 0.0
        self._presses += pressed

    def _look(self, passed: float) -> None:
        self._went_on += passed
        if self._is_free(passed):
            self._silent = self._locked = 0.0
            self._presses = 0
            return
        self._locked += passed
        self._silent += passed
        cpu, self._cpu = self._cpu, _cpu_of(self._run)
        if self._terms["work_counts"] and self._cpu - cpu > BUSY * passed:
            self._silent = 0.0
        if self._presses:
            self._since_press += passed
            patience = AGAIN if self._presses > 1 else AFTER_INTERRUPT
            if min(self._since_press, self._locked) >= patience:
                self._act(interrupted=True)
        elif self._silent >= self._patience():
            self._act()
        elif self._is_over_limit():
            self._act(over_limit=True)

    def _is_free(self, passed: float) -> bool:
        """Whether the launcher has had the lock, or does not ask for it: it may write to a
        terminal that does not read."""
        count = self._counter()
        switches = _switches(self._run, self._terms["launcher"])
        moved, self._count = count != self._count, count
        waits, self._switches = switches - self._switches, switches
        return moved or waits < WAITS * passed or _is_stopped(self._run)

    def _counter(self) -> int:
        return int.from_bytes(os.pread(3, 8, 8), "little")

    def _is_over_limit(self) -> bool:
        limit = self._terms["limit"]
        return limit is not None and self._went_on >= limit and self._locked >= LEAST

    def _act(self, *, interrupted: bool = False, over_limit: bool = False) -> None:
        if not interrupted:
            os.pwrite(3, b"\1", 0)
        seen = self._see()
        seconds = float(self._terms["limit" if over_limit else "stall"])
        seen |= {"over_limit": over_limit, "seconds": self._locked if interrupted else seconds}
        for suspect in seen["suspects"]:
            _signal(suspect["native"], self._stacks)
            if self._is_free_again():
                seen["ranks"] = [suspect["rank"]]
                if not interrupted:
                    self._line.send(json.dumps(seen).encode())
                self._presses = 0
                self._silent = self._locked = 0.0
                return
        self._report(seen, interrupted=interrupted)
        self._end(interrupted=interrupted)
        sys.exit()

    def _is_free_again(self) -> bool:
        """Whether the launcher ticks now, or has even ended the run."""
        count, limit = self._counter(), time.monotonic() + 0.4
        while (left := limit - time.monotonic()) > 0:
            if self._counter() != count or select.select([0], [], [], min(left, 0.02))[0]:
                return True
        return False

    # -- what is seen -----------------------------------------------------------------------

    def _see(self) -> dict[str, Any]:
        """The stack of each thread, and which threads may hold the lock."""
        os.ftruncate(3, HEAD)
        os.lseek(3, 0, os.SEEK_END)
        _signal(self._run, self._stacks)
        size, limit = HEAD, time.monotonic() + 1.0
        while time.monotonic() < limit:
            time.sleep(0.05)
            before, size = size, os.fstat(3).st_size
            if size == before > HEAD:
                break
        stacks = _read_stacks(os.pread(3, size - HEAD, HEAD).decode(errors="replace"))
        threads = [*self._ranks(), *self._terms["threads"]]
        for thread in threads:
            thread["stack"] = stacks.get(thread["ident"], [])
        suspects = [t for t in threads if t["stack"] and not _is_parked(t["stack"])]
        suspects = self._without_waiting(suspects)
        running = [t for t in suspects if _is_running(self._run, t["native"])]
        holders = running if len(running) == 1 else suspects if len(suspects) == 1 else []
        return {
            "threads": threads,
            "suspects": suspects,
            "ranks": [t["rank"] for t in holders],
            **{name: self._terms.get(name) for name in ("test", "after", "failed")},
        }

    def _without_waiting(self, threads: list[dict[str, Any]]) -> list[dict[str, Any]]:
        """Those that do not wait for the lock themselves."""
        before = [_switches(self._run, thread["native"]) for thread in threads]
        time.sleep(0.3)
        return [
            thread
            for thread, count in zip(threads, before, strict=True)
            if _switches(self._run, thread["native"]) - count < 0.3 * WAITS
        ]

    def _ranks(self) -> list[dict[str, Any]]:
        """The threads of ranks that have begun."""
        ranks = min(int(self._terms["ranks"]), (TEXT - 32) // 16)
        pairs = struct.iter_unpack("<QQ", os.pread(3, 16 * ranks, 32))
        return [
            {"rank": rank, "thread": None, "ident": ident, "native": native}
            for rank, (ident, native) in enumerate(pairs)
            if ident
        ]

    # -- the end ----------------------------------------------------------------------------

    def _report(self, seen: dict[str, Any], *, interrupted: bool) -> None:
        root = os.path.abspath(__file__)
        for _ in range(4):
            root = os.path.dirname(root)
        sys.path[0] = root  # where `phalanx` is; until now it was the folder of this file
        try:
            from phalanx.engines.threads.locked_stall import render_end

            text = render_end(seen, self._terms, interrupted=interrupted)
        except Exception as error:
            text = f"phalanx: code holds Python's lock ({type(error).__name__}: {error})"
        os.write(2, f"{text}\n".encode(errors="backslashreplace"))

    def _end(self, *, interrupted: bool) -> None:
        for number in (signal.SIGTERM if interrupted else signal.SIGQUIT, signal.SIGKILL):
            _signal(self._run, number)
            limit = time.monotonic() + TO_END
            while time.monotonic() < limit:
                if not self._is_there() or _stat_of(self._run)[0] == "Z":
                    return
                time.sleep(0.02)


def _pidfd(pid: int) -> list[int]:
    try:
        return [os.pidfd_open(pid)]
    except (AttributeError, OSError):
        return []


def _signal(pid: int, number: int) -> None:
    with contextlib.suppress(OSError):
        os.kill(pid, number)  # a thread's number leads to that thread


_BEGAN = 19
"""Where in `stat` it says when the process began."""


def _stat_of(pid: int, task: str = "") -> list[str]:
    with open(f"/proc/{pid}{task}/stat", encoding="utf-8", errors="replace") as file:
        return file.read().rpartition(") ")[2].split()


def _cpu_of(pid: int) -> float:
    try:
        fields = _stat_of(pid)
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")
    except (OSError, ValueError, IndexError):
        return 0.0


def _is_stopped(pid: int) -> bool:
    """By job control, or by a debugger."""
    with contextlib.suppress(OSError, IndexError):
        return _stat_of(pid)[0] in ("T", "t")
    return False


def _read_stacks(text: str) -> dict[int, list[list[Any]]]:
    """What `faulthandler` wrote: [file, line, function] by thread, innermost first."""
    found: dict[int, list[list[Any]]] = {}
    frames: list[list[Any]] = []
    for line in text.splitlines():
        if " 0x" in line and "most recent call first" in line:
            ident = int(line.partition(" 0x")[2].split()[0], 16)
            frames = found.setdefault(ident, [])
        elif line.startswith('  File "'):
            file, _, rest = line[8:].rpartition('", line ')
            number, _, function = rest.partition(" in ")
            frames.append([file, int(number) if number.isdigit() else 0, function])
    return found


def _is_parked(stack: list[list[Any]]) -> bool:
    """Whether the thread waits for the baton, or for a job: with the lock it would not stand
    there."""
    return bool(stack[0][0].endswith(_WAITING))


_WAITING = ("/phalanx/core/baton.py", "/phalanx/core/thread_pool.py")


def _is_running(run: int, native: int) -> bool:
    """Whether it computes, or would if it had a core."""
    with contextlib.suppress(OSError, IndexError):
        return _stat_of(run, f"/task/{native}")[0] == "R"
    return False


def _switches(run: int, native: int) -> int:
    """How often the thread has gone to sleep."""
    with (
        contextlib.suppress(OSError, ValueError),
        open(f"/proc/{run}/task/{native}/status", encoding="utf-8") as file,
    ):
        for line in file:
            if line.startswith("voluntary_ctxt_switches"):
                return int(line.split()[1])
    return 0


if __name__ == "__main__":
    for _number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT):
        signal.signal(_number, signal.SIG_IGN)
    if os.fork():
        os._exit(0)
    with contextlib.suppress(Exception):  # nobody asked for it, so it has nothing to say
        LockWatcher(int(sys.argv[1]), int(sys.argv[2])).serve()
