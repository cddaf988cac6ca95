"""The programs of `fault_cases.py` on ranks that are threads, with a plan of faults instead of
real signals, on a virtual clock."""

from __future__ import annotations

import inspect
import time
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import torch.distributed as dist

import phalanx
from benchmarks.faults.fault_cases import RANKS, TIMEOUT, Rank, ones
from phalanx.backend import losses
from phalanx.core.strand import here
from phalanx.faults import Fault, kill, line, stop

SIDES = (0, 1), (2, 3)
OUTLIVES = 100_000.0
"""Seconds that a rank stays after its program: what one sees is not what another's end does."""


class ThreadRank:
    """The plan strikes at lines of `die` and `stop`."""

    def __init__(self, rank: int, *, serves: bool) -> None:
        self.rank = rank
        self.found: list[dict[str, Any]] = []
        self.serves = serves
        self.store: Any = None

    def join(self) -> None:
        limit = timedelta(seconds=TIMEOUT)
        where = {"init_method": "tcp://localhost:29500"} if self.serves else {}
        dist.init_process_group(
            "gloo", rank=self.rank, world_size=RANKS, timeout=limit, **where
        )
        self.store = dist.distributed_c10d._get_default_store()
        self.store.set_timeout(limit)
        dist.all_reduce(ones())

    def note(self, what: str, action: Callable[[], Any]) -> None:
        began = time.monotonic()
        try:
            value = action()
        except Exception as error:
            text = str(error).splitlines()[0]
            said = {"raised": type(error).__name__, "text": text}
        else:
            said = {"value": str(value)[:40]}
        self.found.append({"what": what, **said, "seconds": round(time.monotonic() - began, 2)})

    def die(self) -> None:
        time.sleep(0)

    def stop(self, seconds: float) -> None:
        time.sleep(0)

    def cut(self, seconds: float | None) -> None:
        session, baton = here.strand.local.session, here.strand.baton  # type: ignore[union-attr]
        losses.partition(session, *SIDES)
        if seconds is not None:
            until = baton.clock.now() + seconds
            baton.call_at(until, lambda: losses.heal(session, *SIDES))

    def connect(self, *, serves: bool = False) -> Any:
        raise NotImplementedError("a store of its own is no part of the cases on threads")


def see_on_threads(
    body: Callable[[Rank], None], serves: bool, *, stopped: float = 0.0
) -> dict[int, list[dict[str, Any]]]:
    """What each rank has noted. A rank that calls `stop` is stopped for so long."""
    found: dict[int, list[dict[str, Any]]] = {rank: [] for rank in range(RANKS)}

    def run() -> None:
        me = ThreadRank(int(_environ("RANK")), serves=serves)
        found[me.rank] = me.found
        body(me)
        time.sleep(OUTLIVES)

    phalanx.run(
        run, ranks=RANKS, clock="virtual", init=False, faults=_plan(stopped), checks="mismatch"
    )
    return found


def _plan(stopped: float) -> list[Fault]:
    plan: list[Fault] = [kill(rank=rank, at=_line_of("die")) for rank in range(RANKS)]
    if stopped:
        ranks = range(RANKS)
        plan += [stop(rank=rank, seconds=stopped, at=_line_of("stop")) for rank in ranks]
    return plan


def _line_of(name: str) -> Any:
    lines, first = inspect.getsourcelines(getattr(ThreadRank, name))
    return line(f"thread_ranks.py:{first + len(lines) - 1}")


def _environ(name: str) -> str:
    import os

    return os.environ[name]
