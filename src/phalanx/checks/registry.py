"""The checks that look back when all ranks have returned, by their kind.

Every engine calls `find_at_end` with its journal and with itself, as the host; the functions
are the same for all of them. A check must cost nothing where there is nothing to see: the run
of a test takes a millisecond. One that breaks must not break the program: it becomes a
warning.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterable
from typing import Protocol

from phalanx.checks.backend_hazard import Machines, find_backend_hazards
from phalanx.checks.group_lifecycle import find_lifecycle_mismatches, find_outsider_calls
from phalanx.checks.leak import find_leaked_groups
from phalanx.checks.message_race import RaceHost, find_message_races
from phalanx.checks.order.crossed_order import find_crossed_order
from phalanx.checks.rank_space import find_rank_spaces
from phalanx.checks.replicas.replica_drift import find_replica_drift
from phalanx.checks.results.lost_result import find_lost_results
from phalanx.checks.unwaited_work import UnmetHost, find_unwaited_work
from phalanx.errors import PhalanxWarning, text_of
from phalanx.journal.reader import Journal
from phalanx.model import Verdict


class CheckHost(Machines, RaceHost, UnmetHost, Protocol):
    """What checks may ask of the engine besides the journal."""

    @property
    def kinds(self) -> frozenset[str]:
        """The kinds that are wanted: names of `phalanx.kinds`."""

    @property
    def told(self) -> set[Verdict]:
        """What was found in earlier runs of the same world, which is not said again."""


Check = Callable[[Journal, CheckHost], Iterable[Verdict]]

AT_END: dict[str, Check] = {
    "invalid-call": find_outsider_calls,
    "mismatch": find_lifecycle_mismatches,
    "backend-hazard": find_backend_hazards,
    "crossed-order": find_crossed_order,
    "leak": find_leaked_groups,
    "lost-result": find_lost_results,
    "message-race": find_message_races,
    "rank-space": find_rank_spaces,
    "replica-drift": find_replica_drift,
    "unwaited-work": find_unwaited_work,
}
"""By kind, in the order in which they are asked."""

ONCE = frozenset({"backend-hazard"})
"""Kinds whose findings are told once in a world, however often it runs the same lines."""


def find_at_end(journal: Journal, host: CheckHost) -> list[Verdict]:
    """What can be seen only now, of the kinds that are wanted."""
    found: list[Verdict] = []
    for kind, check in AT_END.items():
        if kind in host.kinds:
            try:
                fresh = [each for each in check(journal, host) if each not in host.told]
                if kind in ONCE:
                    host.told.update(fresh)
                found += fresh
            except Exception as problem:
                tell_broken(kind, problem)
    return found


def tell_broken(kind: str, problem: Exception) -> None:
    text = (
        f"[{kind}]: the check itself failed, so nothing is known about this kind; the run "
        f"itself is not affected ({type(problem).__name__}: {text_of(problem)}). Leave it "
        f"out with checks='all,-{kind}', and please report it"
    )
    warnings.warn(PhalanxWarning(text), stacklevel=2)
