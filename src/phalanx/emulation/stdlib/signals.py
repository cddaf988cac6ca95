"""Signal handlers of ranks: `signal.signal` in a rank, which is no main thread.

Each rank has a table of its own. A signal that a rank sends itself (`os.kill` on its own
process, `signal.raise_signal`) runs its handler at once. A signal from outside is noted by a
handler of ours and passed to every rank, which runs its handler at its next waiting point, or
in a second thread while it computes (`interrupts.py`); a rank without a handler does what the
system does with a process. Alarms (`signal.alarm`) are kept per rank. The engine makes a
`SignalDispatch` for each run, which the launcher checks every few milliseconds; a program
without signals costs one comparison. What else `signal` has is the process's: timers
(`setitimer`), which end with the run, and what Python allows in a main thread only.
"""

from __future__ import annotations

import os
import signal
import sys
import threading
import time
from collections import deque
from collections.abc import Callable
from functools import partial
from typing import Any

from phalanx.backend.session import RankContext, context_here
from phalanx.core.baton import Baton
from phalanx.core.strand import DONE, PARKED, READY, Strand, here
from phalanx.emulation.stdlib.interrupts import PendingSignal, run_beside
from phalanx.errors import RankExited
from phalanx.system import getpid, monotonic

AGAIN = 2.0
"""Ctrl-C within so many seconds of the last one stops the run, whatever ranks do with it."""
WAITING = (PARKED, READY)
INSTALLING = 0.5
"""Seconds for which a rank waits until its handler is in place."""

_TABLE, _ALARM, _RING, _BELL = "signal handlers", "alarm", "ring", "bell"
HARMLESS = frozenset({signal.SIGCHLD, signal.SIGCONT, signal.SIGURG, signal.SIGWINCH})
"""Signals that a process without a handler ignores."""

_TIMERS = [
    getattr(signal, name)
    for name in ("ITIMER_REAL", "ITIMER_VIRTUAL", "ITIMER_PROF")
    if hasattr(signal, name)
]

Handler = Callable[[int, Any], Any] | int | signal.Handlers | None

_signal, _getsignal, _raise = signal.signal, signal.getsignal, signal.raise_signal
_main_thread = threading.main_thread
"""The main thread of the process: a rank has another one."""
_dispatches: list[SignalDispatch] = []
_arrived: deque[int] = deque()
_wanted: deque[tuple[int, threading.Event]] = deque()
_ours: dict[int, Any] = {}
"""Signals for which our handler is installed, and the handler before it."""


def _note(number: int, frame: Any) -> None:
    """Our handler. It may run at any moment, so it only takes a note."""
    if number == signal.SIGINT and _dispatches and _dispatches[-1].is_pressed():
        raise KeyboardInterrupt
    if any(dispatch.has_handler(number) for dispatch in _dispatches):
        _arrived.append(number)
        return
    before = _ours.pop(number, signal.SIG_DFL)
    _signal(number, signal.SIG_DFL if before is None else before)
    _raise(number)


def signal_patches() -> list[tuple[Any, str, Any]]:
    """(owner, attribute, replacement) for `replaced_calls.py`."""
    return [
        (signal, "signal", _set),
        (signal, "getsignal", _get),
        (signal, "raise_signal", _raising(signal.raise_signal)),
        (signal, "alarm", _alarming(signal.alarm)),
        (os, "kill", _killing(os.kill)),
    ]


# -- what a rank calls ---------------------------------------------------------------------


def _set(number: int, handler: Any, /) -> Any:
    context = context_here()
    if context is None:
        return _signal(number, handler)
    if number not in signal.valid_signals():  # among them some without a name
        number = signal.Signals(number)  # as the original: ValueError
    if not callable(handler) and handler not in (signal.SIG_IGN, signal.SIG_DFL):
        raise TypeError(
            "signal handler must be signal.SIG_IGN, signal.SIG_DFL, or a callable object"
        )
    if number in (signal.SIGKILL, signal.SIGSTOP):
        raise OSError(22, "Invalid argument")
    before = _get(number)
    context.saved.setdefault(_TABLE, {})[number] = handler
    if number not in _ours:
        _want(number)
    return before


def _get(number: int, /) -> Any:
    context = context_here()
    own = None if context is None else context.saved.get(_TABLE)
    if own is not None and number in own:
        return own[number]
    return _ours[number] if number in _ours else _getsignal(number)


def _want(number: int) -> None:
    """Let the main thread install our handler, which no other thread can do. Blocks until it is
    done."""
    if not _dispatches or not _dispatches[0].in_main_thread:
        return
    done = threading.Event()
    _wanted.append((number, done))
    limit = monotonic() + INSTALLING
    while not done.is_set() and monotonic() < limit:
        _sleep(0.001)


_sleep = time.sleep


def _raising(original: Any) -> Any:
    def raise_signal(number: int, /) -> None:
        context = context_here()
        if context is None:
            original(number)
        else:
            run_handler(context, number, how="signal.raise_signal")

    return raise_signal


def _killing(original: Any) -> Any:
    """A rank that sends its own process a signal means itself, not all ranks."""

    def kill(pid: int, number: int) -> None:
        context = context_here()
        if number and pid in children:
            children[pid](number)
        elif context is None or pid != getpid() or not number:
            original(pid, number)
        elif number == signal.SIGINT and number not in context.saved.get(_TABLE, ()):
            original(pid, number)  # as Ctrl-C: it ends the run
        else:
            run_handler(context, number, how="os.kill on itself")

    return kill


children: dict[int, Callable[[int], None]] = {}
"""Ranks that the program treats as processes: how to send them a signal."""


_names = {each.value: each.name for each in signal.Signals}


def run_handler(
    context: RankContext, number: int, *, how: str | None = None, frame: Any = None
) -> None:
    """In the rank: do what its process would do about this signal."""
    own = context.saved.get(_TABLE, {})
    handler = own.get(number, _ours.get(number, _getsignal(number)))
    if callable(handler) and handler is not _note:
        context.caught = _names.get(number)
        handler(number, sys._getframe(1) if frame is None else frame)
    elif handler == signal.SIG_IGN or number in HARMLESS:
        return
    else:
        name = _names.get(number, f"signal {number}")
        raise RankExited(f"{how}, {name}," if how else f"the default of {name},", -number)


def _alarming(original: Any) -> Any:
    def alarm(seconds: int, /) -> Any:
        context = context_here()
        if context is None:
            return original(seconds)
        return -int(-set_alarm(context, float(int(seconds))) // 1)

    return alarm


def set_alarm(context: RankContext, seconds: float) -> float:
    """Ring in so many seconds, or not at all for 0; the seconds that were left before."""
    due = context.saved.pop(_ALARM, None)
    left = 0.0 if due is None else max(1e-6, due - _now())
    ring = context.saved.pop(_RING, None)
    if ring is not None:
        ring.cancel()
    if seconds > 0:
        context.saved[_ALARM] = _now() + seconds
    if _dispatches:
        _dispatches[-1].alarms = True
        _hang_bell(context, _dispatches[-1])
    return left


def _hang_bell(context: RankContext, dispatch: SignalDispatch) -> None:
    """A virtual clock jumps to the alarm and no further, so it rings at that moment and not
    when the launcher looks next."""
    baton, due = dispatch.baton, context.saved.get(_ALARM)
    call_off = context.saved.pop(_BELL, None)
    if call_off is not None:
        with baton.still():
            call_off()
    if due is not None and baton.clock.jumps:
        context.saved[_BELL] = baton.call_at(due, partial(dispatch.ring, context))


def _now() -> float:
    return _dispatches[-1].baton.clock.now() if _dispatches else monotonic()


# -- the launcher's side -------------------------------------------------------------------


class SignalDispatch:
    """The signals of one run. `serve` is called by its launcher now and then."""

    def __init__(self, baton: Baton, ranks: list[RankContext]) -> None:
        self.baton = baton
        self.alarms = False
        self.in_main_thread = threading.current_thread() is _main_thread()
        self._ranks = ranks
        self._rings: list[PendingSignal] = []
        """Signals that ranks have not handled yet."""
        self._interrupted_at = -AGAIN
        self._idle_timers: list[Any] = []
        """Those that were not armed before the run."""

    def open(self) -> None:
        if not _dispatches:
            self._idle_timers = [timer for timer in _TIMERS if not any(signal.getitimer(timer))]
        _dispatches.append(self)

    def close(self) -> None:
        """Put back the handlers from before the run. A timer that a rank has armed would end
        the program afterwards, as no handler is left for it."""
        _dispatches.remove(self)
        for timer in self._idle_timers:
            signal.setitimer(timer, 0)
        self._rings.clear()
        for context in self._ranks:
            context.saved.pop(_TABLE, None)
            context.saved.pop(_ALARM, None)
            context.saved.pop(_RING, None)
            context.saved.pop(_BELL, None)
        if not _dispatches:
            _arrived.clear()
            while _ours and self.in_main_thread:
                number, before = _ours.popitem()
                _signal(number, signal.SIG_DFL if before is None else before)

    def serve(self) -> None:
        """Install handlers, and pass on the signals and alarms that are due."""
        while _wanted and self.in_main_thread:
            number, done = _wanted.popleft()
            if number not in _ours:
                _ours[number] = _signal(number, _note)
            done.set()
        while _arrived and _dispatches[-1] is self:
            self._deliver(_arrived.popleft())
        if self.alarms:
            self._ring()
        if self._rings:
            self._rings = [ring for ring in self._rings if not run_beside(ring)]

    def has_handler(self, number: int) -> bool:
        return any(number in context.saved.get(_TABLE, ()) for context in self._ranks)

    def is_pressed(self) -> bool:
        """Whether Ctrl-C came a second time."""
        now, before = monotonic(), self._interrupted_at
        self._interrupted_at = now
        return now - before < AGAIN

    def _deliver(self, number: int) -> None:
        for strand in list(self.baton.strands):
            if not strand.helper and strand.state is not DONE:
                self.post(strand, number)

    def _ring(self) -> None:
        now = self.baton.clock.now()
        waiting = False
        for strand in list(self.baton.strands):
            due = strand.local.saved.get(_ALARM)
            if due is None or strand.helper or strand.state is DONE:
                continue
            waiting = True
            if now >= due:
                strand.local.saved.pop(_ALARM, None)
                strand.local.saved[_RING] = self.post(strand, signal.SIGALRM)
        self.alarms = waiting

    def ring(self, context: RankContext) -> None:
        """The moment of that rank's alarm has come, and its thread waits or is about to run;
        else the launcher finds out."""
        for strand in self.baton.strands:
            if strand.local is context and not strand.helper and strand.state in WAITING:
                context.saved.pop(_ALARM, None)
                context.saved[_RING] = ring = _pending(strand, signal.SIGALRM)
                self.baton.post(strand, ring)

    def post(self, strand: Strand, number: int) -> PendingSignal:
        """Pass a signal to one rank."""
        ring = _pending(strand, number)
        self._rings.append(ring)
        self.baton.post(strand, ring)
        return ring


def _pending(strand: Strand, number: int) -> PendingSignal:
    return PendingSignal(strand, partial(run_handler, strand.local, number))


def send(strand: Strand, number: int) -> bool:
    """Pass a signal to one rank, if it has a handler for it."""
    handler = strand.local.saved.get(_TABLE, {}).get(number, signal.SIG_DFL)
    if handler == signal.SIG_DFL:
        return False
    for dispatch in _dispatches:
        if dispatch.baton is strand.baton:
            dispatch.post(strand, number)
    return True


_forking: dict[int, Any] = {}
"""By thread: several may fork at the same time."""


def _before_fork() -> None:
    _forking[threading.get_ident()] = here.strand


def _after_fork() -> None:
    _forking.pop(threading.get_ident(), None)


def _become_a_process() -> None:
    """In a forked child: no ranks, hence no handler of ours. What the rank had, it has."""
    strand = _forking.get(threading.get_ident())
    _forking.clear()
    table = {} if strand is None else strand.local.saved.get(_TABLE, {})
    for number, before in _ours.items():
        _signal(number, table.get(number, signal.SIG_DFL if before is None else before))
    for number, handler in table.items():
        _signal(number, handler)
    _ours.clear()
    _dispatches.clear()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(
        before=_before_fork, after_in_parent=_after_fork, after_in_child=_become_a_process
    )
