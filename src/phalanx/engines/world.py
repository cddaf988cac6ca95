"""`run` and `World`: a function on a number of ranks, once or several times.

The doors import these. What depends on the engine is behind `engine.Engine`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from types import TracebackType
from typing import Any

from phalanx.emulation.modules.isolation_rule import check_isolate
from phalanx.engines.engine import check_gpus, check_here, make_engine
from phalanx.engines.outcome import warn_of
from phalanx.errors import UsageError
from phalanx.model import Verdict
from phalanx.options import function_options


class World:
    """A number of ranks, held open for several runs.

    The process groups of one run are there in the next. A run that fails takes them with
    it, and the next run starts afresh.

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
        checks: str = "all",
        strict: bool = False,
        profile: str | None = None,
        completion: str | None = None,
        timeout: float | None = None,
        init: bool = True,
        isolate: Iterable[str] = (),
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
            checks=checks,
            strict=strict,
            profile=profile,
            completion=completion,
            timeout=timeout,
            init=init,
            isolate=check_isolate(isolate),
        )
        check_here(options)
        check_gpus(options)
        self.ranks = ranks
        self._open = True
        self._depth = 2
        self._engine = make_engine(options, replay=replay)

    def run(self, fn: Callable[..., Any], *args: Any, **kwargs: Any) -> list[Any]:
        """Call `fn(*args, **kwargs)` once per rank; its return values in rank order."""
        __tracebackhide__ = True  # pytest: show the user's frames, not ours
        if not callable(fn):
            raise UsageError(f"run takes a function to call on every rank, not {fn!r}")
        if not self._open:
            raise UsageError("this World is closed; make a new one")
        known = len(self._engine.findings)
        values = self._engine.call(fn, args, kwargs)
        warn_of(self._engine.findings[known:], stacklevel=self._depth)
        return values

    @property
    def findings(self) -> tuple[Verdict, ...]:
        """What checks found in runs that succeeded: messages nobody received and the like.
        Each has come as a `PhalanxWarning`, or, under `strict`, as the run's `HazardError`."""
        return tuple(self._engine.findings)

    @property
    def fingerprint(self) -> int:
        """A hash of the order in which the ranks ran last: equal for equal schedules."""
        return self._engine.fingerprint

    def close(self) -> None:
        if self._open:
            self._engine.close()
            self._open = False

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
    checks: str = "all",
    strict: bool = False,
    profile: str | None = None,
    completion: str | None = None,
    timeout: float | None = None,
    init: bool = True,
    isolate: Iterable[str] = (),
    **kwargs: Any,
) -> list[Any]:
    """Run `fn(*args, **kwargs)` on `ranks` ranks; the return values in rank order.

    With `init` the default process group exists when `fn` starts. `seed` 0 runs ranks in
    order, any other number is a random schedule of its own that it replays. `timeout` is
    how many seconds may pass without the baton changing hands, whatever the ranks do; without
    one, a run in which no rank even works is given up after 300 seconds. `clock="virtual"`
    lets sleeps and timeouts pass at once when every rank waits. What checks find in a run that
    succeeds is a `PhalanxWarning`; with `strict` it is a `HazardError`. `checks` chooses among
    the kinds of `phalanx.kinds`: "all", "none", "mismatch,leak", "all,-leak". With
    `profile="nccl"` the run is judged by NCCL's rules, and hazards are errors.
    `completion="latest"` lets asynchronous operations complete as late as is legal, "seeded" at
    moments that the seed draws (the default with a seed), "earliest" as soon as all ranks have
    come. Packages named in `isolate=("megatron",)` are imported by every rank for itself, so
    that their globals are the rank's own. Keyword arguments with these names are for `run`;
    wrap `fn` if it needs them itself.

    `device="cuda"` gives every rank a GPU, `cuda:{rank}`, which with `init` is current when
    `fn` starts. Where there are fewer, ranks share them: `cuda:3` then means one that is there,
    and tensors say which. `gpus=1` uses only the first. `device="cpu"` shows ranks no GPU.

    With `engine="processes"` each rank is a process on this machine and `backend` may be any
    that torch knows. `fn`, its arguments and results travel by pickle, and what no module
    holds (lambdas, nested functions, a notebook's) by cloudpickle. Large tensors arrive
    without a copy; what a rank writes into one is its own and nobody else sees it, unless
    the program had put it into shared memory (`share_memory_`). There is no seed and no
    virtual clock, and `timeout` is how many seconds may pass without a rank returning.

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
        checks=checks,
        strict=strict,
        profile=profile,
        completion=completion,
        timeout=timeout,
        init=init,
        isolate=check_isolate(isolate),
    )
    replay = options.call(fn, has_arguments=bool(args or kwargs))
    with World(**options.keywords(), replay=replay) as world:
        world._depth = 3  # warnings are about the caller's line
        return world.run(fn, *args, **kwargs)
