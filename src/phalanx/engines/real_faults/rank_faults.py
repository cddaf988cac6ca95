"""The faults of a plan in the rank that they name: notice its points, and carry out.

One `RankFaults` lives in each process of a rank; `begin` gives it the plan of a call of the
program. The watcher asks it at each call and at each operation on a store, the tracing of lines
at each line. What the program carries out (moments, partitions, stores that are lost) comes to
it over the control socket. Each fault is told before it happens, because a rank that is killed
tells nothing any more. A child that the rank has forked is no rank: nothing strikes there.
"""

from __future__ import annotations

import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from queue import SimpleQueue
from types import FrameType
from typing import Any

from phalanx import callsite
from phalanx.engines.real_faults.cut_traffic import CutTraffic, end_connections
from phalanx.engines.real_faults.fault_messages import (
    BeginCut,
    CarriedOut,
    Disconnect,
    EndCut,
    FindStores,
    GoOn,
    LoseStores,
    StrikeNow,
    Struck,
)
from phalanx.engines.real_faults.unserved_stores import UnservedStores
from phalanx.engines.remote.control_messages import DUMP_SIGNAL
from phalanx.faults import Corrupt, Delay, DropStore, Fault, Kill, Plan, Raise, Stop
from phalanx.faults.line_tracing import LineTracing
from phalanx.faults.point_watch import PointWatch, moments_of
from phalanx.system import getpid

MOMENT_SIGNAL = DUMP_SIGNAL - 1
"""Has the main thread carry out what strikes at a moment."""

LATER = 0.01
"""Seconds until a rank looks again whether it can carry out what strikes at a moment."""

PATIENCE = 10.0
"""Seconds that a rank waits for the program to carry out what strikes at its point."""


class RankFaults:
    """Of one process. `tell` sends a message to the program, `flush` tells the referee all that
    this rank has done."""

    def __init__(
        self,
        rank: int,
        tell: Callable[[Any], None],
        ports: Callable[[], set[int]],
        disconnect: Callable[[], None],
        is_telling: Callable[[], bool],
    ) -> None:
        """`ports` are those of the stores that this process knows; `disconnect` has it make
        new connections to them. `is_telling` says whether a thread is in `tell` or `flush`."""
        self.rank = rank
        self.flush: Callable[[], None] = lambda: None
        self._tell = tell
        self._ports = ports
        self._disconnect = disconnect
        self._is_telling = is_telling
        self._pid = getpid()
        self._watch = PointWatch((), rank)
        self._tracing = LineTracing(self._watch, self.strike)
        self._now: list[Fault] = []
        """What strikes at a moment that has come."""
        self._is_striking = False
        self._later: SimpleQueue[bool] = SimpleQueue()
        """Asks for another signal; with False for no more."""
        self._carried_out = threading.Event()
        self._traffic = CutTraffic()
        self._stores = UnservedStores()

    def begin(self, plan: Plan) -> None:
        """In the main thread, before a call of the program."""
        self._watch = PointWatch(plan, self.rank)
        if self._watch.has_lines:
            self._trace_lines()
        if any(self.rank in each.fault.ranks for each in moments_of(plan)):
            signal.signal(MOMENT_SIGNAL, self._strike_now)
            # A handler must not start threads: the one that it interrupts may be about to.
            later = threading.Thread(
                target=self._signal_later, daemon=True, name="phalanx-moment"
            )
            later.start()

    def _trace_lines(self) -> None:
        self._tracing = tracing = LineTracing(self._watch, self.strike)

        def trace_thread(frame: FrameType, event: str, given: Any) -> Any:
            tracing.enter_thread()
            trace: Any = sys.gettrace()
            return trace(frame, event, given)

        threading.settrace(trace_thread)
        tracing.enter_thread()

    # -- points -----------------------------------------------------------------------------

    def at_call(self) -> Sequence[Corrupt]:
        """Before each call; what is to be corrupted of it. May raise, and may not return."""
        struck = self._watch.at_call()
        self.strike([each for each in struck if not isinstance(each, Corrupt)])
        return [each for each in struck if isinstance(each, Corrupt)] if self._is_here() else ()

    def at_store(self) -> None:
        """Before each operation of the program on a store."""
        if struck := self._watch.at_store():
            self.strike(struck)

    def strike(self, struck: Sequence[Fault]) -> None:
        for fault in struck if self._is_here() else ():
            self.tell_struck(fault)
            _CARRIED_OUT[type(fault)](self, fault)

    def tell_struck(self, fault: Fault) -> None:
        self._carried_out.clear()
        self.flush()
        self._tell(Struck(self.rank, fault, callsite.resolve(callsite.mark(2))))

    def _is_here(self) -> bool:
        return getpid() == self._pid

    # -- what strikes -----------------------------------------------------------------------

    def _kill(self, fault: Kill) -> None:
        os.kill(self._pid, signal.SIGKILL)

    def _stop(self, fault: Stop) -> None:
        """The program stops the process, and wakes it up again."""
        self._carried_out.wait(PATIENCE)

    def _delay(self, fault: Delay) -> None:
        time.sleep(fault.seconds)

    def _raise(self, fault: Raise) -> None:
        raise fault.make_error()

    def _drop_store(self, fault: DropStore) -> None:
        """Whoever serves a store loses it, which the program sees to."""
        self._carried_out.wait(PATIENCE)

    def _strike_now(self, number: int, frame: FrameType | None) -> None:
        """In the main thread, as soon as it comes back to Python. One that interrupts another
        leaves the rest to that."""
        if self._is_striking:
            return
        self._is_striking = True
        try:
            while self._now and not self._has_to_wait(self._now[0], frame):
                self.strike([self._now.pop(0)])
        finally:
            self._is_striking = False
            if self._now:
                self._later.put(True)

    def _has_to_wait(self, fault: Fault, frame: FrameType | None) -> bool:
        """Nothing is told in the middle of telling, whose locks this thread may hold. No error
        is raised in the middle of our own code, which waits there for what the backend would
        wait for: it is raised when the call is over."""
        return self._is_telling() or (isinstance(fault, Raise) and _is_in_a_call(frame))

    def _signal_later(self) -> None:
        while self._later.get():
            time.sleep(LATER)
            self._signal()

    def _signal(self) -> None:
        with suppress(ProcessLookupError):
            signal.pthread_kill(threading.main_thread().ident or 0, MOMENT_SIGNAL)

    # -- what the program says, in the control thread -----------------------------------------

    def obey(self, order: Any) -> bool:
        """Whether it was for us."""
        if isinstance(order, StrikeNow):
            self._now.append(order.fault)
            self._signal()
        elif isinstance(order, BeginCut):
            self._do(order.number, lambda: self._traffic.cut(order.number, order.pids))
        elif isinstance(order, EndCut):
            self._traffic.join(order.number)
        elif isinstance(order, LoseStores):
            self._do(order.number, self._lose_stores)
        elif isinstance(order, FindStores):
            self._stores.serve_again()
        elif isinstance(order, Disconnect):
            end_connections(self._ports())
        elif isinstance(order, GoOn):
            self._carried_out.set()
        else:
            return False
        return True

    def _lose_stores(self) -> None:
        self._stores.lose(self._ports())
        self._disconnect()

    def _do(self, number: int, what: Callable[[], object]) -> None:
        trouble = ""
        try:
            what()
        except OSError as error:
            trouble = f"{type(error).__name__}: {error}"
        self._tell(CarriedOut(self.rank, number, trouble))


def _is_in_a_call(frame: FrameType | None) -> bool:
    """Whether code of ours runs there on behalf of the program's line."""
    while frame is not None and callsite.is_library(frame.f_code.co_filename):
        if callsite.is_own_file(frame.f_code.co_filename):
            return True
        frame = frame.f_back
    return False


_CARRIED_OUT: dict[type[Fault], Callable[[RankFaults, Any], None]] = {
    Kill: RankFaults._kill,
    Stop: RankFaults._stop,
    Delay: RankFaults._delay,
    Raise: RankFaults._raise,
    DropStore: RankFaults._drop_store,
}
