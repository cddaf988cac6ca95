"""In which test of a suite a rank is, where pytest is the program of a run.

Pytest says so in the environment (PYTEST_CURRENT_TEST), which each rank has for itself, and
its hooks (`suite_of_run.py`) say when a test began. Used by the engines for reports. Values
only; must never wait.
"""

from __future__ import annotations

import os
from bisect import bisect
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, TypeVar

from phalanx.journal.events import Noted, Posted
from phalanx.journal.reader import Journal
from phalanx.model import Leave, Names, Op, Site, Verdict, rank_list

VARIABLE = "PYTEST_CURRENT_TEST"
LABEL = "test"

VerdictType = TypeVar("VerdictType", bound=Verdict)

TestOf = Callable[[Mapping[str, str]], str | None]
"""Says in which test of pytest a rank with this environment is; None: in none."""

Beginnings = Sequence[tuple[float, str]]
"""When a rank began its tests, in order of time, and which."""


def reader_of_tests() -> TestOf:
    """To be made before the program begins: what the environment says by then is a test that
    the program itself runs in."""
    return partial(_test_in, os.environ.get(VARIABLE))


def _test_in(outer: str | None, environ: Mapping[str, str]) -> str | None:
    value = environ.get(VARIABLE)
    return None if not value or value == outer else name_of(value)


def name_of(value: str) -> str:
    """A test as pytest's summary names it; with the phase, if it is not the test itself.

    >>> name_of("test_a.py::test_sum (call)"), name_of("test_a.py::test_sum (teardown)")
    ('test_a.py::test_sum', 'test_a.py::test_sum (teardown)')
    """
    return value.removesuffix(" (call)")


def lines_for(tests: Mapping[int, str | None]) -> Names:
    """The line of a report that says in which test each rank is.

    >>> lines_for({0: "test_a.py::test_sum", 1: "test_a.py::test_sum", 2: None})
    (('test', 'test_a.py::test_sum'),)
    >>> lines_for({0: "test_a.py::test_sum", 1: "test_a.py::test_max"})
    (('test', 'test_a.py::test_sum (rank 0); test_a.py::test_max (rank 1)'),)
    """
    alike: dict[str, list[int]] = {}
    for rank, test in tests.items():
        if test is not None:
            alike.setdefault(test, []).append(rank)
    if len(alike) < 2:
        return tuple((LABEL, test) for test in alike)
    parts = [f"{test} ({rank_list(ranks)})" for test, ranks in alike.items()]
    return ((LABEL, "; ".join(parts)),)


def with_tests(verdict: VerdictType, tests: Mapping[int, str | None]) -> VerdictType:
    lines = lines_for(tests)
    return replace(verdict, names=(*lines, *verdict.names)) if lines else verdict


# -- tests in the journal -------------------------------------------------------------------


def note_of(rank: int, test: str, now: float) -> Noted:
    """The event of a test that the rank begins now, by the journal's clock."""
    return Noted(now, rank, 0, None, LABEL, test)


def began_in(journal: Journal) -> dict[int, list[tuple[float, str]]]:
    """When each rank began its tests, as far as ranks have said so."""
    began: dict[int, list[tuple[float, str]]] = {}
    for event in journal.noted(LABEL):
        began.setdefault(event.rank, []).append((event.time, event.what))
    return began


def last_tests(journal: Journal) -> dict[int, str]:
    return {rank: tests[-1][1] for rank, tests in began_in(journal).items()}


# -- what is found when the program has ended -----------------------------------------------


def with_tests_of_calls(found: Iterable[Verdict], journal: Journal) -> list[Verdict]:
    """The verdicts with the tests in which the calls were made that they are about. A call at a
    line that several tests come to may have been made in any of them: it names none."""
    began = began_in(journal)
    return [_with_tests_of_calls(each, journal, began) if began else each for each in found]


def _with_tests_of_calls(
    verdict: Verdict, journal: Journal, began: Mapping[int, Beginnings]
) -> Verdict:
    tests: dict[int, str | None] = {}
    for ranks, op in _ops_in(verdict):
        possible = {_test_at(time, began.get(op.rank, ())) for time in _times_of(op, journal)}
        if len(possible) == 1:
            tests |= {rank: next(iter(possible)) for rank in ranks if rank not in tests}
    return with_tests(verdict, tests)


def _ops_in(verdict: Any) -> Iterator[tuple[tuple[int, ...], Op]]:
    for block in getattr(verdict, "blocks", ()):
        op = getattr(block, "op", None)
        if isinstance(op, Op) and op.site is not None:
            yield block.ranks, op


def _times_of(op: Op, journal: Journal) -> list[float]:
    """When the call may have been made: at its line, with its number if one there has it."""
    at_line = [event for event in journal.filter(rank=op.rank) if event.site == op.site]
    numbered = [
        event
        for event in at_line
        if isinstance(event, Posted)
        and op.number is not None
        and (event.name, event.number) == (op.name, op.number)
    ]
    return [event.time for event in numbered or at_line]


def _test_at(time: float, began: Beginnings) -> str | None:
    place = bisect([moment for moment, _ in began], time)
    return began[place - 1][1] if place else None


# -- between two tests ----------------------------------------------------------------------


@dataclass(frozen=True, eq=False)
class BetweenTests:
    """What a rank waits for that has ended a test and is not to begin the next one before the
    others: for `missing`. To those who wait for it in a call it is gone."""

    missing: Callable[[], tuple[int, ...]]
    test: str | None = None
    """The one that it has ended."""
    error: str | None = None
    """The first line of what it raised there."""

    @property
    def left(self) -> Leave | None:
        if self.test is None:
            return None
        file, _, function = self.test.partition("::")
        return Leave("end", Site(file, 0, function.partition("[")[0]))
