"""What was explored in a run of pytest: kept as properties of tests, summed up at its end.

Properties of tests come back from workers of pytest-xdist, and stand in JUnit's and other
files. Needs neither torch nor the modules that explore.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

from phalanx.report.layout import count

if TYPE_CHECKING:
    from phalanx.explore.exploration import Exploration, ExplorationFailure
    from phalanx.explore.explore_options import ExploreOptions

EXPLORED, REPLAYED = "explored_schedules", "replayed"
BEHAVIOURS, ALL, FAILURES = "explored_behaviours", "explored_all", "explored_failures"
SECONDS, TOKEN, EXACT = "explored_seconds", "explored_token", "replayed_exactly"


def plain_counts(
    found: Exploration, failures: Sequence[ExplorationFailure], asked: ExploreOptions
) -> list[tuple[str, Any]]:
    """As properties of a test. `failures` are those that it does not expect."""
    if asked.replay is not None:
        return [(REPLAYED, asked.replay), (EXACT, bool(found.exact))]
    return [
        (EXPLORED, found.schedules),
        (BEHAVIOURS, found.behaviours),
        (ALL, found.complete),
        (FAILURES, len(failures)),
        (SECONDS, round(found.seconds, 3)),
        *((TOKEN, each.token) for each in failures),
    ]


def summary_lines(reports: Iterable[Any]) -> Iterator[str]:
    """For the end of pytest's output; nothing where nothing was explored."""
    told = [dict(each.user_properties) for each in reports if each.when == "call"]
    explored = [each for each in told if EXPLORED in each]
    if explored:
        yield _explored_line(explored)
    for each in told:
        if REPLAYED in each:
            how = "" if each[EXACT] else ", not exactly: the test has changed since"
            yield f"phalanx repeated the run of {each[REPLAYED]}{how}"


def _explored_line(explored: list[dict[str, Any]]) -> str:
    schedules, behaviours, failures = (
        sum(each[name] for each in explored) for name in (EXPLORED, BEHAVIOURS, FAILURES)
    )
    line = (
        f"phalanx explored {count(schedules, 'schedule')} of {count(len(explored), 'test')}: "
        f"{count(behaviours, 'behaviour')}"
    )
    whole = sum(each[ALL] for each in explored)
    if whole == len(explored):
        line += ", which are all that there are"
    elif whole:
        line += f", all that there are of {count(whole, 'test')}"
    if failures:
        failed = sum(bool(each[FAILURES]) for each in explored)
        return f"{line}; {count(failures, 'failure')} in {count(failed, 'test')}"
    return f"{line}; none fails"
