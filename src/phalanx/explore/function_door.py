"""`phalanx.explore`: explore a function."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from typing import Any

from phalanx.emulation.modules.isolation_rule import check_isolate
from phalanx.emulation.run_patches import patched
from phalanx.errors import UsageError
from phalanx.explore.exploration import Exploration
from phalanx.explore.explore_options import COMPARED, STRATEGY, ExploreOptions
from phalanx.explore.explorer import ExploreProgress, Explorer
from phalanx.explore.run_view import RunView
from phalanx.explore.subjects import FunctionSubject
from phalanx.explore.tokens import Token
from phalanx.faults import Fault, Plan
from phalanx.options import function_options


def explore(
    fn: Callable[..., Any],
    *args: Any,
    ranks: int,
    schedules: int | None = None,
    seconds: float | None = None,
    strategy: str = STRATEGY,
    seed: int = 0,
    faults: Plan | Iterable[Fault | str] | Fault | str = (),
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
    * `faults`: kinds of faults to draw for each run, such as "kill,delay", or faults that
      every run has, as values of `phalanx.faults` or their text.
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
        faults=asked.plan,
        record=False if asked.record is None else asked.record,
    )

    def replay_line(token: Token) -> str:
        again = replace(options, ranks=token.ranks)
        has_arguments = bool(args or kwargs)
        more = {"replay": str(token)}
        return again.call(fn, has_arguments=has_arguments, door="explore", more=more)

    name = getattr(fn, "__qualname__", type(fn).__name__)
    command = options.call(fn, has_arguments=bool(args or kwargs), door="explore")
    with patched(), RunView.of(asked, options, program=name, command=command) as view:
        subject = FunctionSubject(fn, args, kwargs, options, asked.plan, view=view)
        try:
            found = Explorer(subject, asked, on_progress, replay_line).run()
        finally:
            subject.close()
        view.end(found)
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
