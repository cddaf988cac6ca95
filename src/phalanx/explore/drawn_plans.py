"""Plans of faults for the runs of an exploration: one for each schedule, drawn from a seed.

Faults are drawn where a first run, without any, has been: at its calls, at its operations on
stores, at the lines that it has passed, at its moments.
"""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from types import FrameType
from typing import Any

from phalanx import callsite
from phalanx.core.strand import here
from phalanx.explore.one_run import Execution, Subject
from phalanx.faults import RunShape, draw_plan
from phalanx.faults.line_tracing import is_called_by_python

MOST_LINES = 200
"""Lines of a rank that faults may be at."""


def drawn_plans(
    subject: Subject, kinds: Sequence[str], seed: int, make_run: Callable[[Subject], Execution]
) -> Iterator[Subject]:
    """The subject with one plan after the other; without kinds the subject itself, for ever.
    `make_run` makes the run that shows where faults can be: one without any that are drawn."""
    if not kinds:
        while True:
            yield subject
    passed = PassedLines()
    subject.close()  # threads that are kept began before anybody watched
    with passed.watching():
        execution = make_run(subject)
    subject.close()
    shape = shape_of(execution, passed, exact_time=getattr(subject, "has_exact_time", False))
    number = seed << 32
    while True:
        yield subject.with_changes(faults=(*subject.faults, *draw_plan(kinds, number, shape)))
        number += 1


class PassedLines:
    """The lines of the program that each rank's own thread passes, in their order, and how
    often."""

    def __init__(self) -> None:
        self._passed: dict[int, Counter[tuple[Any, int]]] = {}

    @contextmanager
    def watching(self) -> Iterator[None]:
        """Watch threads that are started meanwhile. Where somebody else traces, nothing."""
        if threading.gettrace() is not None:
            yield
            return
        threading.settrace(self._enter)
        try:
            yield
        finally:
            threading.settrace(None)

    def of(self, rank: int) -> Counter[str]:
        found = Counter[str]()
        for place, times in self._passed.get(rank, Counter()).items():
            found[str(callsite.site_at(*place))] += times
        return found

    def _enter(self, frame: FrameType, event: str, given: Any) -> Any:
        is_own = here.strand is not None and not here.strand.helper
        if not is_own or callsite.is_library(frame.f_code.co_filename):
            return None
        if is_called_by_python(frame):
            return None
        return self._pass

    def _pass(self, frame: FrameType, event: str, given: Any) -> Any:
        if event == "line" and here.strand is not None:
            passed = self._passed.setdefault(here.strand.rank, Counter())
            place = frame.f_code, frame.f_lineno
            if place in passed or len(passed) < MOST_LINES:
                passed[place] += 1
        return self._pass


def shape_of(execution: Execution, passed: PassedLines, *, exact_time: bool) -> RunShape:
    """What ranks do in this run, and so where faults can be in others. Where time is not exact,
    what really passes is no time."""
    journal: Any = execution.outcome.journal
    ranks = 0 if journal is None else journal.ranks
    calls, stores = Counter[int](), Counter[int]()
    lines: list[dict[str, int]] = [{} for _ in range(ranks)]
    first = last = 0.0
    for event in journal or ():
        first, last = first or event.time, event.time
        calls[event.rank] += event.kind == "posted"
        stores[event.rank] += event.kind in ("store-read", "store-written")
        if event.mark is not None and len(lines[event.rank]) < MOST_LINES:
            lines[event.rank].update(dict.fromkeys(_lines_around(event), 1))
    return RunShape(
        ranks=ranks,
        calls=[calls[rank] for rank in range(ranks)],
        stores=[stores[rank] for rank in range(ranks)],
        lines=[
            passed.of(rank) or dict(list(each.items())[:MOST_LINES])
            for rank, each in enumerate(lines)
        ],
        seconds=round(max(0.0, last - first), 6 if exact_time else 1),
    )


def _lines_around(event: Any) -> Iterator[str]:
    """The line at which this happened, and the others of its function: what a rank does between
    two events, others may find undone."""
    yield str(event.site)
    if isinstance(event.mark, tuple):
        code, _ = event.mark
        numbers = {line for _, _, line in code.co_lines() if line}
        yield from (
            str(callsite.site_at(code, line))
            for line in sorted(numbers - {code.co_firstlineno})
        )
