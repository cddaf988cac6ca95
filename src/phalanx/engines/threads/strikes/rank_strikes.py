"""One rank's part of a plan of faults: it is told of every call, store operation and line, and
lets what is due there happen.

`RankContext.strikes` holds it, in ranks that the plan names.
"""

from __future__ import annotations

import sys
import threading
from collections import deque
from collections.abc import Callable, Iterable
from types import FrameType
from typing import Any

from phalanx import callsite
from phalanx.core.strand import Strand, here
from phalanx.engines.threads.strikes.rank_unwinding import end_unwinding
from phalanx.faults import Fault, MomentPoint
from phalanx.faults.line_tracing import LineTracing
from phalanx.faults.point_watch import PointWatch, Struck

Strike = Callable[[Fault, Strand], None]
"""Lets a fault happen in the calling thread, which the strand says; may raise."""


class RankStrikes:
    def __init__(
        self, plan: Iterable[Fault], rank: int, strike: Strike, *, time_passes: bool
    ) -> None:
        """`time_passes` says that moments may come while the rank computes."""
        self.is_dead = False
        """Whether it was killed."""
        self.due: deque[Fault] = deque()
        """What the rank's own thread lets happen as soon as it comes to a line or to a call."""
        plan = [fault for fault in plan if getattr(fault, "rank", None) == rank]
        in_time = time_passes and any(isinstance(each.point, MomentPoint) for each in plan)
        self._watch = PointWatch(plan, rank)
        self._strike = strike
        look = self._look if in_time else None
        self._lines = LineTracing(self._watch, self._at_line, look)
        self._traces = in_time or self._watch.has_lines
        self._outer = _Outer()

    # -- where the rank comes to ----------------------------------------------------------

    def at_call(self, strand: Strand) -> None:
        self._meet(self._watch.at_call(), strand)

    def at_store(self, strand: Strand) -> None:
        self._meet(self._watch.at_store(), strand)

    def _meet(self, struck: Struck, strand: Strand) -> None:
        if not self.is_dead:
            for fault in struck:
                self._strike(fault, strand)
            self.settle(strand)

    def settle(self, strand: Strand) -> None:
        """Let happen what has become due while this thread did something else."""
        while self.due and not self.is_dead and not strand.helper:
            self._strike(self.due.popleft(), strand)

    # -- its threads ----------------------------------------------------------------------

    def enter_thread(self) -> None:
        if self._traces:
            self._outer.trace = sys.gettrace()
            self._lines.enter_thread()

    def leave_thread(self) -> None:
        end_unwinding()
        if self._traces:
            sys.settrace(self._outer.trace)

    def _look(self) -> None:
        if self.due:
            self._at_line(())

    def _at_line(self, struck: Struck) -> None:
        strand = here.strand
        if strand is None or strand.local.strikes is not self:
            return
        trace = sys.gettrace()
        try:
            self._meet(struck, strand)
        except Exception:
            _trace_again(trace, sys._getframe(1))
            raise


class _Outer(threading.local):
    trace: Any = None


def _trace_again(trace: Any, frame: FrameType | None) -> None:
    """Python takes a trace function away that raises: put it back at the next event, for the
    lines that follow."""
    while frame is not None and callsite.is_own_file(frame.f_code.co_filename):
        frame = frame.f_back
    local, before = None if frame is None else frame.f_trace, sys.getprofile()

    def put_back(at: FrameType, event: str, given: Any) -> None:
        sys.settrace(trace)
        if frame is not None:
            frame.f_trace = local
        sys.setprofile(before)

    sys.setprofile(put_back)
