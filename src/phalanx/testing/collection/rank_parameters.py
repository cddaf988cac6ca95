"""The ways to run a test on ranks, as a parameter of the test: one item for each.

Called by `plugin.py` while pytest generates the items of a test function, for functions that
have a marker of ours.
"""

from __future__ import annotations

import unittest
from collections.abc import Generator, Sequence
from typing import Any, NoReturn

import pytest

from phalanx.engines.engine import check_gpus, check_here
from phalanx.errors import UsageError
from phalanx.testing.collection.given_options import given_of, marks_for_fixtures
from phalanx.testing.collection.marker import (
    PARAMETER,
    Plan,
    Ranks,
    find_conflict,
    find_plan,
    is_about_ranks,
    is_ranks_marker,
)
from phalanx.testing.pytest_compat.pytest_private_calls import (
    LATE_MARKS,
    made_anew,
    marks_by_call,
    plan_anew,
)

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
    ways, problem = _parametrize(metafunc)
    result = yield
    _finish(metafunc, ways, problem)
    return result


def add_late_parameter(metafunc: pytest.Metafunc) -> None:
    """The same for a marker that another `pytest_generate_tests` has put on the function."""
    _finish(metafunc, *_parametrize(metafunc))


def _parametrize(metafunc: pytest.Metafunc) -> tuple[Ways, str | None]:
    ways, problem = _ways(_marks_of(metafunc), metafunc)
    if ways:
        metafunc.fixturenames.append(PARAMETER)
        values = [pytest.param(way, marks=marks) for _, way, marks in ways]
        metafunc.parametrize(PARAMETER, values, ids=[each for each, *_ in ways], indirect=True)
    return ways, problem


def _finish(metafunc: pytest.Metafunc, ways: Ways, problem: str | None) -> None:
    marked = [any(map(is_about_ranks, marks)) for marks in marks_by_call(metafunc)]
    if problem and not (marked and all(marked)):
        _fail(metafunc, problem)
    if any(marked):
        plan_marked_calls(metafunc, ways)


def plan_marked_calls(metafunc: pytest.Metafunc, ways: Ways | None = None) -> None:
    """Let the marks of `pytest.param` decide for the calls that have them."""
    own = _marks_of(metafunc)
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


def _marks_of(metafunc: pytest.Metafunc) -> list[pytest.Mark]:
    """Closest first: those that came late, those on the function and around it, and what the
    ini file says about its fixtures."""
    config = metafunc.config
    by_fixture = marks_for_fixtures(config)
    of_fixtures = [by_fixture[name] for name in metafunc.fixturenames if name in by_fixture]
    late = config.stash.get(LATE_MARKS, ())
    return [*late, *_closest_first(metafunc.definition), *of_fixtures]


def plan_late_items(items: list[pytest.Item]) -> None:
    """Replace items whose markers came after they were collected, as from a conftest's
    `pytest_itemcollected` or `pytest_collection_modifyitems`, by items on ranks."""
    planned: list[pytest.Item] = []
    for item in items:
        planned += _planned(item) if _is_late(item) else [item]
    items[:] = planned


def _is_late(item: pytest.Item) -> bool:
    return (
        isinstance(item, pytest.Function)
        and not issubclass(item.cls or object, unittest.TestCase)
        and way_of(item) is None
        and conflict_of(item) is None
        and any(map(is_ranks_marker, item.iter_markers()))
    )


def _planned(item: pytest.Item) -> list[pytest.Item]:
    item.config.stash[LATE_MARKS] = list(reversed(item.own_markers))
    try:
        made = [each for each in made_anew(item) if _is_same_but_for_ranks(each, item)]
    finally:
        del item.config.stash[LATE_MARKS]
    for each in made:
        for mark in item.own_markers:
            if mark not in each.own_markers:
                each.add_marker(
                    getattr(pytest.mark, mark.name).with_args(*mark.args, **mark.kwargs)
                )
        each.user_properties += item.user_properties
        each.extra_keyword_matches.update(item.extra_keyword_matches)
    return made


def _is_same_but_for_ranks(made: Any, item: Any) -> bool:
    return _indices(made) == _indices(item)


def _indices(item: Any) -> dict[str, int]:
    callspec = getattr(item, "callspec", None)
    found = {} if callspec is None else callspec.indices
    return {name: index for name, index in found.items() if name != PARAMETER}


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
