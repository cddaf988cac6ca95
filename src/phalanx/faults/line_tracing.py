"""Notice that a rank comes to a line at which a fault is, by `sys.settrace`.

Used by the engines in ranks whose `PointWatch` has lines, and in no others: to be traced slows
a thread down. A trace function that was there before (coverage, a debugger) goes on.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from types import FrameType
from typing import Any

from phalanx.callsite import is_library
from phalanx.faults.point_watch import PointWatch, Struck

Trace = Callable[[FrameType, str, Any], Any]


class LineTracing:
    """Of one rank. `strike` is called in the thread that comes to the line, before the line is
    executed; what it raises is raised there. `look`, if given, is called in the same way at
    each line of the program."""

    def __init__(
        self,
        watch: PointWatch,
        strike: Callable[[Struck], object],
        look: Callable[[], object] | None = None,
    ) -> None:
        self._watch = watch
        self._strike = strike
        self._look = look

    def enter_thread(self) -> None:
        """From now on, in functions that the calling thread enters."""
        before: Any = sys.gettrace()

        def trace(frame: FrameType, event: str, given: Any) -> Trace | None:
            other: Trace | None = None if before is None else before(frame, event, given)
            file = frame.f_code.co_filename
            if self._watch.lines_in(file) or (self._look and not is_library(file)):
                return self._local(other)
            return other

        sys.settrace(trace)

    def _local(self, other: Trace | None) -> Trace:
        def trace(frame: FrameType, event: str, given: Any) -> Trace:
            nonlocal other
            if other is not None:
                other = other(frame, event, given)
            if event == "line":
                if self._look is not None:
                    self._look()
                struck = self._watch.at_line(frame.f_code.co_filename, frame.f_lineno)
                if struck:
                    self._strike(struck)
            return trace

        return trace
