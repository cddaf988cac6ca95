"""Start the ranks' threads, watch over them, and make sure that all of them end.

The calling thread is the launcher. It starts one thread per rank, then does the monitor's work
until the last rank has ended, and it receives Ctrl-C. The functions that it runs never raise:
they keep their own outcome. Used by the threads engine.
"""

from __future__ import annotations

import ctypes
import sys
import threading
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial

from phalanx.core.baton import Baton
from phalanx.core.monitor import TICK, Monitor, tick_for
from phalanx.core.strand import DONE, OUTSIDE, RUNNING, Strand
from phalanx.core.thread_pool import RankThreadPool, no_daemon
from phalanx.errors import RankInterrupted, RankStopped
from phalanx.system import collect_for, monotonic, sleep

Body = Callable[[Strand], None]


@dataclass(frozen=True)
class Patience:
    """Seconds after a stop until ranks that still compute get an exception thrown in
    (`nudge`), how long they have for cleaning up until the next one comes (`again`), and
    until those that even swallow that are given up (`give_up`)."""

    nudge: float
    again: float
    give_up: float


AFTER_FAILURE = Patience(nudge=1.5, again=2.0, give_up=5.0)
AFTER_INTERRUPT = Patience(nudge=0.1, again=0.35, give_up=0.8)
CLEANING_UP = 5.0
"""Seconds for a program's own reaction to Ctrl-C, if it was notified."""


class Launcher:
    """Calls `on_stall` after `stall_after` seconds without a hand-over (and, if `work_counts`,
    without any rank working). If it returns False, the time starts again. Calls `on_limit` in
    the same way `limit` seconds after the start, whatever the ranks do."""

    def __init__(
        self,
        baton: Baton,
        *,
        stall_after: float | None = None,
        work_counts: bool = True,
        on_stall: Callable[[float], bool] | None = None,
        limit: float | None = None,
        on_limit: Callable[[float], bool] | None = None,
        on_tick: Callable[[], object] | None = None,
        on_interrupt: Callable[[], None] | None = None,
        thread_pool: RankThreadPool | None = None,
    ) -> None:
        self.baton = baton
        self._thread_pool = thread_pool
        self.interrupted: BaseException | None = None
        """The error that ended the run from outside: Ctrl-C, an error of a signal handler, or,
        in a nested run, the exception that stops the outer one."""
        self._stall_after = stall_after
        self._work_counts = work_counts
        self._on_stall = on_stall
        self._limit = limit
        self._on_limit = on_limit
        self._began = monotonic()
        self._on_tick = on_tick
        self._on_interrupt = on_interrupt
        self._monitor = Monitor(baton)
        self._left = 0
        self._unclaimed: set[Strand] = set()
        self._count = threading.Lock()
        self._all_done = threading.Lock()
        self._all_done.acquire()
        self._stopped_at: float | None = None
        self._nudged_at = 0.0

    def run(self, strands: Sequence[Strand], bodies: Sequence[Body]) -> list[Strand]:
        """Run every body in a thread of its own. Blocks until all have ended, and returns the
        strands that could not be stopped."""
        self._left = len(strands)
        self._unclaimed.update(strands)
        threads: list[threading.Thread] = []
        put_back = collect_for(len(strands))
        try:
            self.baton.affinity.visit()
            stuck = self._run_all(strands, bodies, threads)
        finally:
            put_back()
            self.baton.affinity.end()
        for thread, strand in zip(threads, strands, strict=False):
            if strand not in stuck:
                _join(thread)
        take_back(strand.ident for strand in stuck)
        if self._thread_pool is not None and self.baton.stopping:
            self._thread_pool.close()
        return stuck

    def _run_all(
        self,
        strands: Sequence[Strand],
        bodies: Sequence[Body],
        threads: list[threading.Thread],
    ) -> list[Strand]:
        """An error may come at any point, even while a thread is being started."""
        try:
            self._start_all(strands, bodies, threads)
            return self._supervise(strands)
        except BaseException as error:
            self._interrupt(error)
        try:
            self._give_up_unclaimed(strands)
            self.baton.start()
            return self._supervise(strands)
        except BaseException:
            return _alive(strands)

    def _start_all(
        self,
        strands: Sequence[Strand],
        bodies: Sequence[Body],
        threads: list[threading.Thread],
    ) -> None:
        for strand, body in zip(strands, bodies, strict=True):
            if self._thread_pool is not None:
                self._thread_pool.begin(strand, partial(self._main, strand, body))
            else:
                threads.append(self._new_thread(strand, body))
                threads[-1].start()
                no_daemon(threads[-1])
        self.baton.start()

    def _claim(self, strand: Strand) -> bool:
        """True for the first caller: its thread, or the launcher that could not start it."""
        try:
            self._unclaimed.remove(strand)
        except KeyError:
            return False
        return True

    def _give_up_unclaimed(self, strands: Sequence[Strand]) -> None:
        for strand in strands:
            if self._claim(strand):
                self.baton.finish(strand)
                self._count_one_out()

    def _new_thread(self, strand: Strand, body: Body) -> threading.Thread:
        name = f"rank-{strand.rank}"
        return threading.Thread(target=self._main, args=(strand, body), name=name, daemon=True)

    def _main(self, strand: Strand, body: Body) -> None:
        if not self._claim(strand):
            return
        try:
            self.baton.begin(strand)
            body(strand)
        except RankStopped:
            pass
        finally:
            self.baton.finish(strand)
            self._count_one_out()

    def _count_one_out(self) -> None:
        with self._count:
            self._left -= 1
            if not self._left:
                self._all_done.release()

    def _interrupt(self, error: BaseException) -> None:
        """Ctrl-C, or whatever else reached the launcher: no rank may outlive it."""
        self.interrupted = error
        self._stopped_at = monotonic()
        by_key = isinstance(error, KeyboardInterrupt)
        if self._on_interrupt is not None and by_key and not isinstance(error, RankStopped):
            with suppress(Exception, KeyboardInterrupt):
                self._on_interrupt()
        self.baton.stop(at_once=True, interrupted=by_key)

    def _supervise(self, strands: Sequence[Strand]) -> list[Strand]:
        tick = tick_for(len(strands))
        while not self._all_done.acquire(True, tick):
            self.baton.affinity.go_home()
            self._monitor.check()
            if self._on_tick is not None:
                self._on_tick()
            if self.baton.stopping:
                if self._press():
                    return _alive(strands)
            else:
                self._look_at_limit()
                self._look_for_stall()
        return []

    def _look_at_limit(self) -> None:
        if self._limit is None or self._on_limit is None:
            return
        now = monotonic()
        if now - self._began > self._limit and not self._on_limit(self._limit):
            self._began = now

    def _look_for_stall(self) -> None:
        if self._stall_after is None or self._on_stall is None:
            return
        monitor = self._monitor
        since = monitor.moved_at if self._work_counts else monitor.handed_over_at
        now = monotonic()
        if now - since > self._stall_after and not self._on_stall(self._stall_after):
            monitor.moved_at = monitor.handed_over_at = now

    def _press(self) -> bool:
        """Interrupt ranks that have not ended since the stop. Returns True when they are to be
        given up."""
        now = monotonic()
        if self._stopped_at is None:
            self._stopped_at = now
        patience = AFTER_INTERRUPT if self.interrupted else AFTER_FAILURE
        since = now - self._stopped_at
        at_it = since < CLEANING_UP and self._cleans_up()
        self.baton.sparing &= since < CLEANING_UP
        if since > patience.nudge and now - self._nudged_at > patience.again:
            self._nudge(also_take_baton=self._nudged_at > 0.0, spare=at_it)
            self._nudged_at = now
        return since > patience.give_up and not at_it

    def _cleans_up(self) -> bool:
        """Whether a rank was notified of Ctrl-C and has not ended since."""
        return any(each.notified and each.state is not DONE for each in self.baton.strands)

    def _nudge(self, *, also_take_baton: bool, spare: bool) -> None:
        """`spare` those that are cleaning up."""
        self.baton.stop(at_once=True)
        holder, hand_overs = self.baton.holder, self.baton.hand_overs
        for strand in list(self.baton.strands):
            if strand.state not in (RUNNING, OUTSIDE) or not strand.ident or strand.helper:
                continue
            if strand.notified and spare:
                also_take_baton &= strand is not holder
            elif isinstance(self.interrupted, KeyboardInterrupt) and not strand.notified:
                throw_into(strand.ident, _interrupt_of(strand))
            else:
                throw_into(strand.ident)
        if also_take_baton and holder is not None and self.baton.has_ready():
            self.baton.push_outside(holder, hand_overs)


def _interrupt_of(strand: Strand) -> type[RankInterrupted]:
    """An exception that marks the strand as notified when it is made, which a rank in native
    code may never reach."""

    class NotedInterrupt(RankInterrupted):
        def __init__(self, *args: object) -> None:
            super().__init__(*args)
            strand.notified = True

    NotedInterrupt.__name__ = NotedInterrupt.__qualname__ = RankInterrupted.__name__
    return NotedInterrupt


def _join(thread: threading.Thread) -> None:
    """Also one whose start was interrupted, and which may be about to run."""
    until = monotonic() + 1.0
    while thread.ident is None and monotonic() < until:
        sleep(TICK)
    with suppress(RuntimeError):  # it was never started
        thread.join(1.0)


def throw_into(ident: int, kind: type[BaseException] = RankStopped) -> None:
    """Raise an exception in another thread, at its next Python instruction."""
    ctypes.pythonapi.PyThreadState_SetAsyncExc(ctypes.c_ulong(ident), ctypes.py_object(kind))


def end_threads(threads: Sequence[threading.Thread], patience: float) -> list[threading.Thread]:
    """End threads that ranks started and left behind. Returns those that did not end."""
    limit = monotonic() + patience
    while (left := _alive_threads(threads)) and monotonic() < limit:
        left[0].join(0.02)  # they may be about to end by themselves
        for thread in _alive_threads(left):
            assert thread.ident is not None
            throw_into(thread.ident)
    take_back(thread.ident for thread in left)
    return left


def take_back(idents: Iterable[int | None]) -> None:
    """Take what was thrown into these threads back, which may stay in native code for ever.

    While an exception waits for its thread, Python 3.11 asks all threads again and again to
    look for one, and a thread that is traced or profiled there comes to no instruction of the
    next function that it enters. The request is over only when an exception arrives."""
    waiting = [ident for ident in idents if ident]
    if not waiting or sys.version_info[:2] != (3, 11):
        return
    for ident in waiting:
        ctypes.pythonapi.PyThreadState_SetAsyncExc(ctypes.c_ulong(ident), None)
    with suppress(_Arrived):
        throw_into(threading.get_ident(), _Arrived)
        while True:
            pass  # it arrives here


class _Arrived(BaseException):
    """Thrown by a thread into itself."""


def _alive_threads(threads: Sequence[threading.Thread]) -> list[threading.Thread]:
    return [thread for thread in threads if thread.is_alive()]


def _alive(strands: Sequence[Strand]) -> list[Strand]:
    return [strand for strand in strands if strand.state is not DONE]
