"""`run` and `World`: a function on a number of ranks, once or several times.

The doors import these. What depends on the engine is behind `engine.Engine`.
"""

from __future__ import annotations

import inspect
import os
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from types import CodeType, TracebackType
from typing import TYPE_CHECKING, Any

from phalanx.emulation.modules.isolation_rule import check_isolate
from phalanx.engines.engine import check_gpus, check_here, make_engine
from phalanx.engines.outcome import warn_of
from phalanx.engines.run_recording import (
    RunRecording,
    ending_of,
    is_in_a_test,
    plain_verdict,
    timeline_of,
    with_timeline,
)
from phalanx.errors import PhalanxError, UsageError
from phalanx.faults import Fault, Plan
from phalanx.journal.reader import Journal
from phalanx.journal.writer import JournalWriter
from phalanx.model import Verdict
from phalanx.options import function_options

if TYPE_CHECKING:
    from phalanx.report.timeline.run_timeline import RunTimeline


class World:
    """A number of ranks, held open for several runs. Takes the options of `run`.

    The process groups of one run still exist in the next. A run that fails destroys them, and
    the next run begins with new ones. Use it in a `with` statement, or call `close`.

    >>> import torch, torch.distributed as dist
    >>> def total(x):
    ...     t = torch.tensor(float(dist.get_rank() * x))
    ...     dist.all_reduce(t)
    ...     return t.item()
    >>> with World(ranks=4) as world:
    ...     world.run(total, 1)
    ...     world.run(total, 10)
    [6.0, 6.0, 6.0, 6.0]
    [60.0, 60.0, 60.0, 60.0]
    """

    def __init__(
        self,
        *,
        ranks: int,
        engine: str = "threads",
        backend: str | None = None,
        device: str | None = None,
        gpus: int | None = None,
        seed: int = 0,
        clock: str = "real",
        compute: str | float = "real",
        network: Any = None,
        checks: str = "all",
        strict: bool = False,
        profile: str | None = None,
        completion: str | None = None,
        faults: Plan | Sequence[Fault] | str = (),
        timeout: float | None = None,
        init: bool = True,
        isolate: Iterable[str] = (),
        record: str | os.PathLike[str] | bool | None = None,
        record_limit: int = 256,
        replay: str | None = None,
    ) -> None:
        options = function_options(
            ranks=ranks,
            engine=engine,
            backend=backend,
            device=device,
            gpus=gpus,
            seed=seed,
            clock=clock,
            compute=compute,
            network=network,
            checks=checks,
            strict=strict,
            profile=profile,
            completion=completion,
            faults=faults,
            timeout=timeout,
            init=init,
            isolate=check_isolate(isolate),
            record=_file(record),
            record_limit=record_limit,
        )
        check_here(options)
        check_gpus(options)
        self.ranks = ranks
        self._open = True
        self._depth = 2
        self._end: dict[str, Any] = {"status": "finished"}
        self._recording = RunRecording(options, program="", command=replay)
        self._engine = make_engine(options, replay=replay, on_journal=self._recording.follow)

    def run(self, fn: Callable[..., Any], *args: Any, **kwargs: Any) -> list[Any]:
        """Call `fn(*args, **kwargs)` once on each rank; return the results in rank order."""
        __tracebackhide__ = True  # pytest: show the user's frames, not ours
        if not callable(fn):
            raise UsageError(f"run takes a function to call on every rank, not {fn!r}")
        if not self._open:
            raise UsageError("this World is closed; make a new one")
        known = len(self._engine.findings)
        self._recording.runs += 1
        self._recording.program = self._recording.program or f"World{_file_of(fn)}"
        try:
            values = self._engine.call(fn, args, kwargs)
        except PhalanxError as error:
            error.journal = self.journal
            self._end = ending_of(error)
            error.timeline = self._timeline()
            name = self._recording.failed(error, keep=not is_in_a_test())
            with_timeline(error, name)
            raise
        found = self._engine.findings[known:]
        self._end = {"status": "finished", "verdicts": [plain_verdict(each) for each in found]}
        self._recording.found(found)
        warn_of(self._engine.findings[known:], stacklevel=self._depth)
        return values

    @property
    def journal(self) -> Journal:
        """What happened in the last run, event by event, oldest first; see `docs/journal.md`.

        >>> import torch.distributed as dist
        >>> def greet():
        ...     dist.barrier()
        >>> with World(ranks=2) as world:
        ...     _ = world.run(greet)
        >>> for call in world.journal.filter(kind="posted", rank=1):
        ...     print(call.rank, call.name, call.group.name, call.number)
        1 barrier world 0
        """
        found = self._engine.journal
        return JournalWriter(self.ranks).reader() if found is None else found

    def timeline(self) -> RunTimeline:
        """The last run to look at. A notebook shows it as a timeline; `save(path)` writes that
        as a page for the browser, `print` shows a summary, `summary()` gives it as data. The
        error of a run that failed has it, too: `error.timeline`. Raises `UsageError` before the
        first run.

        >>> import torch.distributed as dist
        >>> def greet():
        ...     dist.barrier()
        >>> with World(ranks=2) as world:
        ...     _ = world.run(greet)
        >>> world.timeline().summary()["operations"][0]["calls"]
        2
        """
        if self._engine.journal is None:
            raise UsageError("World.timeline: there is no run to show yet; call run first")
        return self._timeline()

    def _timeline(self) -> RunTimeline:
        facts = dict(self._recording.facts)
        timeline: RunTimeline = timeline_of(self.journal, facts, self._end)
        return timeline

    @property
    def findings(self) -> tuple[Verdict, ...]:
        """What the checks found in runs that succeeded, such as messages nobody received. Each
        finding was also a `PhalanxWarning` or, with `strict`, part of a `HazardError`."""
        return tuple(self._engine.findings)

    @property
    def fingerprint(self) -> int:
        """A hash of the order in which ranks ran in the last run: equal for equal schedules."""
        return self._engine.fingerprint

    def close(self) -> None:
        """Destroy the groups and end the ranks. A closed world runs nothing more."""
        if self._open:
            try:
                self._engine.close()
            except UsageError:  # it runs, and goes on
                raise
            except BaseException:
                self._put_away()
                raise
            self._put_away()

    def _put_away(self) -> None:
        self._open = False
        self._recording.close()

    def __enter__(self) -> World:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()


def run(
    fn: Callable[..., Any],
    *args: Any,
    ranks: int,
    engine: str = "threads",
    backend: str | None = None,
    device: str | None = None,
    gpus: int | None = None,
    seed: int = 0,
    clock: str = "real",
    compute: str | float = "real",
    network: Any = None,
    checks: str = "all",
    strict: bool = False,
    profile: str | None = None,
    completion: str | None = None,
    faults: Plan | Sequence[Fault] | str = (),
    timeout: float | None = None,
    init: bool = True,
    isolate: Iterable[str] = (),
    record: str | os.PathLike[str] | bool | None = None,
    record_limit: int = 256,
    **kwargs: Any,
) -> list[Any]:
    """Call `fn(*args, **kwargs)` once on each rank; return the results in rank order.

    Blocks until every rank has returned. Raises the error of a check, such as `DeadlockError`,
    `RankFailedError` if a rank raises, and `UsageError` for wrong options.
    Keyword arguments with the names below are options; wrap `fn` if it takes them itself.

    * `ranks`: how many.
    * `engine`: "threads", or "processes" for one process per rank on torch's own backend.
    * `backend`: of the default group. Processes take any backend that torch knows.
    * `init`: whether the default process group exists when `fn` starts.
    * `device`: "cuda" gives every rank a GPU, `cuda:{rank}`, shared where there are fewer
      than ranks; with `init` it is the current device. "cpu" hides all GPUs.
    * `gpus`: use only so many GPUs, the first ones.
    * `seed`: 0 runs ranks in order. Another number draws a random order and replays it.
    * `clock`: with "virtual", sleeps and timeouts pass at once when every rank waits.
    * `compute`: on the virtual clock, how long computing takes: "real", as long as here,
      "free", no time, or by a factor: 0.1.
    * `network`: on the virtual clock, what operations cost: a value of `phalanx.costs`.
    * `checks`: "all", "none", or kinds of findings: "mismatch,leak", "all,-leak".
    * `strict`: raise a `HazardError` where a finding is otherwise a `PhalanxWarning`.
    * `profile`: "nccl" or "gloo" judges the run by that backend's rules; hazards are errors.
    * `completion`: when asynchronous operations complete: "earliest", "latest" (as late as is
      legal), or "seeded" (drawn by the seed; the default with a seed).
    * `faults`: what goes wrong in the run, as values of `phalanx.faults` or their text:
      `[kill(rank=2, at=call(17))]`.
    * `timeout`: the run ends with a `StallError` after so many seconds in which no rank
      begins or ends a call of `torch.distributed`, uses a store, prints or ends; on threads
      a hand-over of the baton counts, too. Computing does not. Without a timeout it does, and
      a run without any sign of life ends after 300 seconds.
    * `isolate`: packages that every rank imports for itself, so that their globals are the
      rank's own.
    * `record`: a file for all that ranks do, which `phalanx report` shows. Without it the
      newest events of a run that fails are kept, for `phalanx report LAST`; False: never.
    * `record_limit`: mebibytes to which the file may grow; then it keeps the newest.

    Processes have no `seed`, virtual `clock` (nor its costs) or `completion`. `fn`, its
    arguments and results travel by pickle; lambdas, nested functions and those of a notebook by
    cloudpickle. Large tensors travel without a copy, and a rank that writes into one writes
    into its own copy, unless the program put the tensor into shared memory (`share_memory_`).

    >>> import torch.distributed as dist
    >>> run(lambda: dist.get_rank() * 10, ranks=3)
    [0, 10, 20]
    """
    __tracebackhide__ = True
    options = function_options(
        ranks=ranks,
        engine=engine,
        backend=backend,
        device=device,
        gpus=gpus,
        seed=seed,
        clock=clock,
        compute=compute,
        network=network,
        checks=checks,
        strict=strict,
        profile=profile,
        completion=completion,
        faults=faults,
        timeout=timeout,
        init=init,
        isolate=check_isolate(isolate),
        record=_file(record),
        record_limit=record_limit,
    )
    replay = options.call(fn, has_arguments=bool(args or kwargs))
    with World(**options.keywords(), replay=replay) as world:
        world._depth = 3  # warnings are about the caller's line
        world._recording.program = getattr(fn, "__qualname__", type(fn).__name__)
        return world.run(fn, *args, **kwargs)


def _file_of(fn: Callable[..., Any]) -> str:
    """Where the function is from, as the name of a world tells it."""
    with suppress(ValueError):  # an object that has every attribute
        fn = inspect.unwrap(fn)
    code = getattr(fn, "__code__", None)
    if not isinstance(code, CodeType):
        return ""
    return f" in {os.path.basename(code.co_filename)}"


def _file(given: Any) -> Any:
    return os.fspath(given) if isinstance(given, os.PathLike) else given
