"""`explore`: run a program in one order after the other, and judge what comes of it."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any

from phalanx.emulation.modules.isolation_rule import check_isolate
from phalanx.errors import UsageError
from phalanx.explore.exploration import Exploration, ExplorationFailure
from phalanx.explore.explore_options import COMPARED, STRATEGY, ExploreOptions
from phalanx.explore.judging import behaviour_of, failures_of, result_of
from phalanx.explore.one_run import Execution, Subject, run_once
from phalanx.explore.strategies import make_strategy
from phalanx.explore.strategies.replay import FollowedChoices
from phalanx.explore.strategy import Strategy
from phalanx.explore.subjects import FunctionSubject
from phalanx.explore.tokens import Token, read_token, token_of
from phalanx.model import Verdict
from phalanx.options import function_options
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


def explore(
    fn: Callable[..., Any],
    *args: Any,
    ranks: int,
    schedules: int | None = None,
    seconds: float | None = None,
    strategy: str = STRATEGY,
    seed: int = 0,
    faults: Iterable[Any] | str = (),
    compare: Iterable[str] | str = COMPARED,
    same_result: bool = False,
    store: str | os.PathLike[str] | None = ".phalanx",
    replay: str | None = None,
    record: str | os.PathLike[str] | None = None,
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
    isolate: Iterable[str] = (),
    **kwargs: Any,
) -> Exploration:
    """Call `fn(*args, **kwargs)` on ranks again and again, each time in another order, and say
    in which orders it fails.

    Blocks until the last run has ended. Raises the first failure, as `phalanx.run` would raise
    it, with the whole `Exploration` as its attribute `exploration`; and `UsageError` for wrong
    options. Keyword arguments with the names below are options; wrap `fn` if it takes them
    itself. `fn` must be a function that may run many times in one process.

    * `ranks`: how many.
    * `schedules`: how many runs at most: 200 where neither this nor `seconds` is given, and
      10,000 for the exhaustive search, which ends by itself where it can.
    * `seconds`: no run begins after so many seconds.
    * `strategy`: which orders are tried: "random", "pct", "pos", or "exhaustive" for all.
    * `seed`: of the strategy and of drawn faults. Equal seeds try the same orders.
    * `faults`: kinds of faults to draw for each run, such as "kill,delay", or a plan of
      faults that every run has.
    * `compare`: what must be equal in all orders, of "values" (what ranks return), "output"
      (what each prints) and "parameters" (of models). "none": results may differ.
    * `same_result`: whether a run with faults must end as the run without.
    * `store`: the folder that keeps failures, which are tried first the next time; None keeps
      none.
    * `replay`: the token of a failure: that run is repeated, with its output, and no other.
    * `record`: with `replay`, a file for all that ranks do, which `phalanx report` shows.
    * `raises`: with False, failures are only in the result.
    * `on_progress`: called with an `ExploreProgress` after each run.

    The others are those of `phalanx.run`, on threads. The clock is virtual, unless `clock`
    says "real": sleeps and timeouts take no time.

    >>> import torch.distributed as dist
    >>> def first_come():
    ...     store = dist.distributed_c10d._get_default_store()
    ...     return store.add("come", 1)
    >>> found = explore(first_come, ranks=2, compare="none", schedules=20, store=None)
    >>> found.behaviours
    2
    """
    __tracebackhide__ = True
    if not callable(fn):
        raise UsageError(f"explore takes a function to call on every rank, not {fn!r}")
    _check_no_other_options(kwargs)
    asked = ExploreOptions.of(
        schedules=schedules,
        seconds=seconds,
        strategy=strategy,
        seed=seed,
        faults=faults,
        compare=compare,
        same_result=same_result,
        store=store,
        replay=replay,
        record=record,
    )
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
        record=False if asked.record is None else asked.record,
    )
    plan = tuple(each for each in asked.faults if not isinstance(each, str))
    subject = FunctionSubject(fn, args, kwargs, options, plan)

    def replay_line(token: Token) -> str:
        again = replace(options, ranks=token.ranks)
        has_arguments = bool(args or kwargs)
        more = {"replay": str(token)}
        return again.call(fn, has_arguments=has_arguments, door="explore", more=more)

    explorer = Explorer(subject, asked, on_progress, replay_line)
    try:
        found = explorer.run()
    finally:
        subject.close()
    if raises and found.failures:
        error = found.failures[0].error
        error.exploration = found  # type: ignore[attr-defined]
        raise error
    return found


_OTHERS = {
    "engine": "ranks that are explored are threads",
    "strict": "whatever checks find is a failure here; leave kinds out with checks",
    "record_limit": "a run that is repeated is recorded with the usual limit",
}
"""Options of `phalanx.run` that mean nothing here: they must not come to the function."""


def _check_no_other_options(given: Mapping[str, Any]) -> None:
    for name in _OTHERS:
        if name in given:
            raise UsageError(
                f"{name}={given[name]!r}: explore has no such option: {_OTHERS[name]}; leave "
                "it out"
            )
