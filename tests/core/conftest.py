"""The `Bench`: a baton, its strands and their bodies, for tests without torch or ranks."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from phalanx.core.baton import Baton
from phalanx.core.launcher import Launcher
from phalanx.core.strand import Strand

Body = Callable[[Strand], None]


class Bench:
    """`run` gives each body a strand of its own; bodies write what happens into `log`."""

    def __init__(self, **options: Any) -> None:
        self.baton = Baton(**options)
        self.log: list[Any] = []
        self.errors: dict[int, BaseException] = {}
        self.strands: list[Strand] = []

    def run(self, *bodies: Body, **options: Any) -> list[Strand]:
        """The strands that could not be stopped; what a body asserts counts as the test's."""
        self.strands = [self.baton.add(rank) for rank in range(len(bodies))]
        stuck = Launcher(self.baton, **options).run(
            self.strands, [self._keeping_errors(body) for body in bodies]
        )
        for error in self.errors.values():
            if isinstance(error, (AssertionError, pytest.fail.Exception)):
                raise error
        return stuck

    def _keeping_errors(self, body: Body) -> Body:
        def keep(strand: Strand) -> None:
            try:
                body(strand)
            except BaseException as error:
                self.errors[strand.rank] = error

        return keep


@pytest.fixture
def make_desk() -> type[Bench]:
    return Bench


@pytest.fixture
def bench() -> Bench:
    return Bench()
