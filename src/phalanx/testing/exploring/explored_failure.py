"""The report of a test that fails in some order: what fails, the order, what repeats it.

Built from the parts of a test's report that is not explored, so that an assertion looks as
pytest shows it.
"""

from __future__ import annotations

from typing import Any

from phalanx.explore.exploration import Exploration, ExplorationFailure
from phalanx.report.layout import count, labelled
from phalanx.testing.exploring.explored_item import ExploredItem
from phalanx.testing.pytest.item_failure import (
    crash_of_run,
    lines_of,
    show_in_order,
    timeline_lines,
)
from phalanx.testing.pytest.item_run import RanksRun
from phalanx.testing.pytest_compat import pytest_private as private

OTHERWISE = "in other orders it fails in another way:"


def show_explored(explored: ExploredItem, *, report: str) -> Any:
    """The representation of all failures, in pytest's terms; `report` as `--ranks-report` has
    it, or "line"."""
    failures = explored.failures
    crash = _crash(explored, failures[0])
    parts: list[Any] = []
    if report == "concise":
        lines = [line for each in failures for line in _short(explored, each)]
        parts.append(private.native_text("\n".join(lines)))
    elif report != "line":
        shown = failures[:1] if report == "first" else failures
        for number, each in enumerate(shown):
            parts += [private.native_text(f"\n{OTHERWISE}\n")] if number else []
            parts += _show(explored, each)
        if len(shown) < len(failures):
            left = count(len(failures) - len(shown), "other failure")
            parts.append(
                private.native_text(f"\n{left}; --ranks-report all shows how it fails")
            )
    *first, last = parts or [private.no_text()]
    return private.ChainRepr([*((part, None, None) for part in first), (last, crash, None)])


def _show(explored: ExploredItem, failure: ExplorationFailure) -> list[Any]:
    run = _failed_run(failure)
    last = [
        *labelled("explored", _often(explored, failure)),
        *labelled("replay", failure.replay, whole=True),
        *(timeline_lines(run) if run is not None else ()),
    ]
    if run is not None and run.cause is not None and not run.cause.verdict:
        return show_in_order(run, failure.order, last)
    text = f"{_heading(failure)}{failure.story}"
    return [private.native_text("\n".join([text, "", *last]))]


def _failed_run(failure: ExplorationFailure) -> RanksRun | None:
    """None for what is found in runs that end well."""
    run: RanksRun | None = None if failure.kept is None else failure.kept.run
    return run if run is not None and run.cause is not None else None


def _heading(failure: ExplorationFailure) -> str:
    return f"{type(failure.error).__name__}: "


def _short(explored: ExploredItem, failure: ExplorationFailure) -> list[str]:
    run = _failed_run(failure)
    lines = [f"{_heading(failure)}{failure.title}"] if run is None else lines_of(run)
    return [*lines, *labelled("replay", failure.replay, whole=True)]


def _crash(explored: ExploredItem, failure: ExplorationFailure) -> Any:
    """For pytest's short summary and JUnit's file."""
    run = _failed_run(failure)
    if run is None:
        path, line = str(explored.item.path), (explored.item.location[1] or 0) + 1
        text = f"{_heading(failure)}{failure.title}"
    else:
        found = crash_of_run(run)
        path, line, text = found.path, found.lineno, found.message
    if explored.asked.replay is None:
        text += f" ({_times(explored.found, failure)})"
    return private.FileLocation(path, line, text)


def _often(explored: ExploredItem, failure: ExplorationFailure) -> str:
    found = explored.found
    assert found is not None
    if explored.asked.replay is not None:
        exactly = "exactly" if found.exact else "not exactly: the test has changed since"
        return f"the run of {explored.asked.replay} again, {exactly}"
    if found.complete:
        return f"{found.summary()}"
    behaviours = count(found.behaviours, "behaviour")
    return f"it fails like this {_times(found, failure)}; {behaviours} were seen"


def _times(found: Exploration | None, failure: ExplorationFailure) -> str:
    assert found is not None
    if found.complete:
        return f"in {failure.behaviours} of all {count(found.behaviours, 'behaviour')}"
    return f"in {failure.schedules} of {count(found.schedules, 'schedule')}"
