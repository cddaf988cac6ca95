"""Pytest as the program of a run: whom its hooks tell, and what they learn.

`phalanx run -m pytest` puts a `Suite` in place. The pytest plugin asks for it when pytest
begins, and tells it of each test (`testing/suite_hooks.py`). Imports nothing of ours, so that
a pytest that is no program of ours does not pay for the question.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import Any, Protocol

NO_TESTS = 5
"""One of pytest's exit statuses."""
DONT_REWRITE = "PYTEST_DONT_REWRITE"


class Suite(Protocol):
    """Told by the hooks of a pytest that runs in a rank, or whose tests start ranks."""

    def enter(self) -> bool:
        """A run of pytest begins here. Returns whether it is the program's: not one that a
        test starts."""

    def collect(self, tests: Sequence[str]) -> None:
        """These will run, in this order."""

    def begin_test(self, test: str) -> None:
        """The next test. May block until the other ranks are there, too."""

    def fail(self, error: str) -> None:
        """The test has failed, with this line."""

    def settle(self, *, passed: bool) -> BaseException | None:
        """A phase of the test has ended. Returns what is to fail it though it `passed`."""

    def why_stopped(self) -> str | None:
        """Why no further test can run here; None if it can."""

    def leave(self) -> None:
        """This run of pytest has ended."""


_active: list[Any] = []


def active() -> Suite | None:
    return _active[-1] if _active else None


def activate(suite: Suite | None) -> None:
    """From now on this one is told; None: nobody. Pytest would warn that it cannot rewrite the
    asserts of Phalanx, one of its plugins, which is imported by now; this is how a module says
    that it need not."""
    own = sys.modules["phalanx"]
    if suite is not None and DONT_REWRITE not in (own.__doc__ or ""):
        own.__doc__ = f"{own.__doc__}\n{DONT_REWRITE}"
    _active[:] = [] if suite is None else [suite]


def exit_status(statuses: Sequence[int]) -> int:
    """What ranks' runs of pytest come to: the worst of them. A rank for which no test was left
    says nothing about the others'.

    >>> exit_status([0, 1]), exit_status([0, 5]), exit_status([5, 5]), exit_status([])
    (1, 0, 5, 0)
    """
    with_tests = [each for each in statuses if each != NO_TESTS]
    return max(with_tests or statuses, default=0)
