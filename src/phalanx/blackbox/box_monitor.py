"""Looks now and then whether the rank stands still, and hears signals that the main thread
cannot: it may wait in C++ for ever.

A thread of its own. A signal's handler in Python runs in the main thread only, when it comes
back to Python; but the byte that Python writes for each signal arrives at once, and this thread
reads it. Must never raise into the program, nor wait for it.
"""

from __future__ import annotations

import ctypes
import os
import select
import signal
import sys
import threading
import traceback
from contextlib import suppress
from time import monotonic
from typing import Any

from phalanx.blackbox.box_writer import MONITOR, REQUEST, BoxWriter, find_call
from phalanx.system import current_frames

PERIOD = 1.0
"""Seconds between two looks, or a quarter of the time that counts as a hang."""


class BoxMonitor:
    """The thread, and the handlers of signals."""

    def __init__(self, writer: BoxWriter, hang: float, on_signal: int | None) -> None:
        self._writer = writer
        self._hang = hang
        self._signal = on_signal
        self._pid = os.getpid()
        self._before: dict[int, Any] = {}
        self._mask: set[signal.Signals | int] | None = None
        self._fd_before: int | None = None
        self._ends = os.pipe()
        self._stopping = False
        self._thread = threading.Thread(target=self._watch, name=MONITOR, daemon=True)
        self._seen: dict[int, tuple[object, float]] = {}
        self._told: dict[int, object] = {}
        self._asked_at = self._request_time()
        self._fatal = FatalSignals(writer)

    def start(self) -> None:
        os.set_blocking(self._ends[1], False)
        self._fatal.put_in()
        if threading.current_thread() is threading.main_thread():
            self._listen_to_signals()
        self._thread.start()

    def stop(self) -> None:
        self._stopping = True
        self._fatal.take_out()
        with suppress(OSError):
            os.write(self._ends[1], b"\0")
        if self._pid == os.getpid():
            self._thread.join()
        if threading.current_thread() is threading.main_thread():
            for number, handler in self._before.items():
                if signal.getsignal(number) is _nothing:
                    signal.signal(number, handler)
            if self._fd_before is not None:
                signal.set_wakeup_fd(self._fd_before)
        for end in self._ends:
            os.close(end)

    def _listen_to_signals(self) -> None:
        """SIGTERM only where it would end the process: that is then done here."""
        former = signal.set_wakeup_fd(self._ends[1], warn_on_full_buffer=False)
        if former != -1:  # somebody else uses the wakeup descriptor, such as asyncio
            signal.set_wakeup_fd(former)
            return
        self._fd_before = former
        for number in (self._signal, signal.SIGTERM):
            if number is not None and signal.getsignal(number) == signal.SIG_DFL:
                self._before[number] = signal.signal(number, _nothing)
        os.register_at_fork(
            before=self._hold_signals,
            after_in_parent=self._let_signals_through,
            after_in_child=self._leave_child_alone,
        )

    def _hold_signals(self) -> None:
        """For as long as a child that is being made would still answer them as this process."""
        if not self._stopping:
            self._mask = signal.pthread_sigmask(signal.SIG_BLOCK, self._before)

    def _let_signals_through(self) -> None:
        if self._mask is not None:
            signal.pthread_sigmask(signal.SIG_SETMASK, self._mask)
            self._mask = None

    def _leave_child_alone(self) -> None:
        """A forked child has no thread of ours: its signals are its own, and must not arrive
        here through the pipe that it shares."""
        if not self._stopping:
            signal.set_wakeup_fd(-1)
            for number, handler in self._before.items():
                if signal.getsignal(number) is _nothing:
                    signal.signal(number, handler)
        self._let_signals_through()

    # -- in the thread ------------------------------------------------------------------------

    def _watch(self) -> None:
        period = min(PERIOD, self._hang / 4) if self._hang else PERIOD
        while not self._stopping:
            ready, _, _ = select.select([self._ends[0]], [], [], period)
            try:
                for number in os.read(self._ends[0], 64) if ready else b"":
                    self._hear(number)
                if not self._stopping:
                    self._look()
            except Exception:
                _complain()

    def _hear(self, number: int) -> None:
        """A program that has set a handler of its own meanwhile keeps the signal to itself."""
        if number not in self._before or signal.getsignal(number) is not _nothing:
            return
        try:
            self._writer.write("signal")
        finally:
            if number == signal.SIGTERM:
                end_by(number)

    def _look(self) -> None:
        asked = self._request_time()
        if asked != self._asked_at:
            self._asked_at = asked
            self._writer.write("asked")
        if self._hang and self._stands_still():
            self._writer.write("hang")
            self._writer.request_all()
            self._asked_at = self._request_time()

    def _stands_still(self) -> bool:
        """Whether a thread has been at one place, in a recorded call or in the main thread, for
        `hang` seconds; said once for each place."""
        now, main = monotonic(), threading.main_thread().ident
        still = False
        for ident, frame in current_frames().items():
            call = find_call(self._writer.ring, frame)
            if call is None and ident != main:
                continue
            place = (id(call), id(frame), frame.f_lasti)
            before = self._seen.get(ident)
            if before is None or before[0] != place:
                self._seen[ident] = place, now
            elif now - before[1] >= self._hang and self._told.get(ident) != place:
                self._told[ident] = place
                still = True
        return still

    def _request_time(self) -> int | None:
        try:
            return (self._writer.folder / REQUEST).stat().st_mtime_ns
        except OSError:
            return None


class FatalSignals:
    """Signals by which C++ ends the process: an error that nobody catches, as NCCL's watchdog
    raises at a timeout, and wrong memory accesses.

    The handler is C's, because Python's would run too late. It writes the file and lets the
    process die as it would have. If even that hangs, an alarm ends it.
    """

    def __init__(self, writer: BoxWriter) -> None:
        self._writer = writer
        self._handler = ctypes.CFUNCTYPE(None, ctypes.c_int)(self._hear)
        self._before: dict[int, int] = {}

    def put_in(self) -> None:
        address = ctypes.cast(self._handler, ctypes.c_void_p).value
        for number in (signal.SIGABRT, signal.SIGSEGV):
            self._before[number] = _set_handler(number, address)

    def take_out(self) -> None:
        for number, before in self._before.items():
            _set_handler(number, before)
        self._before.clear()

    def _hear(self, number: int) -> None:
        before = self._before.get(number)
        _set_handler(number, before)
        if os.getpid() == self._writer.pid:
            _libc.alarm(WRITING)
            with suppress(Exception):
                name = signal.Signals(number).name
                self._writer.write("crash", died=f"{name}: the process was aborted in C or C++")
        getattr(_libc, "raise")(number)  # for whoever is next, once this returns


def _set_handler(number: int, handler: int | None) -> int:
    return int(_libc.signal(number, ctypes.c_void_p(handler)) or 0)


WRITING = 20
"""Seconds in which a process that dies has to write its file."""

_libc: Any = ctypes.CDLL(None)
_libc.signal.restype = ctypes.c_void_p


def _nothing(number: int, frame: object) -> None:
    """A handler, so that Python writes the byte. SIGTERM's work is done by the thread."""


def _complain() -> None:
    with suppress(Exception):
        print("phalanx.blackbox: no dump could be written:", file=sys.stderr)
        traceback.print_exc(limit=-3)


def end_by(number: int) -> None:
    """End the process as the signal would have. Only C may give a signal its default back
    outside the main thread."""
    _set_handler(number, None)
    os.kill(os.getpid(), number)
