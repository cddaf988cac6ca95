"""What an engine is given: the options of the run, and what the door that makes it adds.

Used by all engines, and by the doors that make them. Holds also what follows from the settings
whatever the engine: which findings count, who is told, what a rank's environment is.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, fields
from functools import lru_cache
from typing import TYPE_CHECKING, Any, TypeVar

from phalanx.backend.devices.device_map import DeviceMap
from phalanx.backend.rank_errors import error_for
from phalanx.backend.session import RankContext
from phalanx.checks.silencing import split_silenced
from phalanx.core.choices import Choices
from phalanx.emulation.modules.isolation_rule import IsolationRule
from phalanx.emulation.state.environ import environ_of_process
from phalanx.engines.outcome import check_findings
from phalanx.engines.restarts.attempts import Attempts, OnRestart
from phalanx.engines.tests_of_ranks import TestOf
from phalanx.journal.writer import JournalWriter
from phalanx.model import Silenced, Tally, Verdict
from phalanx.options import Options

if TYPE_CHECKING:
    from phalanx.engines.look.look_door import RunWatch

IDLE_STALL = 300.0
"""Seconds without any sign of life after which a run without a timeout is given up."""

SettingsType = TypeVar("SettingsType", bound="Settings")


@dataclass(frozen=True, kw_only=True)
class Settings(Options):
    """The options, and what no user gives: whom the engine tells, and where its ranks live."""

    replay: str | None = None
    """What the user types to repeat the run; the last line of a report."""
    store: Any = None
    """The store in which ranks make the default group; None: one of its own."""
    environ: Mapping[str, str] | None = None
    """Variables that ranks see besides those of this process."""
    as_torchrun: bool = True
    """Whether ranks find in their environment what torchrun sets."""
    attempts: Attempts | None = None
    """What outlives the ranks, where they start again after a failure."""
    on_restart: OnRestart | None = None
    """Called before each restart."""
    choices: Choices | None = None
    """Who decides what may differ from run to run, in one that is explored."""
    late_numbers: bool = False
    """Whether ranks have no numbers before they make their default group."""
    modules: IsolationRule | None = None
    """Which packages every rank imports for itself; None: none."""
    test_of: TestOf | None = None
    """For reports, where the program may be pytest; None: they name no tests."""
    on_exit: Callable[[int], Any] | None = None
    """Called with the exit status of each rank's pytest, if that is the program: it ends its
    rank, and nobody else."""
    on_devices: Callable[[DeviceMap, int], Any] | None = None
    """Called with the GPUs that ranks may name, if not those that are there, and with how many
    ranks there are."""
    on_journal: Callable[[JournalWriter], Any] | None = None
    """Called when a run begins, with the journal that it writes."""
    on_watch: Callable[[RunWatch], Any] | None = None
    """Called when a run begins, with what can say at a tick what its ranks do."""
    on_tick: Callable[[], Any] | None = None
    """Called about twenty times a second while ranks run."""
    on_rank_end: Callable[[RankContext], Any] | None = None
    """Called in a rank whose body has ended well, before its groups and threads end."""
    on_findings: Callable[[Sequence[Verdict]], Any] | None = None
    on_tally: Callable[[Tally], Any] | None = None
    """Called at the end, whatever it was, with how much was checked."""

    @classmethod
    def of(cls: type[SettingsType], options: Options, **more: Any) -> SettingsType:
        """The settings of a run with these options; `more` are other fields, or stand in for
        options."""
        return cls(**{**{name: getattr(options, name) for name in _NAMES}, **more})


_NAMES = tuple(each.name for each in fields(Options))


def choose_findings(
    findings: Iterable[Verdict], settings: Settings
) -> tuple[list[Verdict], list[Silenced]]:
    """The findings that the user asked for, and those that comments in the program silence."""
    return split_silenced(each for each in findings if each.kind in settings.kinds)


def tell_findings(findings: Sequence[Verdict], settings: Settings) -> None:
    """Pass the findings on. Raises them all under `strict`; else raises the first that is an
    error by itself and gives the others to `on_findings`."""
    check_findings(findings, settings.replay, strict=settings.strict)
    worst = next((each for each in findings if each.severity == "error"), None)
    others = [each for each in findings if each is not worst]
    if others and settings.on_findings is not None:
        settings.on_findings(others)
    if worst is not None:
        error = error_for(worst, settings.replay)
        error.of_finished = True
        raise error


def rank_environ(base: Mapping[str, str], settings: Settings, rank: int) -> dict[str, str]:
    """The environment of a rank: `base`, and what torchrun would have set for it."""
    where = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "29500"}
    if not settings.as_torchrun:
        return {**where, **base}
    sizes = (settings.ranks, settings.node_size)
    restarts = (settings.attempts.number if settings.attempts else 0, settings.max_restarts)
    return {**where, **base, **_torchrun_variables(rank, *sizes, *restarts)}


def environ_later(settings: Settings, rank: int) -> dict[str, str]:
    """The same, made from the environment that the process has when it is asked for."""
    base = {**environ_of_process(), **(settings.environ or {})}
    return rank_environ(base, settings, rank)


@lru_cache(maxsize=1024)
def _torchrun_variables(
    rank: int, ranks: int, per_node: int, restarts: int, most_restarts: int
) -> dict[str, str]:
    """Shared by all callers, who must not change it."""
    local, node = rank % per_node, rank // per_node
    return {
        "RANK": str(rank),
        "WORLD_SIZE": str(ranks),
        "LOCAL_RANK": str(local),
        "LOCAL_WORLD_SIZE": str(per_node),
        "GROUP_RANK": str(node),
        "GROUP_WORLD_SIZE": str(-(-ranks // per_node)),
        "ROLE_RANK": str(rank),
        "ROLE_WORLD_SIZE": str(ranks),
        "ROLE_NAME": "default",
        "TORCHELASTIC_RUN_ID": "phalanx",
        "TORCHELASTIC_RESTART_COUNT": str(restarts),
        "TORCHELASTIC_MAX_RESTARTS": str(most_restarts),
    }
