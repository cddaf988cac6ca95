"""When what happens on the clock of a run: timers, actions, and how time passes while all wait.

A part of the baton, which holds its mutex in all of this. A virtual clock jumps to the next
moment when nobody can run. Who waits outside of the baton keeps it from that, unless it is
known what it waits for (`Strand.waits`): then it can only be freed by somebody we know.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence

from phalanx.core.clock import Clock
from phalanx.core.strand import OUTSIDE, PARKED, Strand, cpu_time, waits_for_thread
from phalanx.core.timers import Timers
from phalanx.system import monotonic


class Timekeeper:
    def __init__(self, clock: Clock) -> None:
        self.clock = clock
        self.timers = Timers()
        self.serves: Callable[[Strand], bool] | None = None
        """Whether a thread of a rank that is outside waits for somebody to connect to it."""
        self._idle: tuple[float, dict[Strand, float]] | None = None
        """When nobody ran at the last tick, and how much those outside had computed."""

    def due(self, strands: Sequence[Strand]) -> list[Strand]:
        """Carry out the actions whose moment has come; the strands whose deadline has, and
        those for which what they wait for has happened unseen."""
        now = self.clock.now()
        while (action := self.timers.take_action(now)) is not None:
            action()
        due = self.timers.take_due(strands, now)
        for strand in due:
            strand.timed_out = True
        return due

    @staticmethod
    def freed(watched: Collection[Strand]) -> list[Strand]:
        """Those that are parked while something outside of the baton frees them: it has. In an
        order of their own, however they came to wait."""
        found = [
            strand
            for strand in watched
            if strand.state is PARKED and strand.waits is not None and not strand.waits()
        ]
        return sorted(found, key=lambda strand: (strand.rank, strand.number))

    def may_jump(self, strands: Sequence[Strand], outside: int) -> bool:
        """Whether nothing can happen before the next moment."""
        if not self.clock.jumps or not self.timers.pending:
            return False
        return not outside or all(
            strand.waits is not None and strand.waits()
            for strand in strands
            if strand.state is OUTSIDE
        )

    def _stops_nothing(self, strand: Strand, has_rested: bool) -> bool:
        """`has_rested`: it has done nothing since the last tick. Else the lock that it waits
        for may be one of ours, which this very tick holds."""
        if strand.waits is not None:
            return strand.waits()
        serves = self.serves is not None and self.serves(strand)
        return serves or (has_rested and waits_for_thread(strand.native))

    def jump(self, strands: Sequence[Strand]) -> None:
        self.clock.jump_to(self.timers.next_moment(strands))

    def let_pass(self, strands: Sequence[Strand], *, idle: bool) -> None:
        """A tick. While nobody runs (`idle`) and a clock that jumps has not jumped, since
        strands are outside: those that only serve others may do so for ever, and those that
        wait for a lock are let go by somebody who waits, so it jumps all the same. What else
        they wait for may take its time, so the time passes as it does."""
        before, self._idle = self._idle, None
        outside = [strand for strand in strands if strand.state is OUTSIDE]
        if not idle or not outside:
            return
        spent = {strand: cpu_time(strand) for strand in outside if strand.ident}
        now = monotonic()
        self._idle = now, spent
        if before is None:
            return
        since, known = before
        if self.timers.pending and all(
            self._stops_nothing(each, each in spent and known.get(each) == spent[each])
            for each in outside
        ):
            self.jump(strands)
        else:
            self.clock.jump_to(self.clock.now() + now - since)
