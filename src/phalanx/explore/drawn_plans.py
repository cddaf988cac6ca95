"""Plans of faults for the runs of an exploration: one for each schedule, drawn from a seed."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from phalanx.callsite import site_at
from phalanx.explore.one_run import Execution, Subject
from phalanx.faults import RunShape, draw_plan

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
    shape = shape_of(make_run(subject))
    number = seed << 32
    while True:
        yield subject.with_changes(faults=(*subject.faults, *draw_plan(kinds, number, shape)))
        number += 1


def shape_of(execution: Execution) -> RunShape:
    """What ranks do in this run, and so where faults can be in others."""
    journal: Any = execution.outcome.journal
    ranks = 0 if journal is None else journal.ranks
    calls, stores = Counter[int](), Counter[int]()
    lines: list[dict[str, None]] = [{} for _ in range(ranks)]
    first = last = 0.0
    for event in journal or ():
        first, last = first or event.time, event.time
        calls[event.rank] += event.kind == "posted"
        stores[event.rank] += event.kind in ("store-read", "store-written")
        if event.mark is not None and len(lines[event.rank]) < MOST_LINES:
            lines[event.rank].update(dict.fromkeys(_lines_around(event)))
    return RunShape(
        ranks=ranks,
        calls=[calls[rank] for rank in range(ranks)],
        stores=[stores[rank] for rank in range(ranks)],
        lines=[tuple(each)[:MOST_LINES] for each in lines],
        seconds=round(max(0.0, last - first), 1),  # what really passes is no time here
    )


def _lines_around(event: Any) -> Iterator[str]:
    """The line at which this happened, and the others of its function: what a rank does between
    two events, others may find undone."""
    yield str(event.site)
    if isinstance(event.mark, tuple):
        code, _ = event.mark
        numbers = {line for _, _, line in code.co_lines() if line}
        yield from (
            str(site_at(code, line)) for line in sorted(numbers - {code.co_firstlineno})
        )
