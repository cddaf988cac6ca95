"""A suite that every rank runs: ranks begin each test together.

Ranks that are threads have one `SuiteOnThreads`. A rank that has ended a test waits for the
others before it begins the next, so that one which failed early does not meet the others in
another test. Those who wait for it in a call meanwhile are in a deadlock, and fail there; then
all begin the next test together. Ranks that collect different tests do not wait for each other.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from phalanx.backend.rank_errors import OpTimeoutError
from phalanx.backend.session import RankContext, Session
from phalanx.core.strand import PARKED, Strand, here
from phalanx.engines.tests_of_ranks import (
    BetweenTests,
    TestOf,
    began_in,
    lines_for,
    note_of,
    with_tests_of_calls,
)
from phalanx.errors import RankStopped, VerdictError
from phalanx.model import Names, Verdict
from phalanx.report.text import headline


class SuiteOnThreads:
    """What the ranks of one run say about their tests."""

    def __init__(self, size: int) -> None:
        self._size = size
        self._tests: dict[int, tuple[str, ...]] = {}
        self._begun = dict.fromkeys(range(size), 0)
        self._gone: set[int] = set()
        self._inside: set[int] = set()
        self._errors: dict[int, str] = {}
        self._last: dict[int, str] = {}

    def enter(self) -> bool:
        strand = here.strand
        if strand is None or strand.helper or strand.rank in self._inside:
            return False
        self._inside.add(strand.rank)
        return True

    def collect(self, tests: Sequence[str]) -> None:
        self._tests[_rank_here()] = tuple(tests)

    def begin_test(self, test: str) -> None:
        strand = here.strand
        if strand is None or strand.helper:
            return
        strand.baton.rejoin(strand)
        rank = strand.rank
        self._begun[rank] += 1
        self._wait(strand, self._begun[rank])
        self._errors.pop(rank, None)
        self._last[rank] = test
        strand.local.ring.note(note_of(rank, test, strand.local.now()))

    def fail(self, error: str) -> None:
        self._errors.setdefault(_rank_here(), error)

    def settle(self, *, passed: bool) -> BaseException | None:
        return None

    def why_stopped(self) -> str | None:
        strand = here.strand
        if strand is None or not strand.baton.stopping:
            return None
        raised = strand.local.session.raised
        return headline(raised[-1]) if raised else "another rank has failed"

    def leave(self) -> None:
        self.gone(_rank_here())

    def gone(self, rank: int) -> None:
        """This rank runs no further test."""
        self._inside.discard(rank)
        self._gone.add(rank)
        strand = here.strand
        if strand is not None:
            self._wake(strand)

    # -- keeping together -----------------------------------------------------------------

    def _wait(self, strand: Strand, number: int) -> None:
        """Block until all ranks are to begin their test of this number."""
        rank = strand.rank
        if not self._missing(number):
            self._heal(strand.local)
            self._wake(strand)
            return
        gap = BetweenTests(
            lambda: self._missing(number), self._last.get(rank), self._errors.get(rank)
        )
        while self._missing(number):
            try:
                strand.baton.park(strand, gap)
            except RankStopped:
                raise
            except VerdictError:
                continue  # it is about those who wait for this rank, and they have it too

    def _missing(self, number: int) -> tuple[int, ...]:
        """Who has not come to its test of this number and will."""
        here_still = [rank for rank in range(self._size) if rank not in self._gone]
        unknown = tuple(rank for rank in here_still if rank not in self._tests)
        if unknown or len({self._tests[rank] for rank in here_still}) > 1:
            return unknown
        return tuple(rank for rank in here_still if self._begun[rank] < number)

    def _wake(self, strand: Strand) -> None:
        for each in strand.baton.strands:
            if each.state is PARKED and isinstance(each.why, BetweenTests):
                each.baton.wake(each)

    def _heal(self, context: RankContext) -> None:
        """All are between two tests, and in the last one a rank failed: others may have calls
        open that it never made. Nobody will; groups that live on begin anew from here."""
        if not self._errors:
            return
        session = context.session
        for creations in session.referee.creations.values():
            creations.forget()
        made = max(each.torch_state.group_count for each in session.ranks)
        for each in session.ranks:  # groups are named by it, and found by their names
            each.torch_state.group_count = made
        text = f"left open by a test that failed: {next(iter(self._last.values()), '')}"
        for mailbox in session.mailboxes.values():
            if mailbox.open_calls() or len(set(mailbox.next_number)) > 1:
                mailbox.abandon(OpTimeoutError(text))


def _rank_here() -> int:
    strand = here.strand
    return -1 if strand is None else int(strand.rank)


def tests_now(session: Session, test_of: TestOf | None) -> Names:
    """The line of a report that says in which tests the ranks are."""
    if test_of is None:
        return ()
    return lines_for({context.rank: test_of(context.environ) for context in session.ranks})


def with_tests_now(verdict: Verdict, session: Session, test_of: TestOf | None) -> Verdict:
    lines = tests_now(session, test_of)
    return replace(verdict, names=(*lines, *verdict.names)) if lines else verdict


def with_tests_at_end(
    found: list[Verdict], session: Session, test_of: TestOf | None
) -> list[Verdict]:
    """What was found when the ranks had returned, with the tests in which the calls were made
    that it is about."""
    if not found or test_of is None:
        return found
    journal = session.journal.reader()
    if began_in(journal):
        return with_tests_of_calls(found, journal)
    return [with_tests_now(each, session, test_of) for each in found]  # ranks of one test
