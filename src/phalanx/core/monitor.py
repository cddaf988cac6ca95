"""The monitor: finds a holder of the baton that blocks in a call that we did not replace.

The launcher's thread, which has nothing else to do during a run, calls `check` every few
milliseconds. The holder blocks if no hand-over happened and its CPU clock did not move between
two checks. The monitor must never run a rank's code.
"""

from __future__ import annotations

import os
import threading
import time

from phalanx.core.baton import Baton
from phalanx.core.strand import Strand, cpu_time, is_asleep
from phalanx.system import monotonic

TICK = 0.005
QUIET = 0.012
BUSY_QUIET = 0.25
"""How long the holder's clock may stand still while the process as a whole is busy: torch's
own threads may be working for it."""

APART = 0.2
"""Seconds for which the threads stay apart after the one core was busy with other work."""

MANY_THREADS = 512
"""From so many threads on there are fewer ticks: in each of them the system adds up the time
of all threads, and every deadline is compared."""

SLACK = 1e-4
"""Seconds that a holder may compute and still count as blocked."""
EXACT = 0.5
"""For so many seconds a holder in a run that is explored may not compute at all: a thread that
waits for Python's own lock wakes up now and then. One that still does may wait in slices."""

LOOK = 0.02
"""Seconds between two looks for ranks that can never move again while others do."""
REST, MOST_REST = 40, 0.5
"""How many times as long as a look takes no other follows: with a thousand ranks it takes
milliseconds, in which no rank runs. And for how many seconds at most: what one has found may
need the next."""

_TASKS = "/proc/self/task"


class Monitor:
    def __init__(self, baton: Baton) -> None:
        self._baton = baton
        self._holder: Strand | None = None
        self._hand_overs = -1
        self._spent = 0.0
        self._since = 0.0
        self._held_since = 0.0
        self._process = 0.0
        self.handed_over_at = self.moved_at = monotonic()
        """When the baton last changed hands, and when any thread last made progress."""
        self._tick = self.moved_at, time.process_time(), 0
        self._apart_until = 0.0
        self._progress = 0
        self._look_at = self.moved_at + LOOK
        """When to look next."""

    def check(self) -> None:
        """Push the holder outside if it blocks, and fire timers that are due."""
        baton = self._baton
        if baton.frozen:
            self.handed_over_at = self.moved_at = monotonic()
            return
        baton.fire_due()
        holder, hand_overs = baton.holder, baton.hand_overs
        now, process = monotonic(), time.process_time()
        if now >= self._look_at and baton.on_look is not None and not baton.stopping:
            spent = time.thread_time()
            baton.on_look()
            rest = REST * (time.thread_time() - spent)
            self._look_at = now + min(max(LOOK, rest), MOST_REST)
        self._arrange_threads(now, process, hand_overs)
        spent = cpu_time(holder) if holder is not None else 0.0
        if baton.has_timer():
            self.handed_over_at = self.moved_at = now
        if baton.progress != self._progress:
            self._progress = baton.progress
            self.handed_over_at = self.moved_at = now
        moved = holder is not self._holder or hand_overs != self._hand_overs
        if not moved and holder is None:
            self._notice_helpers(now, process)
            return
        if moved or holder is None:
            self._held_since = now
        elif spent <= self._spent + self._slack(now) and is_asleep(holder.native):
            quiet = now - self._since
            busy = process - self._process > 0.5 * quiet
            if quiet > BUSY_QUIET or (quiet > QUIET and not busy and not others_work(holder)):
                baton.push_outside(holder, hand_overs)
            return
        else:
            self.moved_at = now
        self._holder, self._hand_overs, self._spent = holder, hand_overs, spent
        self._since, self._process = monotonic(), process

    def _slack(self, now: float) -> float:
        is_new = self._baton.choices is not None and now - self._held_since < EXACT
        return 0.0 if is_new else SLACK

    def _arrange_threads(self, now: float, process: float, hand_overs: int) -> None:
        """Keep the threads on one core while the baton changes hands all the time, and spread
        them otherwise; also for a while if another program uses that core."""
        last, spent, count = self._tick
        elapsed, affinity = now - last, self._baton.affinity
        if elapsed < affinity.window:
            return
        self._tick = now, process, hand_overs
        if affinity.together and process - spent < 0.7 * elapsed:
            self._apart_until = now + APART
        if hand_overs - count > affinity.many * elapsed and now >= self._apart_until:
            affinity.gather(strand.native for strand in self._baton.strands if strand.native)
        else:
            affinity.scatter()

    def _notice_helpers(self, now: float, process: float) -> None:
        """No strand holds the baton: CPU use shows that a thread outside works."""
        if process - self._process > 0.2 * (now - self._since):
            self.moved_at = now
        self._since, self._process = now, process


def tick_for(threads: int) -> float:
    """Seconds between two checks of so many threads."""
    return TICK * max(1.0, threads / MANY_THREADS)


def others_work(holder: Strand) -> bool:
    """Whether another thread of the process runs, or would if it had a core: on a busy machine
    torch's own threads get little CPU time while they work for the holder."""
    aside = (holder.native, threading.get_native_id())
    try:
        natives = map(int, os.listdir(_TASKS))
    except OSError:
        return False
    return not all(native in aside or is_asleep(native) for native in natives)
