"""`explore`: run a program in one order after the other, and judge what comes of it."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from phalanx.errors import UsageError
from phalanx.explore.drawn_plans import drawn_plans
from phalanx.explore.exploration import Exploration, ExplorationFailure
from phalanx.explore.explore_options import EXPLORING, SHRINKING, ExploreOptions
from phalanx.explore.failures.failure_store import FailureStore, StoredFailure
from phalanx.explore.failures.investigation import Investigation, Suspect, find_hint
from phalanx.explore.failures.order_results import (
    DifferentResults,
    OrderResults,
    result_parting,
    unsteady_parts,
)
from phalanx.explore.failures.partings import (
    SAME_ORDER,
    chance_found,
    parting_of,
    unsteady_found,
)
from phalanx.explore.failures.shrinking import Budget
from phalanx.explore.failures.telling import tell_results, tell_suspect
from phalanx.explore.judging import Symptom, behaviour_of, failures_of
from phalanx.explore.one_run import Execution, Subject, repeat, run_once
from phalanx.explore.strategies import make_strategy
from phalanx.explore.strategy import Strategy
from phalanx.explore.tokens import Token, checksum_of, read_token
from phalanx.faults import parse_faults
from phalanx.report.text import render

SAME_RUN = f"{SAME_ORDER} run"
REPEATED = frozenset({1, 10, 100})
"""Schedules that are run twice: the second run must be equal."""
MOST_SUSPECTS = 20
"""Different failures that are kept."""
MOST_INVESTIGATED = 6
"""Of these, how many are made small."""


@dataclass(frozen=True)
class ExploreProgress:
    """Told after each run."""

    schedules: int
    of: int | None
    behaviours: int
    failures: int
    seconds: float
    stage: str = EXPLORING
    """Or "shrinking": runs that make a failure small are no schedules."""


class Explorer:
    """Explores one subject. Everything that was found so far can be asked for at any time."""

    def __init__(
        self,
        subject: Subject,
        asked: ExploreOptions | None = None,
        on_progress: Callable[[ExploreProgress], object] | None = None,
        replay_line: Callable[[Token], str] = str,
    ) -> None:
        """`replay_line` says what to type to repeat the run of a token."""
        self.subject = subject
        self.asked = asked or ExploreOptions(store=None)
        self._on_progress = on_progress
        self._replay_line = replay_line
        self._suspects: dict[Symptom, Suspect] = {}
        self._results = OrderResults(self.asked.compare)
        self._different: DifferentResults | None = None
        self._behaviours: set[Any] = set()
        self._schedules = 0
        self._stage = EXPLORING
        self._complete = False
        self._is_controlled = True
        self._notes: list[str] = []
        self._untried: list[StoredFailure] = []
        self._fingerprint = ""
        self._exact: bool | None = None
        self._told: dict[int, ExplorationFailure] = {}
        self._began = time.perf_counter()
        self._kinds = tuple(each for each in self.asked.faults if isinstance(each, str))
        if self._kinds and self.asked.strategy == "exhaustive":
            raise UsageError(
                "strategy='exhaustive': it explores all orders under one plan of faults, and "
                f"faults={', '.join(self._kinds)!r} draws another one for each run; give a "
                "plan, e.g. faults=[kill(rank=1, at=call(3))], or another strategy"
            )

    def run(self) -> Exploration:
        """Do what was asked for: repeat one run, or explore."""
        if self.asked.replay is not None:
            return self.replay(self.asked.replay)
        return self.explore(make_strategy(self.asked.strategy, self.asked.seed))

    def explore(self, strategy: Strategy) -> Exploration:
        """Run until the schedules or the seconds are used up, or nothing is left to try; then
        repeat and shrink what was found. Ctrl-C while it looks for failures leaves by
        `KeyboardInterrupt`, and `result` has what was found so far; while it shrinks, Ctrl-C
        ends that."""
        store = self._open_store()
        try:
            self._try_stored(store)
            plans = drawn_plans(self.subject, self._kinds, self.asked.seed, self._run_default)
            while not self._is_enough():
                if not strategy.begin():
                    self._complete = True
                    break
                subject = next(plans)
                execution = run_once(subject, strategy)
                self._note(execution, subject)
                if self._schedules in REPEATED:
                    self._compare_with_itself(execution, subject)
                if not self._kinds and not execution.trace.has_alternatives():
                    self._complete = True  # whatever strategy, there is no other run
                    break
            self._investigate()
        finally:
            self._keep(store)
        return self.result()

    def replay(self, text: str) -> Exploration:
        """Run what the token says, once. If that ends well, more runs, which nobody sees, say
        whether it differs in its result from the default order."""
        token = read_token(text)
        faults = parse_faults(token.faults) if token.faults else None
        subject = self.subject.with_changes(ranks=token.ranks, faults=faults)
        execution, followed = repeat(subject, token.deviations)
        self._exact = followed and checksum_of(execution.trace) == token.checksum
        self._fingerprint = execution.fingerprint
        if not self._exact:
            self._notes.append(
                "this run does not choose as the token says: the program, its input or what it "
                "runs on has changed since, or something that is no choice decides, too; "
                "explore again for a new token"
            )
        quiet = subject.with_changes(quiet=True)
        self._note(execution, quiet)
        if not self._suspects and (token.deviations or token.faults):
            self._compare_results(quiet, fewest=1)
        return self.result()

    def result(self) -> Exploration:
        return Exploration(
            ranks=self.subject.ranks,
            schedules=self._schedules,
            behaviours=len(self._behaviours),
            results=len(self._results),
            complete=self._complete and self._is_controlled,
            failures=tuple(self._failures()),
            seconds=time.perf_counter() - self._began,
            notes=tuple(self._notes),
            program=self.subject.name,
            has_faults=bool(self.subject.faults or self._kinds),
            fingerprint=self._fingerprint,
            replayed=self.asked.replay or "",
            exact=self._exact,
        )

    def _failures(self) -> list[ExplorationFailure]:
        found = [self._tell(suspect) for suspect in self._suspects.values()]
        if self._different is not None:
            found.append(tell_results(self._different, self._replay_line))
        return found

    def _tell(self, suspect: Suspect) -> ExplorationFailure:
        """Once for each run that shows it: telling changes the text of the error."""
        told = self._told.get(id(suspect.execution))
        if told is None:
            told = tell_suspect(suspect, self._replay_line)
            self._told[id(suspect.execution)] = told
        return told

    # -- looking for failures ---------------------------------------------------------------

    def _is_enough(self) -> bool:
        most, longest = self.asked.most_schedules, self.asked.seconds
        if most is not None and self._schedules >= most:
            return True
        return longest is not None and time.perf_counter() - self._began >= longest

    def _run_default(self, subject: Subject) -> Execution:
        return repeat(subject, {})[0]

    def _note(self, execution: Execution, subject: Subject) -> None:
        self._schedules += 1
        behaviour = behaviour_of(execution.trace)
        self._behaviours.add(behaviour)
        failures = list(failures_of(execution))
        for symptom, cause in failures:
            suspect = self._suspects.get(symptom)
            if suspect is not None:
                suspect.times += 1
                suspect.behaviours.add(behaviour)
            elif len(self._suspects) < MOST_SUSPECTS:
                self._suspects[symptom] = Suspect(
                    symptom,
                    subject,
                    execution,
                    cause,
                    first=self._schedules,
                    behaviours={behaviour},
                )
        if not failures and (not subject.faults or self.asked.same_result):
            self._results.note(execution, subject, behaviour, self._schedules)
        self._report()

    def _report(self) -> None:
        if self._on_progress is not None:
            self._on_progress(
                ExploreProgress(
                    self._schedules,
                    self.asked.most_schedules,
                    len(self._behaviours),
                    len(self._suspects) + (self._different is not None),
                    time.perf_counter() - self._began,
                    self._stage,
                )
            )

    def _compare_with_itself(self, execution: Execution, subject: Subject) -> None:
        """What the same choices do again must be the same. Failures are repeated later."""
        again, _ = repeat(subject, execution.trace.deviations())
        parting = parting_of(execution.trace, again.trace)
        if parting is not None:
            self._is_controlled = False
            if not self._has_note(SAME_RUN):
                hint = find_hint(subject, execution)
                self._notes.append(render(chance_found(parting, hint)))
            return
        self._leave_unsteady_out(execution, again, subject)

    def _leave_unsteady_out(
        self, execution: Execution, again: Execution, subject: Subject
    ) -> None:
        unsteady = unsteady_parts(execution, again, self._results.compare)
        parting = result_parting(execution, again, unsteady)
        if parting is not None:
            hint = find_hint(subject, execution)
            self._notes.append(render(unsteady_found(parting, unsteady, hint)))
            self._results.leave_out(unsteady)

    def _has_note(self, start: str) -> bool:
        return any(each.startswith(start) for each in self._notes)

    # -- what was found ---------------------------------------------------------------------

    def _investigate(self) -> None:
        self._stage = SHRINKING
        for suspect in list(self._suspects.values())[:MOST_INVESTIGATED]:
            investigation = Investigation(suspect, on_run=self._report)
            investigation.investigate()
            if suspect.parting is not None:
                self._is_controlled = False
            if investigation.interrupted:
                return
        self._compare_results(self.subject)

    def _compare_results(self, subject: Subject, fewest: int = 2) -> None:
        """With faults, results are those of runs with faults, and compared with that of a run
        without."""
        has_faults = bool(subject.faults or self._kinds)
        base = subject.with_changes(faults=()) if has_faults else subject
        try:
            by = "fault" if has_faults else "order"
            self._different = self._results.find(
                base, Budget(), self._report, by=by, fewest=fewest
            )
        except KeyboardInterrupt:
            return
        unsteady = self._results.unsteady
        if unsteady is not None:
            self._leave_unsteady_out(*unsteady)

    # -- failures that are kept -------------------------------------------------------------

    def _open_store(self) -> FailureStore | None:
        folder = self.asked.store
        if folder is None:
            return None
        return FailureStore(folder, self.subject.key, self.subject.ranks)

    def _try_stored(self, store: FailureStore | None) -> None:
        """What failed before is tried first; what no longer fails is forgotten."""
        self._untried = store.load() if store is not None else []
        while self._untried and not self._is_enough():
            token = read_token(self._untried[0].token)
            try:
                faults = parse_faults(token.faults) if token.faults else ()
                subject = self.subject.with_changes(
                    ranks=token.ranks, faults=faults or self.subject.faults
                )
                execution, _ = repeat(subject, token.deviations)
                self._note(execution, subject)
            except UsageError:  # of an earlier form, or on ranks that it does not take
                pass
            del self._untried[0]

    def _keep(self, store: FailureStore | None) -> None:
        if store is None:
            return
        found = [StoredFailure(each.token, each.kind, each.title) for each in self._failures()]
        store.save([*found, *self._untried])
        self._notes += store.notes
