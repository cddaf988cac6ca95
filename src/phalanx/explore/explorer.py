"""`explore`: run a program in one order after the other, and judge what comes of it."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from phalanx.explore.exploration import Exploration, ExplorationFailure
from phalanx.explore.explore_options import ExploreOptions
from phalanx.explore.judging import behaviour_of, failures_of, result_of
from phalanx.explore.one_run import Execution, Subject, run_once
from phalanx.explore.strategies import make_strategy
from phalanx.explore.strategies.replay import FollowedChoices
from phalanx.explore.strategy import Strategy
from phalanx.explore.tokens import Token, read_token, token_of
from phalanx.model import Verdict
from phalanx.report.text import headline


@dataclass(frozen=True)
class ExploreProgress:
    """Told after each run."""

    schedules: int
    of: int | None
    behaviours: int
    failures: int
    seconds: float


@dataclass
class _Found:
    """A failure, and the first run that showed it."""

    execution: Execution
    cause: BaseException | Verdict
    times: int = 1


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
        self.asked = asked or ExploreOptions()
        self._on_progress = on_progress
        self._replay_line = replay_line
        self._found: dict[Any, _Found] = {}
        self._behaviours: set[Any] = set()
        self._results: set[bytes] = set()
        self._schedules = 0
        self._complete = False
        self._began = time.perf_counter()

    def run(self) -> Exploration:
        """Do what was asked for: repeat one run, or explore."""
        if self.asked.replay is not None:
            return self.replay(self.asked.replay)
        return self.explore(make_strategy(self.asked.strategy, self.asked.seed))

    def explore(self, strategy: Strategy) -> Exploration:
        """Run until the schedules or the seconds are used up, or nothing is left to try."""
        while not self._is_enough():
            if not strategy.begin():
                self._complete = True
                break
            self._note(run_once(self.subject, strategy))
        return self.result()

    def replay(self, text: str) -> Exploration:
        """Run what the token says, once."""
        token = read_token(text)
        strategy = FollowedChoices(token.deviations)
        strategy.begin()
        self._note(run_once(self.subject.with_changes(ranks=token.ranks), strategy))
        return self.result()

    def result(self) -> Exploration:
        return Exploration(
            ranks=self.subject.ranks,
            schedules=self._schedules,
            behaviours=len(self._behaviours),
            results=len(self._results),
            complete=self._complete,
            failures=tuple(self._failure(found) for found in self._found.values()),
            seconds=time.perf_counter() - self._began,
        )

    def _is_enough(self) -> bool:
        most, longest = self.asked.most_schedules, self.asked.seconds
        if most is not None and self._schedules >= most:
            return True
        return longest is not None and time.perf_counter() - self._began >= longest

    def _note(self, execution: Execution) -> None:
        self._schedules += 1
        self._behaviours.add(behaviour_of(execution.trace))
        if execution.outcome.error is None:
            self._results.add(result_of(execution.outcome, self.asked.compare))
        for symptom, cause in failures_of(execution):
            found = self._found.get(symptom)
            if found is None:
                self._found[symptom] = _Found(execution, cause)
            else:
                found.times += 1
        if self._on_progress is not None:
            self._on_progress(
                ExploreProgress(
                    self._schedules,
                    self.asked.most_schedules,
                    len(self._behaviours),
                    len(self._found),
                    time.perf_counter() - self._began,
                )
            )

    def _failure(self, found: _Found) -> ExplorationFailure:
        trace, cause = found.execution.trace, found.cause
        verdict = cause if isinstance(cause, Verdict) else getattr(cause, "verdict", None)
        error = cause if isinstance(cause, BaseException) else RuntimeError(str(cause))
        title = headline(verdict) if isinstance(verdict, Verdict) else str(cause)
        token = token_of(self.subject.ranks, trace)
        return ExplorationFailure(
            kind=verdict.kind if isinstance(verdict, Verdict) else type(cause).__name__,
            title=title,
            token=str(token),
            story=str(error),
            error=error,
            trace=trace,
            schedules=found.times,
            replay=self._replay_line(token),
        )
