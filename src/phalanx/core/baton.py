"""The baton: exactly one strand runs at a time. Every line that can block is in this module.

A *strand* (`strand.py`) is a thread that the baton knows: a rank's main thread, or one that a
rank started. The engine makes one `Baton` per run; the backend parks strands and wakes them.

One mutex guards the baton's own data, because strands outside, the monitor and the launcher
touch it while the holder runs. What the holder does to anything else needs no lock.
"""

from __future__ import annotations

import contextlib
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from phalanx.core.choices import Choices, Step
from phalanx.core.clock import Clock, RealClock
from phalanx.core.core_affinity import CoreAffinity, SharedCore
from phalanx.core.schedule import FirstInFirstOut, Schedule
from phalanx.core.step_choice import StepChoice, next_callback
from phalanx.core.strand import DONE, OUTSIDE, PARKED, READY, RUNNING, Strand, Switcher, here
from phalanx.core.timekeeper import Timekeeper
from phalanx.errors import RankInterrupted, RankStopped
from phalanx.system import monotonic, sleep

_HASH_MASK = (1 << 61) - 1

SLICE = 0.05
"""Seconds after which a wait outside looks whether the run has been stopped."""


class Baton:
    """Which strand runs, which strands wait, and which one is next."""

    def __init__(
        self,
        *,
        schedule: Schedule | None = None,
        choices: Choices | None = None,
        clock: Clock | None = None,
        switcher: Switcher | None = None,
        on_stuck: Callable[[], None] | None = None,
        callback_thread: Callable[[Strand], None] | None = None,
        shared_core: SharedCore | None = None,
    ) -> None:
        self.schedule = schedule or FirstInFirstOut()
        in_order = isinstance(self.schedule, FirstInFirstOut)
        self._pick = None if in_order else self.schedule.pick
        self.choices = choices
        """In a run that is explored: they decide who goes on."""
        self.clock = clock or RealClock()
        self.switcher = switcher or Switcher()
        self.on_stuck = on_stuck
        self.callback_thread = callback_thread
        self.on_look: Callable[[], None] | None = None
        """Called by the monitor now and then, in the launcher's thread."""
        self.on_condemned: Callable[[Any], None] | None = None
        """Called by a strand whose wait ends with an error, with what it waited for."""
        self.affinity = CoreAffinity(shared_core)
        self.strands: list[Strand] = []
        self.holder: Strand | None = None
        self.hand_overs = 0
        self.fingerprint = 0
        self.stopping = False
        self._interrupted = False
        self.sparing = False
        """Whether strands that were notified of Ctrl-C may react, but wait for no rank."""
        self.critical = False
        """Set while the holder changes what ranks share: the monitor must not take the baton
        from it."""
        self.progress = 0
        """Counts wake-ups and endings, but not the turns of a rank that polls."""
        self.frozen, self._calls = False, 0
        """Set while the holder runs a nested world: no other strand may get the baton."""
        self._ready: deque[Strand] = deque()
        self._helpers: dict[int, int] = {}
        """How many threads each rank has started."""
        self.watched: set[Strand] = set()
        """Strands that may be parked until `waits` does not hold, which nobody wakes for."""
        self._time = Timekeeper(self.clock)
        self._timers = self._time.timers
        parts = (self._ready, self._let_time_pass)
        self.step_choice = None if choices is None else StepChoice(choices, *parts)
        self._outside = 0
        self._mutex = threading.RLock()
        """Taken twice by actions alone, which run while it is held and wake strands."""

    # -- life of a strand -----------------------------------------------------------------

    def add(self, rank: int, local: Any = None, *, helper: bool = False) -> Strand:
        """Add a strand: a main strand is ready, a helper is outside at first."""
        strand = Strand(self, rank, local, helper=helper)
        with self._mutex:
            self.strands.append(strand)
            if helper:
                self._helpers[rank] = strand.number = self._helpers.get(rank, 0) + 1
                self._outside += 1
            else:
                self._ready.append(strand)
        return strand

    def start(self) -> None:
        """Give the baton to the first strand. The launcher calls this once."""
        with self._mutex:
            granted = self._grant_if_free()
        _open(granted)

    def begin(self, strand: Strand) -> None:
        """Block until the strand gets its first turn. The first call in a main strand's
        thread."""
        self.adopt(strand)
        self._await_turn(strand)
        if strand.error is not None:
            self._raise_pending(strand)

    def adopt(self, strand: Strand) -> None:
        """Make the calling thread the thread of this strand."""
        if strand.ident != threading.get_ident():  # else the thread pool has noted it
            strand.ident = threading.get_ident()
            strand.native = threading.get_native_id()
            with contextlib.suppress(AttributeError):  # macOS and Windows have no such clock
                strand.cpu_clock = time.pthread_getcpuclockid(strand.ident)
        here.strand = strand
        if not strand.helper:
            self.affinity.enter(strand.native)

    def finish(self, strand: Strand) -> None:
        """End the strand and pass the baton on. The last call in a strand's thread."""
        here.strand = None
        with self._mutex:
            if strand.helper:
                self.strands.remove(strand)
            granted = self._stop_running(strand, DONE)
        _open(granted)

    # -- giving the baton away ------------------------------------------------------------

    def park(
        self,
        strand: Strand,
        why: Any = None,
        *,
        deadline: float | None = None,
        sleeping: bool = False,
    ) -> bool:
        """Block until another strand wakes this one and return True, or until `deadline` by the
        clock and return False. It may also return True without a reason, so callers check again
        what they wait for. Raises the error that the waker gave, and `RankStopped` when the run
        stops.

        `sleeping` means that the strand counts on its deadline, so that no deadlock is proved
        while it is pending; otherwise the deadline is only a limit. `why` is for reports.
        """
        if self.stopping:
            self._admit(strand)
            self._refuse(strand)
        strand.why = why
        with self._mutex:
            holding = self.holder is strand and not self.stopping
            if holding:
                strand.limit = deadline
                if sleeping:
                    self._timers.set(strand)
                by_choice = self._pick is not None or self.choices is not None
                if self._timers.pending or not self._ready or by_choice:
                    granted = self._stop_running(strand, PARKED)
                else:  # the same, written out: what nearly every collective comes to
                    strand.state = PARKED
                    self.holder = granted = self._ready.popleft()
                    granted.state = RUNNING
                    self.hand_overs = granted.granted = self.hand_overs + 1
                    mixed = self.fingerprint * 1000003 ^ (granted.rank + 1)
                    self.fingerprint = mixed & _HASH_MASK
                    self.switcher.leave(strand)
        if not holding:
            # The monitor took the baton since the caller looked: what it waits for may have
            # happened meanwhile, with no strand parked to wake. Or the run was stopped.
            self._admit(strand)
            if self.stopping:
                self._refuse(strand)
            return True
        self._await_turn(strand, granted)
        timed_out, strand.limit, strand.why = strand.timed_out, None, None
        if timed_out or strand.timer:
            self._clear_timer(strand)
        if strand.error is not None:
            if self.on_condemned is not None:
                self.on_condemned(why)
            self._raise_pending(strand)
        return not timed_out

    def sleep(self, strand: Strand, seconds: float, why: Any = None) -> None:
        """Block for at least this long; other strands run meanwhile."""
        if strand.notified:
            self.wait_outside(strand, _sleep_on, seconds)
            return
        until = self.clock.now() + seconds
        while self.park(strand, why, deadline=until, sleeping=True):
            self.run_pending_callbacks(strand)

    def give_way(self, strand: Strand) -> None:
        """Block until the other ready strands have had a turn; for calls that poll."""
        visiting = strand.helper and strand.state is not RUNNING
        self._admit(strand)
        with self._mutex:
            granted = self._stop_running(strand, READY)
        self._await_turn(strand, granted)
        self._raise_pending(strand)
        if visiting:
            self.leave(strand)

    def switch_point(self, strand: Strand) -> None:
        """A point at which the schedule may choose another strand."""
        if self.schedule.preempts and self._ready:
            self.give_way(strand)

    def make_step(self, strand: Strand, step: Step) -> None:
        """Block until the choices of the run, which must have some, let the strand do this."""
        self.step_choice.note(strand, step)  # type: ignore[union-attr]
        strand.step = step
        try:
            self.give_way(strand)
        finally:
            strand.step = None

    def leave(self, strand: Strand) -> None:
        """Pass the baton on before a native call that may block, perhaps until one of the
        strand's own pending callbacks has run."""
        self._admit(strand)
        self.run_pending_callbacks(strand)
        with self._mutex:
            granted = self._stop_running(strand, OUTSIDE)
        _open(granted)

    def rejoin(self, strand: Strand) -> None:
        """Block until an outside strand has the baton again."""
        with self._mutex:
            if strand.state is RUNNING:
                return
            self._set_state(strand, READY)
            granted = self._grant_if_free()
        self._await_turn(strand, granted)
        self._raise_pending(strand)

    def wait_outside(
        self, strand: Strand, attempt: Callable[[float], bool], timeout: float | None
    ) -> bool:
        """Leave the baton, call `attempt(seconds)` until it succeeds (True) or `timeout` is
        over (False), and rejoin. The wait is cut into slices, because a thread that waits for a
        lock cannot be interrupted when the run stops."""
        self.leave(strand)
        try:
            return self.in_slices(strand, attempt, timeout)
        finally:
            self.rejoin(strand)

    def in_slices(
        self, strand: Strand, attempt: Callable[[float], bool], timeout: float | None
    ) -> bool:
        """The same for a strand that is outside already."""
        limit = None if timeout is None else monotonic() + timeout
        while strand.error is None and (not self.stopping or self._spares(strand)):
            left = SLICE if limit is None else limit - monotonic()
            if attempt(max(0.0, min(SLICE, left))):
                return True
            if left <= 0:
                return False
        error, strand.error = strand.error, None
        raise error or self.stop_of(strand)

    # -- waking others --------------------------------------------------------------------

    def wake(self, strand: Strand, error: BaseException | None = None) -> None:
        """Make a parked strand ready; with `error`, its wait raises that."""
        if error is not None:
            strand.error = error
        self.wake_all((strand,))

    def wake_all(self, strands: Sequence[Strand]) -> None:
        """Make those that are parked ready, in this order."""
        with self._mutex:
            for strand in strands:
                if strand.state is PARKED:  # `_set_state`, written out: every collective wakes
                    self.progress += 1
                    strand.state = READY
                    self._ready.append(strand)

    def post(self, strand: Strand, pending_callback: Callable[[], None]) -> None:
        """Let that strand's thread run `pending_callback` on its next turn. If the strand is
        outside (it may wait natively for this very callback) or has ended, the callback thread
        runs it."""
        strand.pending_callbacks.append(pending_callback)
        self.wake(strand)
        first = len(strand.pending_callbacks) == 1  # else one is on its way
        if first and strand.state in (OUTSIDE, DONE) and self.callback_thread is not None:
            self.callback_thread(strand)

    def call_at(self, moment: float, action: Callable[[], object]) -> Callable[[], None]:
        """Let `action` run at that moment by the clock, in whichever thread is there then: it
        must not block, and wakes whom it concerns. Before it no deadlock is proved. What is
        returned calls it off, within `still`."""
        with self._mutex:
            return self._timers.add_action(moment, action)

    def look_again(self) -> None:
        """A strand outside waits for strands now, or has done what a parked one waits for."""
        with self._mutex:
            self._free()
            granted = self._grant_if_free()
        _open(granted)

    def serves_by(self, serves: Callable[[Strand], bool]) -> None:
        """Say which threads outside only serve others, and do not stop the clock."""
        self._time.serves = serves

    def run_pending_callbacks(self, strand: Strand) -> None:
        """Run them one after the other, in the order posted, or as the choices of the run say.
        One that waits does not let the next start, or their order would depend on timing."""
        if strand.on_pending_callback:
            return
        strand.on_pending_callback = True
        try:
            while strand.pending_callbacks:
                next_callback(strand, self.choices)()
        finally:
            strand.on_pending_callback = False

    # -- for the monitor and the launcher -------------------------------------------------

    def has_ready(self) -> bool:
        return bool(self._ready)

    def note_calls(self, made: int) -> None:
        """So many calls were made until now; not each wakes another strand."""
        if made != self._calls:
            self._calls = made
            self.progress += 1

    def has_timer(self) -> bool:
        """Whether a strand counts on a timer, so that it continues by itself."""
        return self._timers.pending > 0

    def push_outside(self, strand: Strand, hand_overs: int) -> bool:
        """Take the baton from a holder that blocks, unless it has moved. The monitor calls
        this."""
        with self._mutex:
            if self.critical or self.holder is not strand or self.hand_overs != hand_overs:
                return False
            granted = self._stop_running(strand, OUTSIDE)
        _open(granted)
        if strand.pending_callbacks and self.callback_thread is not None:
            self.callback_thread(strand)
        return True

    def fire_due(self) -> None:
        """Wake the strands whose deadline has passed. The launcher calls this now and then,
        because a deadline may pass while a rank computes."""
        with self._mutex:
            if self.clock.jumps:
                idle, chosen = self.holder is None and not self._ready, self.step_choice
                settled = chosen is None or (idle and chosen.has_settled(self.strands))
                self._time.let_pass(self.strands, idle=idle and settled)
                if idle:  # else whoever runs passes the baton on, and looks then
                    self._free()
            self._fire_due()
            granted = self._grant_if_free()
        _open(granted)

    @contextlib.contextmanager
    def still(self) -> Iterator[None]:
        """Hold every strand in its state; the holder runs on until it gives the baton away."""
        with self._mutex:
            yield

    def is_judging(self) -> bool:
        """Whether no strand can move and `on_stuck` is finding out why."""
        holder = self.holder
        return holder is not None and holder.state is not RUNNING

    def condemn(self, doomed: Sequence[tuple[Strand, int, BaseException]]) -> None:
        """Raise an error in each of these waiting strands, unless it has run since the proof
        (its `granted` differs), because its deadline passed. Ranks that wait outside raise when
        they rejoin; threads that they started do not."""
        with self._mutex:
            for strand, granted, error in doomed:
                if strand.granted != granted:
                    continue
                if strand.state is PARKED:
                    strand.error = error
                    self._set_state(strand, READY)
                elif strand.state is OUTSIDE and not strand.helper:
                    strand.error = error
            free = self._grant_if_free()
        _open(free)

    def stop(self, *, at_once: bool = False, interrupted: bool = False) -> None:
        """Unwind all strands. Parked strands raise `RankStopped` now, the others when they next
        call the baton; with `at_once` also those that are ready, or have not begun. With
        `interrupted`, the first exception is a `KeyboardInterrupt` too."""
        with self._mutex:
            self.stopping = True
            self._interrupted |= interrupted
            self.sparing |= interrupted
            for strand in self.strands:
                if self._spares(strand):
                    continue
                if strand.state is PARKED:
                    strand.error = strand.error or self.stop_of(strand)
                    self._set_state(strand, READY)
                elif at_once and strand.state is READY:
                    strand.error = strand.error or self.stop_of(strand)
            granted = self._grant_if_free()
        _open(granted)

    def stop_of(self, strand: Strand) -> RankStopped:
        """The exception that ends this strand; from now on it counts as notified."""
        if not self._interrupted or strand.notified or strand.helper:
            return RankStopped()
        strand.notified = True
        return RankInterrupted()

    # -- inside: the mutex is held, unless a docstring says otherwise ----------------------

    def _admit(self, strand: Strand) -> None:
        """Without the mutex: rejoin a strand that lost the baton; refuse it when the run
        stops."""
        if strand.state is not RUNNING:
            self.rejoin(strand)
        if self.stopping and not self._spares(strand):
            self._refuse(strand)

    def _spares(self, strand: Strand) -> bool:
        return self.sparing and strand.notified

    def _refuse(self, strand: Strand) -> None:
        """Without the mutex: raise. A program that catches every refusal would use a core for
        ever, so after a thousand of them it blocks for good (the launcher reports it)."""
        strand.refusals += 1
        if strand.refusals > 1000:
            with self._mutex:
                granted = self._stop_running(strand, OUTSIDE)
            _open(granted)
            strand.gate.acquire()
        raise self.stop_of(strand)

    def _raise_pending(self, strand: Strand) -> None:
        if strand.error is not None:
            error, strand.error = strand.error, None
            raise error

    def _set_state(self, strand: Strand, state: str) -> None:
        if strand.state is not RUNNING or state is DONE:
            self.progress += 1
        if strand.state is OUTSIDE:
            self._outside -= 1
        strand.state = state
        if state is READY:
            self._ready.append(strand)
        elif state is OUTSIDE:
            self._outside += 1

    def _stop_running(self, strand: Strand, state: str) -> Strand | None:
        """Pass the baton to the next strand, which may be the same one, and return it; the
        caller opens its gate.

        The monitor may have taken the baton from this strand a moment ago. Then only its state
        is set.
        """
        if state is PARKED and strand.state is RUNNING:
            strand.state = state
        else:
            self._set_state(strand, state)
        if self.holder is not strand and self.holder is not None:
            return None
        self.holder = strand
        granted = self._grant(self._choose() or self._judge())
        if granted is not strand:
            self.switcher.leave(strand)
        return granted

    def _grant_if_free(self) -> Strand | None:
        if self.holder is None and (self._ready or self._timers.pending):
            return self._grant(self._choose())
        return None

    def _grant(self, strand: Strand | None) -> Strand | None:
        """Make it the holder. The caller opens its gate without the mutex, as the last thing
        before it blocks: a thread that wakes up while the waker has the GIL sleeps again."""
        self.holder = strand
        if strand is not None:
            strand.state = RUNNING
            self.hand_overs = strand.granted = self.hand_overs + 1
            if self.choices is None or not strand.helper:  # these come when they have settled
                self.fingerprint = (self.fingerprint * 1000003 ^ (strand.rank + 1)) & _HASH_MASK
        return strand

    def _judge(self) -> Strand | None:
        """No strand is ready. If none ever can be, call `on_stuck`, which wakes strands with an
        error. It runs without the mutex, but `holder` stays set, so no other strand gets the
        baton meanwhile."""
        if self.on_stuck is None or not self._is_stuck():
            return None
        self._mutex.release()
        try:
            self.on_stuck()
        finally:
            self._mutex.acquire()
        return self._choose()

    def _choose(self) -> Strand | None:
        ready = self._ready
        if self._timers.pending:
            self._fire_due()
            self._free()
        if self.step_choice is not None:
            outside = self.strands if self._outside else ()
            return self.step_choice.next(outside, stopping=self.stopping)
        while not ready and self.clock.jumps and self._let_time_pass():
            pass
        if not ready:
            return None
        index = self._pick(len(ready)) if self._pick is not None and len(ready) > 1 else 0
        if index == 0:
            return ready.popleft()
        strand = ready[index]
        del ready[index]
        return strand

    def _is_stuck(self) -> bool:
        """No strand is outside or counts on a timer, and some strand waits."""
        return (
            not self._outside
            and not self._timers.pending
            and not self.stopping
            and any(s.state is PARKED for s in self.strands)
        )

    def _await_turn(self, strand: Strand, granted: Strand | None = None) -> None:
        """Without the mutex: open the gate of the strand that was granted the baton, then block
        until this one is. A strand that left the baton free also watches the timers."""
        if granted is not strand:
            if self._timers.pending:
                _open(granted)
                while not strand.gate.acquire(True, self._patience()):
                    self.fire_due()
            else:
                if granted is not None:
                    granted.gate.release()
                strand.gate.acquire()
        self.switcher.enter(strand)

    def _patience(self) -> float:
        """Without the mutex: the seconds for which the caller may block; -1 means for ever."""
        if not self._timers.pending or self.holder is not None or self.clock.jumps:
            return -1
        with self._mutex:
            if not self._timers.pending:
                return -1
            return max(0.0, self._timers.next_moment(self.strands) - self.clock.now())

    # -- time -----------------------------------------------------------------------------

    def _clear_timer(self, strand: Strand) -> None:
        """Without the mutex."""
        with self._mutex:
            strand.timed_out = False
            self._timers.clear(strand)

    def _fire_due(self) -> None:
        for strand in self._time.due(self.strands):
            self._set_state(strand, READY)

    def _free(self) -> None:
        for strand in self._time.freed(self.watched):
            self._set_state(strand, READY)

    def _let_time_pass(self) -> bool:
        """On a clock that jumps: whether somebody was freed, or it has jumped."""
        ready = len(self._ready)
        self._free()
        if len(self._ready) > ready:
            return True
        if not self._time.may_jump(self.strands, self._outside):
            return False
        self._time.jump(self.strands)
        self._fire_due()
        return True


def _open(granted: Strand | None) -> None:
    if granted is not None:
        granted.gate.release()


def _sleep_on(seconds: float) -> bool:
    sleep(seconds)
    return False
