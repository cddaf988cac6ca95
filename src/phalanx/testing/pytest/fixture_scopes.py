"""`once_per_rank` and `once_per_test`: a fixture says how often it is made in a ranks test.

Used in users' conftest files; read by `fixtures.py`. Must not need pytest.
"""

from __future__ import annotations

from typing import Any, Literal, TypeVar

How = Literal["rank", "test"]
Fixture = TypeVar("Fixture")

_ATTRIBUTE = "__phalanx_made_once_per__"


def once_per_rank(fixture: Fixture) -> Fixture:
    """Make this fixture in every rank, whatever its scope, while the rank has its group.

    The decorator goes above or below `@pytest.fixture`. It is the default for fixtures of
    function scope.
    """
    _declare(fixture, "rank", "once_per_rank")
    return fixture


def once_per_test(fixture: Fixture) -> Fixture:
    """Make this fixture once, in pytest's own process, and give all ranks its value.

    The decorator goes above or below `@pytest.fixture`. It is the default for fixtures of wider
    scope than function. Threads get the same object, processes a copy.
    """
    _declare(fixture, "test", "once_per_test")
    return fixture


def declared(function: Any) -> How | None:
    """What was declared for a fixture function, if anything."""
    return getattr(function, _ATTRIBUTE, None)


def _declare(fixture: Any, how: How, name: str) -> None:
    if not callable(fixture):
        raise TypeError(f"@{name} goes on a fixture function, not on {fixture!r}")
    each: Any = fixture
    while each is not None:  # pytest keeps the function it was given inside its own object
        setattr(each, _ATTRIBUTE, how)
        each = getattr(each, "__wrapped__", None)
