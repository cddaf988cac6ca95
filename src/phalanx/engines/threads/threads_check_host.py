"""What the checks of `checks/registry.py` may ask of the threads engine besides the journal."""

from __future__ import annotations

from collections.abc import Sequence

from phalanx.backend.session import Session
from phalanx.checks import registry
from phalanx.checks.group_lifecycle import KIND as MISMATCH
from phalanx.checks.message_race import RaceWatch
from phalanx.checks.unwaited_work import KIND
from phalanx.engines.tests_of_ranks import TestOf
from phalanx.engines.threads.suite_on_threads import with_tests_at_end
from phalanx.journal.events import Noted
from phalanx.model import Unmet, Verdict
from phalanx.system import monotonic


class ThreadsCheckHost:
    """One session whose ranks have all returned. `unmet` are calls that nobody answered."""

    def __init__(self, session: Session, unmet: Sequence[Unmet]) -> None:
        self._session = session
        self.kinds = session.kinds
        self.profile = session.profile
        self.told = session.told
        self.unmet = unmet

    @property
    def races(self) -> RaceWatch | None:
        return self._session.races

    def machine_of(self, rank: int) -> int:
        return self._session.machine_of(rank)

    def must_share_gpus(self) -> bool:
        return self._session.must_share_gpus()


def find_at_end(
    session: Session, unmet: Sequence[Unmet], test_of: TestOf | None = None
) -> list[Verdict]:
    """`unmet`, and what can be seen only now."""
    for note in session.group_watch.take(session.now):
        session.journal.add(note)
    for context in session.ranks:
        left = context.in_flight.unwaited() if context.in_flight is not None else ()
        if left:
            context.ring.add(Noted(monotonic(), context.rank, 0, None, KIND, left))
        for note in context.replicas.take() if context.replicas is not None else ():
            session.journal.add(note)
    host = ThreadsCheckHost(session, unmet)
    missing = session.referee.find_missing_groups() if MISMATCH in session.kinds else []
    reshaped = session.referee.take_reshaped()
    found = registry.find_at_end(session.journal.reader(), host)
    return with_tests_at_end([*unmet, *missing, *reshaped, *found], session, test_of)
