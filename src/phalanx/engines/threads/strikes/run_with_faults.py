"""A run on threads in which the faults of a plan happen: `Run`, and what is different then.

A rank that is killed is what was asked for, so nobody is stopped because of it: the others go
on and see what the backend gives them. Where ranks may start again, it is a failure, as
torchrun's agent takes the death of a process.
"""

from __future__ import annotations

from typing import Any

from phalanx.backend.losses import end_rank
from phalanx.backend.session import RankContext
from phalanx.core.holding_baton import HoldingBaton
from phalanx.core.strand import Strand, here
from phalanx.emulation.state.exits import FINALIZERS, FUNCTIONS
from phalanx.emulation.stdlib.rank_children import PROCESSES
from phalanx.engines.outcome import Outcome
from phalanx.engines.threads.strikes.fault_strikes import FaultStrikes
from phalanx.engines.threads.strikes.rank_unwinding import Killed, end_run, free
from phalanx.engines.threads.threads_engine import Run
from phalanx.errors import RankDied
from phalanx.journal.events import RankEnded
from phalanx.model import Leave


class RunWithFaults(Run):
    baton_class = HoldingBaton
    baton: HoldingBaton

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.strikes = FaultStrikes(self.settings, self.session, self.baton)
        self._body_of_program, self.body = self.body, self._body

    def execute(self) -> list[Any]:
        __tracebackhide__ = True
        self.strikes.begin()
        try:
            return super().execute()
        finally:
            self.strikes.end()
            end_run()
            if self.strikes.killed and self.thread_pool is not None:
                self.thread_pool.close()  # what their threads keep was never put away

    # -- inside a rank's thread -----------------------------------------------------------

    def _main(self, strand: Strand) -> None:
        strikes = strand.local.strikes
        try:
            super()._main(strand)
        finally:
            if strikes is not None:
                strikes.leave_thread()

    def _body(self, context: RankContext) -> Any:
        strikes = context.strikes
        if strikes is None:
            return self._body_of_program(context)
        if here.strand is not None:
            strikes.settle(here.strand)
        value = self._body_of_program(context)
        if strikes.is_dead:  # something between us and the program keeps every error
            raise Killed
        return value

    def _tell_failure(self, outcome: Outcome, error: BaseException) -> None:
        if outcome.rank not in self.strikes.killed:
            super()._tell_failure(outcome, error)
            return
        free(error)
        site = self.strikes.killed[outcome.rank]
        outcome.killed, outcome.site = True, site
        self.session.ranks[outcome.rank].left = Leave("killed", site)
        if self.settings.max_restarts:
            words = self.strikes.deaths[outcome.rank]
            super()._tell_failure(outcome, RankDied(code=-9, signal="SIGKILL", last=words))

    def _note_end(self, outcome: Outcome) -> None:
        if outcome.killed:
            end = (self.session.now(), outcome.rank, 0, None, "killed")
            self.session.journal.add(RankEnded(*end))
        else:
            super()._note_end(outcome)
            if not self.baton.stopping:
                end_rank(self.session, outcome.rank)

    def _put_away(self, context: RankContext) -> None:
        if context.rank in self.strikes.killed:
            for key in (*PROCESSES, FUNCTIONS, FINALIZERS):  # nobody waits for them, or calls
                context.saved.pop(key, None)
        super()._put_away(context)

    def _stop_others(self, rank: int, error: BaseException) -> None:
        first = not self.outcomes.stopped_at
        super()._stop_others(rank, error)
        if first:
            self.outcomes.names = (*self.session.fault_lines, *self.outcomes.names)
