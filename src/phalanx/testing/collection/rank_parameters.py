"""The ways to run a test on ranks, as a parameter of the test: one item for each.

Called by `plugin.py` while pytest generates the items of a test function, for functions that
have a marker of ours.
"""

from __future__ import annotations

from collections.abc import Generator, Sequence
from typing import Any, NoReturn

import pytest

from phalanx.engines.engine import check_gpus, check_here
from phalanx.errors import UsageError
from phalanx.testing.collection.given_options import given_of
from phalanx.testing.collection.marker import (
    PARAMETER,
    Plan,
    Ranks,
    find_conflict,
    find_plan,
    is_about_ranks,
)
from phalanx.testing.pytest_compat.pytest_private_calls import marks_by_call, plan_anew

Ways = list[tuple[str, Ranks, list[pytest.Mark]]]
"""The id, the way and the marks of each item."""


def way_of(item: Any) -> Ranks | None:
    """How the item runs on ranks; None for an ordinary test."""
    callspec = getattr(item, "callspec", None)
    way = None if callspec is None else callspec.params.get(PARAMETER)
    return way if isinstance(way, Ranks) else None


def conflict_of(item: Any) -> str | None:
    """What is wrong with the markers on the item's parameters; None if nothing is."""
    callspec = getattr(item, "callspec", None)
    found = None if callspec is None else callspec.params.get(PARAMETER)
    return found if isinstance(found, str) else None


def add_parameter(metafunc: pytest.Metafunc) -> Generator[None, Any, Any]:
    """The body of a wrapper of `pytest_generate_tests`."""
    own = _closest_first(metafunc.definition)
    ways, problem = _ways(own, metafunc)
    if ways:
        metafunc.fixturenames.append(PARAMETER)
        values = [pytest.param(way, marks=marks) for _, way, marks in ways]
        metafunc.parametrize(PARAMETER, values, ids=[each for each, *_ in ways], indirect=True)
    result = yield
    marked = [any(map(is_about_ranks, marks)) for marks in marks_by_call(metafunc)]
    if problem and not (marked and all(marked)):
        _fail(metafunc, problem)
    if any(marked):
        plan_marked_calls(metafunc, ways)
    return result


def plan_marked_calls(metafunc: pytest.Metafunc, ways: Ways | None = None) -> None:
    """Let the marks of `pytest.param` decide for the calls that have them."""
    own = _closest_first(metafunc.definition)
    plan_anew(metafunc, PARAMETER, ways or [], lambda marks: _ways_of(marks, own, metafunc))


def _ways_of(
    marks: Sequence[pytest.Mark], own: Sequence[pytest.Mark], metafunc: pytest.Metafunc
) -> Any:
    """None if the marks of a call say nothing about ranks. A conflict among them is an error of
    that call only, when it runs: other calls of the same test are in order."""
    if not any(map(is_about_ranks, marks)):
        return None
    ways, problem = _ways([*marks, *own], metafunc)
    if problem:
        _fail(metafunc, problem)
    if conflict := find_conflict(marks, given_of(metafunc.config)):
        return [("ranks=?", conflict, [])]
    return ways or None


def _ways(markers: Sequence[pytest.Mark], metafunc: pytest.Metafunc) -> tuple[Ways, str | None]:
    """All the ways to run a test with these markers, or what is wrong with them."""
    try:
        plan = find_plan(markers, given_of(metafunc.config))
        if plan is None:
            return [], None
        _check(plan)
    except UsageError as error:
        return [], str(error)
    return [
        (each, way, _lacks_gpu(way)) for each, way in zip(plan.ids, plan.ways, strict=True)
    ], None


def _fail(metafunc: pytest.Metafunc, problem: str) -> NoReturn:
    pytest.fail(f"{metafunc.definition.nodeid}: {problem}", pytrace=False)


def _closest_first(node: Any) -> list[pytest.Mark]:
    """Also within a class: pytest lists the marks of its bases before its own."""
    return [mark for each in reversed(node.listchain()) for mark in reversed(each.own_markers)]


def _check(plan: Plan) -> None:
    """Raise `UsageError` for what only torch and this Python know to be wrong."""
    for way in plan.ways:
        check_here(way)


def _lacks_gpu(way: Ranks) -> list[pytest.Mark]:
    """A mark that skips a test which asks for GPUs that are not here, as is usual for tests."""
    if way.device != "cuda" and way.gpus is None:
        return []
    try:
        check_gpus(way)
    except UsageError as error:
        return [pytest.mark.skip(reason=str(error)).mark]
    return []
