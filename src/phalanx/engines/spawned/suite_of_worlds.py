"""`phalanx run --engine processes -m pytest`: worlds that begin and end in tests.

What a world comes to is known to the test that started its ranks, if that looks: torch's
`spawn` raises there, and processes have exit codes. Where it does not look, an error of ours
fails it all the same. Runs in the process of pytest; the launcher judges the worlds.
"""

from __future__ import annotations

from contextlib import suppress
from typing import Any

from phalanx.engines.script_in_rank import SuiteInProcess
from phalanx.engines.spawned.spawned_messages import (
    PhaseOver,
    SpawnBase,
    connect,
    read_errors,
)
from phalanx.engines.spawned.spawned_rank import Presence
from phalanx.errors import PhalanxError


class SuiteOfWorlds(SuiteInProcess):
    """Told of tests by pytest's hooks."""

    def __init__(self, base: SpawnBase, presence: Presence) -> None:
        super().__init__(presence.begin_test)
        self._base = base
        self._presence = presence

    def settle(self, *, passed: bool) -> BaseException | None:
        """The error of a world that the test has not looked at. The lines of ranks that have
        ended are closed by now, so the launcher hears of their ends before this question."""
        looked_at, self._presence.looked_at = self._presence.looked_at, set()
        with suppress(OSError), connect(self._base, PhaseOver(passed, tuple(looked_at))) as end:
            for name, text in read_errors(end).errors:
                kind: Any = type(name, (PhalanxError,), {"__module__": "phalanx"})
                error: BaseException = kind(text)
                return error
        return None
