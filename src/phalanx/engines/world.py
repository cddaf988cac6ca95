"""`run` and `World`: the same thing, once and held open. Checks what it is given.

The doors import these. Everything that depends on the engine is behind `ThreadsEngine` and
`ProcessesEngine`.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable
from types import TracebackType
from typing import Any

import torch.distributed as dist

from phalanx.backend.devices.device_map import check_devices, plan_devices, visible_to_processes
from phalanx.emulation.modules.crossing import IsolatedCall, opened
from phalanx.emulation.modules.isolation_rule import IsolationRule, check_isolate
from phalanx.engines.outcome import warn_of
from phalanx.engines.processes.processes_engine import (
    MOST_PROCESSES,
    ProcessesEngine,
    ProcessSettings,
)
from phalanx.engines.run_settings import Settings
from phalanx.engines.threads.threads_engine import ThreadsEngine
from phalanx.errors import UsageError
from phalanx.kinds import MOMENTS, check_profile, is_on, parse_checks
from phalanx.model import Verdict

ENGINES = ("threads", "processes")
BACKENDS = ("gloo", "nccl", "cpu:gloo,cuda:nccl")
CLOCKS = ("real", "virtual")
MOST_RANKS = 4096


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
        named = check_isolate(isolate)
        check_options(
            ranks=ranks,
            engine=engine,
            backend=backend,
            clock=clock,
            checks=checks,
            seed=seed,
            timeout=timeout,
            profile=profile,
            completion=completion,
        )
        check_devices(device, gpus)
        plan = visible_to_processes if engine == "processes" else plan_devices
        plan(device, gpus, per_node=ranks)  # what is not there is refused here
        self.ranks = ranks
        self._open = True
        self._depth = 2
        options: dict[str, Any] = {
            "ranks": ranks,
            "backend": backend,
            "device": device,
            "gpus": gpus,
            "seed": seed,
            "clock": clock,
            "checked": is_on(checks),
            "kinds": parse_checks(checks),
            "profile": profile,
            "completion": completion,
            "strict": strict,
            "timeout": timeout,
            "init": init,
            "replay": replay,
        }
        self._engine: ThreadsEngine | ProcessesEngine
        if engine == "processes":
            self._engine = ProcessesEngine(ProcessSettings(**options))
        else:
            self._rule = IsolationRule(named) if named else None
            self._engine = ThreadsEngine(Settings(**options, modules=self._rule))

    def run(self, fn: Callable[..., Any], *args: Any, **kwargs: Any) -> list[Any]:
        """Call `fn(*args, **kwargs)` once per rank; its return values in rank order."""
        __tracebackhide__ = True  # pytest: show the user's frames, not ours
        if not callable(fn):
            raise UsageError(f"run takes a function to call on every rank, not {fn!r}")
        if not self._open:
            raise UsageError("this World is closed; make a new one")
        known = len(self._engine.findings)
        if isinstance(self._engine, ProcessesEngine):
            values = self._engine.call(fn, args, kwargs)
        elif self._rule is not None:
            crossing = IsolatedCall(self._rule, fn, args, kwargs)
            with crossing.errors_opened():
                values = opened(self._engine.run(lambda context: crossing.call()))
        else:
            values = self._engine.run(lambda context: fn(*args, **kwargs))
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
    options: dict[str, Any] = {
        "ranks": ranks,
        "engine": engine,
        "backend": backend,
        "device": device,
        "gpus": gpus,
        "seed": seed,
        "clock": clock,
        "checks": checks,
        "strict": strict,
        "profile": profile,
        "completion": completion,
        "timeout": timeout,
        "init": init,
        "isolate": isolate,
    }
    with World(**options, replay=_replay(fn, bool(args or kwargs), options)) as world:
        world._depth = 3  # warnings are about the caller's line
        return world.run(fn, *args, **kwargs)


def _replay(fn: Any, has_arguments: bool, options: dict[str, Any]) -> str:
    """The call that repeats the run; arguments of `fn` may be large and stay out."""
    usual = inspect.signature(run).parameters
    given = [getattr(fn, "__name__", "fn"), *(["..."] if has_arguments else [])]
    given += [f"{k}={v!r}" for k, v in options.items() if v != usual[k].default]
    return f"phalanx.run({', '.join(given)})"


def check_options(
    *,
    ranks: Any,
    engine: Any,
    clock: Any,
    checks: Any,
    seed: Any,
    timeout: Any,
    backend: Any = None,
    profile: Any = None,
    completion: Any = None,
) -> None:
    """Refuse what cannot work, with what was given and what is allowed."""
    if isinstance(ranks, bool) or not isinstance(ranks, int) or not 1 <= ranks <= MOST_RANKS:
        raise UsageError(
            f"ranks={ranks!r}: give the number of ranks as a whole number from 1 to "
            f"{MOST_RANKS}, e.g. ranks=4"
        )
    if engine == "torchrun":
        raise UsageError(
            f"engine={engine!r}: torch's launcher starts whole scripts, so it is for the "
            "command line: phalanx run --engine torchrun -n 4 train.py; for a function, use "
            "engine='processes'"
        )
    _check_choice("engine", engine, ENGINES)
    _check_choice("clock", clock, CLOCKS)
    parse_checks(checks)
    check_profile(profile)
    if completion is not None:
        _check_choice("completion", completion, MOMENTS)
    if engine == "processes":
        _check_process_options(
            ranks, seed=seed, clock=clock, backend=backend, completion=completion
        )
    elif backend is not None:
        _check_choice("backend", backend, BACKENDS)
    if isinstance(seed, bool) or not isinstance(seed, int) or seed < 0:
        raise UsageError(f"seed={seed!r}: a seed is a whole number from 0 on (0: in order)")
    if timeout is not None and not (isinstance(timeout, (int, float)) and timeout > 0):
        raise UsageError(f"timeout={timeout!r}: give seconds above 0, or None for no limit")


def _check_process_options(
    ranks: int, *, seed: Any, clock: Any, backend: Any, completion: Any
) -> None:
    """What the other engine has and real processes cannot have."""
    if ranks > MOST_PROCESSES:
        raise UsageError(
            f"ranks={ranks!r}: engine='processes' takes up to {MOST_PROCESSES}; "
            "use engine='threads' for more"
        )
    if seed:
        raise UsageError(
            f"seed={seed!r}: the system decides which process runs when, so engine='processes' "
            "has no seed; leave it out, or use engine='threads'"
        )
    if clock != "real":
        raise UsageError(
            f"clock={clock!r}: real processes have the real clock; leave it out, or use "
            "engine='threads'"
        )
    if completion is not None:
        raise UsageError(
            f"completion={completion!r}: the real backend decides when an operation completes; "
            "leave it out, or use engine='threads'"
        )
    if backend is not None and not isinstance(backend, str):
        raise UsageError(f"backend={backend!r}: give a backend's name, e.g. 'gloo', or None")
    known = dist.Backend.backend_list
    names = [part.rpartition(":")[2].lower() for part in (backend or "gloo").split(",")]
    if not set(names) <= set(known):
        raise UsageError(
            f"backend={backend!r}: torch knows {', '.join(known)}; a backend of your own is "
            "registered by a module that this program imports (Backend.register_backend)"
        )


def _check_choice(name: str, given: Any, allowed: tuple[str, ...]) -> None:
    if given not in allowed:
        listed = ", ".join(map(repr, allowed))
        raise UsageError(f"{name}={given!r}: choose one of {listed}")
