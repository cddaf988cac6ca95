"""What ranks that are threads do, for `--live` and `phalanx look`.

Asked by the launcher's thread at a tick, while ranks go on. The states of all strands are held
still for the look; the holder of the baton runs on, so what it changes meanwhile may make the
look fail: then there is none this time.
"""

from __future__ import annotations

from typing import Any

from phalanx.backend.evidence.call_description import TensorReader
from phalanx.backend.session import Session
from phalanx.core.baton import Baton
from phalanx.engines.outcome import Outcomes
from phalanx.engines.snapshots import is_debugging, take_snapshot, user_stacks
from phalanx.model import TensorSpec
from phalanx.report.live.live_rows import RunState, figures_of


class _NoTensors(TensorReader):
    """Tensors are the ranks': to read one of a class of the program's own may run its code."""

    def specs(self, tensors: Any) -> tuple[TensorSpec, ...]:
        return ()


class ThreadsWatch:
    def __init__(self, session: Session, baton: Baton, outcomes: Outcomes) -> None:
        self._session = session
        self._baton = baton
        self._outcomes = outcomes

    def ask(self) -> None:
        pass

    def has_answers(self) -> bool:
        return True

    def state(self, *, stacks: bool) -> RunState | None:
        baton, session = self._baton, self._session
        try:
            with baton.still():
                if baton.is_judging():
                    return None
                reader = _NoTensors()
                snapshot = take_snapshot(session, baton, self._outcomes, reader=reader)
            where = user_stacks(baton) if stacks else {}
        except (RuntimeError, LookupError, AttributeError):  # the holder changed what was read
            return None
        figures = figures_of(session.journal.rings, session.now())
        return RunState(snapshot, *figures, where, asking=is_debugging(baton))
