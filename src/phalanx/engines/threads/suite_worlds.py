"""`phalanx run -m pytest` without a number of ranks: worlds that begin and end in tests.

What a world comes to is known to the test that started its ranks, if that looks: torch's
`spawn` raises there, and processes have exit codes. Where it does not look, an error of ours
fails it all the same. Used by the command line.
"""

from __future__ import annotations

import threading
from collections.abc import Sequence
from dataclasses import dataclass, field

from phalanx.emulation.stdlib.rank_children import take_observed
from phalanx.engines.threads.self_spawning_scripts import WorldEnd, WorldObserver
from phalanx.errors import HazardError, VerdictError

ENDING = 10.0
"""Seconds for which a test waits for a world whose ranks have all ended."""


@dataclass
class _OpenWorld:
    size: int
    ended: set[int] = field(default_factory=set)


class SuiteWorlds:
    """Told of worlds by the run, and of tests by pytest's hooks."""

    def __init__(self, printers: WorldObserver) -> None:
        self._printers = printers
        self._world: _OpenWorld | None = None
        self._changed = threading.Condition()
        self._is_inside = False
        self.untold: list[BaseException] = []
        """Errors of ours that no test has met with so far."""

    # -- of worlds, in their threads ------------------------------------------------------

    def begin(self, size: int) -> None:
        self._printers.begin(size)
        self._world = _OpenWorld(size)

    def finish(self, rank: int) -> None:
        self._printers.finish(rank)
        if self._world is not None:
            self._world.ended.add(rank)

    def end(self, world: WorldEnd) -> None:
        self._printers.end(world)
        with self._changed:
            self._world = None
            if isinstance(world.error, (VerdictError, HazardError)):
                self.untold.append(world.error)
            self._changed.notify_all()

    def _is_ending(self) -> bool:
        world = self._world
        return world is not None and len(world.ended) == world.size

    # -- of tests -------------------------------------------------------------------------

    def enter(self) -> bool:
        entered, self._is_inside = not self._is_inside, True
        return entered

    def collect(self, tests: Sequence[str]) -> None: ...

    def begin_test(self, test: str) -> None: ...

    def fail(self, error: str) -> None: ...

    def settle(self, *, passed: bool) -> BaseException | None:
        """The error of a world that the test has not looked at."""
        with self._changed:
            self._changed.wait_for(lambda: not self._is_ending(), ENDING)
            errors, self.untold = self.untold, []
        observed = take_observed()
        return errors[0] if errors and passed and not observed else None

    def why_stopped(self) -> str | None:
        return None

    def leave(self) -> None:
        self._is_inside = False
