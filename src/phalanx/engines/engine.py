"""What an engine must offer, and which one runs a function.

Used by `World` and by the pytest plugin. An engine is imported when it is chosen: a run on
threads loads nothing of the process engines, and the other way round.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol

import torch.distributed as dist

from phalanx.backend.devices.device_map import plan_devices, visible_to_processes
from phalanx.emulation.modules.isolation_rule import IsolationRule, check_isolate
from phalanx.engines.run_settings import Settings
from phalanx.errors import UsageError
from phalanx.journal.reader import Journal
from phalanx.model import Verdict
from phalanx.options import Options


class Engine(Protocol):
    """Runs functions on ranks, one after the other, until it is closed. Groups of a run that
    succeeds are there in the next."""

    findings: list[Verdict]
    """What checks found in the runs that succeeded."""

    journal: Journal | None
    """What happened in the last run; None before the first."""

    @property
    def fingerprint(self) -> int:
        """A hash of the order in which ranks ran last; 0 where nobody knows it."""

    def call(
        self, fn: Callable[..., Any], args: Sequence[Any], kwargs: Mapping[str, Any]
    ) -> list[Any]:
        """Call `fn` once per rank and return the values in rank order. Blocks until all ranks
        have ended. Raises `RankFailedError`, `VerdictError` or `HazardError`."""

    def close(self) -> None:
        """Let the ranks leave their groups, and put back what was changed for them."""


def make_engine(options: Options, **more: Any) -> Engine:
    """The engine for functions that the options name; `more` are fields of `Settings`."""
    if options.engine == "processes":
        from phalanx.engines.processes.processes_engine import ProcessesEngine, ProcessSettings

        return ProcessesEngine(ProcessSettings.of(options, **more))
    from phalanx.engines.threads.threads_engine import ThreadsEngine

    rule = IsolationRule(options.isolate) if options.isolate else None
    return ThreadsEngine(Settings.of(options, **more, modules=rule))


def check_here(options: Options) -> None:
    """Refuse what this Python or torch does not have: packages and backends."""
    check_isolate(options.isolate)
    if options.engine == "threads":
        return
    known = dist.Backend.backend_list
    given = options.backend or "gloo"
    names = {part.rpartition(":")[2].lower() for part in given.split(",")}
    if not names <= set(known):
        raise UsageError(
            f"backend={options.backend!r}: torch knows {', '.join(known)}; a backend of your "
            "own is registered by a module that this program imports (Backend.register_backend)"
        )


def check_gpus(options: Options) -> None:
    """Refuse GPUs that this machine does not have."""
    plan = plan_devices if options.engine == "threads" else visible_to_processes
    plan(options.device, options.gpus, per_node=options.node_size)
