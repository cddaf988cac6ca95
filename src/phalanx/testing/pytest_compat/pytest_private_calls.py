"""The calls that pytest plans for a test function, one for each set of its parameters, and the
fixtures that it knows for them. Private names of pytest, as in `pytest_private.py`; used by
`plugin.py` at collection, in every project, so nothing else may be imported here. Checked with
pytest 8.2 to 9.2.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import replace
from typing import Any

import pytest
from _pytest.scope import Scope

LATE_MARKS = pytest.StashKey[Sequence[pytest.Mark]]()
"""The marks of an item that is planned anew, while it is."""

Way = tuple[str, Any, Sequence[Any]]
"""The id of a value, the value, and the marks that come with it."""


def marks_by_call(metafunc: Any) -> list[list[Any]]:
    """What `pytest.param(..., marks=...)` says, for each call."""
    return [call.marks for call in metafunc._calls]


def made_anew(item: Any) -> list[Any]:
    """All items of the function that this one is of, made as at collection."""
    return list(item.parent._genfunctions(item.originalname, item.function))


def unknown_fixtures(metafunc: Any) -> list[str]:
    """Names that the test asks for and neither a fixture nor a parameter has so far."""
    return [name for name in metafunc.fixturenames if name not in metafunc._arg2fixturedefs]


def add_late_fixtures(metafunc: Any, names: Collection[str]) -> None:
    """Let the test find fixtures of these names, whose plugin was registered after pytest
    looked for its fixtures, and what they ask for."""
    if not any(name in names for name in metafunc.fixturenames):
        return
    definition = metafunc.definition
    manager = definition.session._fixturemanager
    found = manager.getfixtureinfo(definition, definition.obj, metafunc.cls)
    for name in found.names_closure:
        if name not in metafunc.fixturenames:
            metafunc.fixturenames.append(name)
        if name in found.name2fixturedefs:
            metafunc._arg2fixturedefs[name] = found.name2fixturedefs[name]


def put_behind_others(manager: Any, names: Collection[str], module: str) -> None:
    """Let fixtures of these names that `module` defines yield to the project's own, as those of
    any plugin do. pytest takes what was registered later for more specific, and the module
    is registered when the project's fixtures are there already."""

    def is_of_module(definition: Any) -> bool:
        return bool(definition.func.__module__ == module)

    by_node = getattr(manager, "_arg2node2fixturedefs", None)
    for name in names:
        if by_node is not None:  # pytest 9.2: the first of a node counts
            for definitions in by_node.get(name, {}).values():
                definitions.sort(key=is_of_module)
        else:  # before: the last counts
            definitions = manager._arg2fixturedefs.get(name, [])
            definitions.sort(key=lambda each: not is_of_module(each))


def plan_anew(
    metafunc: Any, name: str, before: Sequence[Way], plan: Callable[[Any], Sequence[Way] | None]
) -> None:
    """Let the marks of a call's parameters choose the values of this parameter, in place of
    those `before`, which it may have been given for all calls. `plan` returns None to leave
    a call as it is."""
    calls: list[Any] = []
    seen: set[Any] = set()
    for call in metafunc._calls:
        ids, marks = list(call._idlist), call.marks
        at = call.indices.get(name)
        if at is not None:
            marks = [mark for mark in marks if mark not in before[at][2]]
        ways = plan(marks)
        if ways is None:
            calls.append(call)
            continue
        others = tuple((key, index) for key, index in call.indices.items() if key != name)
        if others in seen:
            continue
        seen.add(others)
        place = 0
        if at is not None:
            place = ids.index(before[at][0])
            del ids[place]
        for index, (each, value, added) in enumerate(ways):
            calls.append(
                replace(
                    call,
                    params={**call.params, name: value},
                    indices={**call.indices, name: index},
                    _arg2scope={**call._arg2scope, name: Scope.Function},
                    _idlist=[*ids[:place], each, *ids[place:]],
                    marks=[*added, *marks],
                )
            )
    metafunc._calls = calls
