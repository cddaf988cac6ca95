"""A pool whose workers are ranks, with the methods of `torch.multiprocessing.Pool`.

For suites that keep one pool for all tests and let its workers form a group. Used by tests;
needs no pytest. Must never run a task anywhere but in its rank: task number i belongs to rank
i, and that is what makes a pool of ranks run alike each time.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from types import TracebackType
from typing import Any

from phalanx.errors import PhalanxError, RankDied, RankFailedError, UsageError

Task = tuple[Callable[..., Any], tuple[Any, ...], Mapping[str, Any]]


class Pool:
    """Workers that are ranks and stay, with their groups, from call to call.

    Task number i of a call runs on rank i; with more tasks than ranks, a rank runs every
    `processes`-th, in order. What a task raises is raised here, and the checks' errors are
    raised with their report. `options` are those of `phalanx.run`: with `engine="processes"`
    the workers are processes, and with `init=True` they have a default group from the start.
    Otherwise a task or the `initializer` makes it, as in a pool of processes.

    A failed call costs the ranks their groups. Before the next one, `initializer` runs again,
    and after it the calls that had made the default group.

    >>> import torch, torch.distributed as dist
    >>> def total(x):
    ...     t = torch.tensor(x)
    ...     dist.all_reduce(t)
    ...     return t.item()
    >>> with Pool(2, init=True) as pool:
    ...     pool.map(total, [1, 2])
    [3, 3]
    """

    def __init__(
        self,
        processes: int | None = None,
        initializer: Callable[..., Any] | None = None,
        initargs: Iterable[Any] = (),
        maxtasksperchild: int | None = None,
        *,
        init: bool = False,
        checks: str = "all,-leak",
        **options: Any,
    ) -> None:
        from phalanx.engines.world import World

        if initializer is not None and not callable(initializer):
            raise TypeError("initializer must be a callable")
        if maxtasksperchild is not None:
            raise UsageError(
                f"maxtasksperchild={maxtasksperchild!r}: the workers are ranks and stay; "
                "leave it out"
            )
        self._size = (os.cpu_count() or 1) if processes is None else processes
        self._world = World(ranks=self._size, init=init, checks=checks, **options)
        self._start = None if initializer is None else (initializer, tuple(initargs))
        self._groups: list[Sequence[Task]] = []
        """Calls that have made the default group, to be repeated when it is lost."""
        self._is_fresh = True
        self._is_open = True
        try:
            self._prepare()
        except BaseException:
            self._world.close()
            raise

    def apply(
        self,
        func: Callable[..., Any],
        args: Iterable[Any] = (),
        kwds: Mapping[str, Any] | None = None,
    ) -> Any:
        """Call `func(*args, **kwds)` on rank 0 and return its value."""
        __tracebackhide__ = True
        return self._run([(func, tuple(args), dict(kwds or {}))])[0]

    def map(
        self, func: Callable[[Any], Any], iterable: Iterable[Any], chunksize: int | None = None
    ) -> list[Any]:
        """Call `func` for each item, the first on rank 0, the second on rank 1, ..., and return
        the values in order. `chunksize` has no effect."""
        __tracebackhide__ = True
        return self._run([(func, (item,), {}) for item in iterable])

    def starmap(
        self,
        func: Callable[..., Any],
        iterable: Iterable[Iterable[Any]],
        chunksize: int | None = None,
    ) -> list[Any]:
        """As `map`; the items are tuples of arguments."""
        __tracebackhide__ = True
        return self._run([(func, tuple(item), {}) for item in iterable])

    def imap(
        self, func: Callable[[Any], Any], iterable: Iterable[Any], chunksize: int | None = None
    ) -> Iterator[Any]:
        """As `map`, one value after the other; all tasks run before the first one is there."""
        __tracebackhide__ = True
        return iter(self.map(func, iterable))

    def close(self) -> None:
        """No call follows. The ranks end."""
        if self._is_open:
            self._is_open = False
            self._world.close()

    def terminate(self) -> None:
        self.close()

    def join(self) -> None:
        if self._is_open:
            raise ValueError("Pool is still running")

    def __enter__(self) -> Pool:
        self._check_open()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.terminate()

    def _check_open(self) -> None:
        if not self._is_open:
            raise ValueError("Pool not running")

    def _prepare(self) -> None:
        """Of ranks that have just begun: what their predecessors had."""
        if not self._is_fresh:
            return
        if self._start is not None:
            fn, args = self._start
            self._call([(fn, args, {})] * self._size)
        for tasks in self._groups:
            self._call(tasks)
        self._is_fresh = False

    def _run(self, tasks: Sequence[Task]) -> list[Any]:
        __tracebackhide__ = True
        self._check_open()
        self._prepare()
        if not tasks:
            return []
        values, made_group = self._call(tasks)
        if made_group:
            self._groups.append(tasks)
        return values

    def _call(self, tasks: Sequence[Task]) -> tuple[list[Any], bool]:
        """The values by task, and whether ranks have made their default group meanwhile."""
        __tracebackhide__ = True
        try:
            ends = self._world.run(_work, list(tasks), self._size)
        except RankFailedError as error:
            self._is_fresh = True
            own = error.__cause__
            if own is None or isinstance(own, (PhalanxError, RankDied, SystemExit)):
                raise
            error.__cause__ = None  # or each would be the cause of the other
            raise own from error
        except BaseException:
            self._is_fresh = True
            raise
        values = {place: value for done, _ in ends for place, value in done.items()}
        return [values[place] for place in range(len(tasks))], any(made for _, made in ends)


def _work(tasks: Sequence[Task], size: int) -> tuple[dict[int, Any], bool]:
    """In a rank: its tasks, by number, and whether they have made the default group."""
    __tracebackhide__ = True
    import torch.distributed as dist

    had_group = dist.is_initialized()
    done = {}
    for place in range(_rank_here(), len(tasks), size):
        fn, args, kwds = tasks[place]
        done[place] = fn(*args, **kwds)
    return done, dist.is_initialized() and not had_group


def _rank_here() -> int:
    """As the engine numbers it: a task may change RANK."""
    from phalanx.core.strand import here

    if here.strand is not None:
        return here.strand.rank
    from phalanx.engines.processes.process_rank import own_number

    return own_number()
