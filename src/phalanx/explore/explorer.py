"""`explore`: run a program in one order after the other, and judge what comes of it."""

from __future__ import annotations

import time
from collections.abc import Callable, Collection
from dataclasses import dataclass
from typing import Any

from phalanx.emulation.modules.isolation_rule import check_isolate
from phalanx.errors import UsageError
from phalanx.explore.exploration import Exploration, ExplorationFailure
from phalanx.explore.judging import COMPARED, behaviour_of, failures_of, result_of
from phalanx.explore.one_run import Execution, Subject, run_once
from phalanx.explore.strategies import make_strategy
from phalanx.explore.strategies.replay import FollowedChoices
from phalanx.explore.strategy import Strategy
from phalanx.explore.subjects import FunctionSubject
from phalanx.explore.tokens import read_token, token_of
from phalanx.model import Verdict
from phalanx.options import function_options
from phalanx.report.text import headline

SCHEDULES = 200
"""How many are explored where nobody says how many."""


@dataclass(frozen=True)
class ExploreProgress:
    """Told after each run."""

    schedules: int
    of: int | None
    behaviours: int
    failures: int
    seconds: float


@dataclass(frozen=True)
class ExploreLimits:
    """How much is explored, and what counts."""

    schedules: int | None = SCHEDULES
    seconds: float | None = None
    compare: tuple[str, ...] = COMPARED

    def __post_init__(self) -> None:
        for name in ("schedules", "seconds"):
            given = getattr(self, name)
            if given is not None and (isinstance(given, bool) or not given > 0):
                raise UsageError(f"{name}={given!r}: give a number above 0, or None")
        unknown = set(self.compare) - set(COMPARED)
        if unknown:
            raise UsageError(
                f"compare={self.compare!r}: choose among {', '.join(map(repr, COMPARED))}"
            )


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
        limits: ExploreLimits | None = None,
        on_progress: Callable[[ExploreProgress], object] | None = None,
    ) -> None:
        self.subject = subject
        self.limits = limits or ExploreLimits()
        self._on_progress = on_progress
        self._found: dict[Any, _Found] = {}
        self._behaviours: set[Any] = set()
        self._results: set[bytes] = set()
        self._schedules = 0
        self._complete = False
        self._began = time.perf_counter()

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
        limits = self.limits
        if limits.schedules is not None and self._schedules >= limits.schedules:
            return True
        seconds = time.perf_counter() - self._began
        return limits.seconds is not None and seconds >= limits.seconds

    def _note(self, execution: Execution) -> None:
        self._schedules += 1
        self._behaviours.add(behaviour_of(execution.trace))
        if execution.outcome.error is None:
            self._results.add(result_of(execution.outcome, self.limits.compare))
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
                    self.limits.schedules,
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
        return ExplorationFailure(
            kind=verdict.kind if isinstance(verdict, Verdict) else type(cause).__name__,
            title=title,
            token=str(token_of(self.subject.ranks, trace)),
            story=str(error),
            error=error,
            trace=trace,
            schedules=found.times,
        )


def explore(
    fn: Callable[..., Any],
    *args: Any,
    ranks: int,
    schedules: int | None = SCHEDULES,
    seconds: float | None = None,
    strategy: str = "random",
    seed: int = 0,
    faults: Collection[Any] = (),
    compare: Collection[str] = COMPARED,
    replay: str | None = None,
    raises: bool = True,
    on_progress: Callable[[ExploreProgress], object] | None = None,
    backend: str | None = None,
    device: str | None = None,
    gpus: int | None = None,
    clock: str = "virtual",
    checks: str = "all",
    profile: str | None = None,
    completion: str | None = None,
    timeout: float | None = None,
    init: bool = True,
    isolate: Collection[str] = (),
    **kwargs: Any,
) -> Exploration:
    """Run `fn(*args, **kwargs)` on ranks in many orders, and say in which of them it fails."""
    __tracebackhide__ = True
    if not callable(fn):
        raise UsageError(f"explore takes a function to call on every rank, not {fn!r}")
    options = function_options(
        ranks=ranks,
        backend=backend,
        device=device,
        gpus=gpus,
        clock=clock,
        checks=checks,
        profile=profile,
        completion=completion,
        timeout=timeout,
        init=init,
        isolate=check_isolate(isolate),
        record=False,
    )
    limits = ExploreLimits(schedules, seconds, tuple(compare))
    subject = FunctionSubject(fn, args, kwargs, options, tuple(faults))
    explorer = Explorer(subject, limits, on_progress)
    try:
        if replay is not None:
            found = explorer.replay(replay)
        else:
            found = explorer.explore(make_strategy(strategy, seed))
    finally:
        subject.close()
    if raises and found.failures:
        error = found.failures[0].error
        error.exploration = found  # type: ignore[attr-defined]
        raise error
    return found
