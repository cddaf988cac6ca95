"""A baton that can hold threads back for a time: of a rank that a fault stops or delays.

Who is held back is ready as soon as what it waits for has come, and gets no turn before the
time is over. Used in runs with a plan of faults only.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Callable, Hashable
from functools import partial
from typing import Any

from phalanx.core.baton import Baton
from phalanx.core.step_choice import StepChoice
from phalanx.core.strand import PARKED, Strand


class _ReadyQueue(deque[Strand]):
    """`held` are ranks, and single strands, that stand `aside` instead of in the queue. What
    they waited for has come: `clear_timer` is called for each, or a virtual clock would not get
    past the moment up to which they would have waited."""

    def __init__(self, clear_timer: Callable[[Strand], object]) -> None:
        super().__init__()
        self._clear_timer = clear_timer
        self.held: Counter[Hashable] = Counter()
        self.aside: list[Strand] = []

    def append(self, strand: Strand) -> None:
        if self.held and (strand.rank in self.held or strand in self.held):
            self._clear_timer(strand)
            self.aside.append(strand)
        else:
            super().append(strand)

    def sort_out(self) -> None:
        """Let everybody stand where it belongs now."""
        waiting = [*self.aside, *self]
        self.aside.clear()
        self.clear()
        for strand in waiting:
            self.append(strand)


class HoldingBaton(Baton):
    """`who` is a rank, with all its threads, or one strand."""

    _ready: _ReadyQueue

    def __init__(self, **parts: Any) -> None:
        super().__init__(**parts)
        self._ready = _ReadyQueue(self._timers.clear)
        if self.choices is not None:
            self.step_choice = StepChoice(self.choices, self._ready, self._let_time_pass)
        self._buried: set[int] = set()

    def park(
        self,
        strand: Strand,
        why: Any = None,
        *,
        deadline: float | None = None,
        sleeping: bool = False,
    ) -> bool:
        """On a real clock a strand counts on every limit, as time comes to it."""
        counts = deadline is not None and not self.clock.jumps
        return super().park(strand, why, deadline=deadline, sleeping=sleeping or counts)

    def hold(self, who: int | Strand, seconds: float) -> None:
        """From now on, for so long by the clock. The strand that holds the baton runs on until
        it gives way."""
        with self._mutex:
            self._ready.held[who] += 1
            self._ready.sort_out()
            self._timers.add_action(self.clock.now() + seconds, partial(self._let_go, who))

    def bury(self, rank: int) -> None:
        """The rank is gone: nothing holds its threads back from their end, and none of its
        callbacks runs any more."""
        with self._mutex:
            self._ready.held.pop(rank, None)
            for strand in self.strands:
                if strand.rank == rank:
                    self._ready.held.pop(strand, None)
                    strand.pending_callbacks.clear()
            self._buried.add(rank)
            self._ready.sort_out()

    def post(self, strand: Strand, pending_callback: Callable[[], None]) -> None:
        if strand.rank not in self._buried:
            super().post(strand, pending_callback)

    def stop(self, *, at_once: bool = False, interrupted: bool = False) -> None:
        with self._mutex:
            self._ready.held.clear()
            self._ready.sort_out()
        super().stop(at_once=at_once, interrupted=interrupted)

    def _judge(self) -> Strand | None:
        """Time passes up to the limit of a wait before a deadlock is proved, and after all else
        has been tried that does not need it: who looks again and again looks once more."""
        strands = self.strands
        waits = any(each.state is PARKED and each.limit is not None for each in strands)
        if not (self.clock.jumps and waits and self._is_stuck()):
            return super()._judge()
        self._time.jump(strands)
        self._fire_due()
        return self._choose()

    def _let_go(self, who: int | Strand) -> None:
        held = self._ready.held
        held[who] -= 1
        if held[who] <= 0:
            del held[who]
        self._ready.sort_out()
