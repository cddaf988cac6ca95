"""What a world was asked for, and what follows from it whatever the engine.

Used by all engines, and by the doors that make them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

from phalanx.backend.devices.device_map import DeviceMap
from phalanx.backend.rank_errors import error_for
from phalanx.checks.silencing import split_silenced
from phalanx.emulation.modules.isolation_rule import IsolationRule
from phalanx.engines.outcome import check_findings
from phalanx.kinds import ALL
from phalanx.model import Silenced, Tally, Verdict


@dataclass
class Settings:
    """What a world was asked for. Nobody changes it; that it could be keeps it cheap to make,
    which every test does."""

    ranks: int
    backend: str | None = None
    seed: int = 0
    clock: str = "real"
    checked: bool = True
    kinds: frozenset[str] = ALL
    """Which checks, by their names in `phalanx.kinds`; `checked` turns all of them off."""
    profile: str | None = None
    """The backend by whose rules hazards are errors."""
    completion: str | None = None
    """When asynchronous operations complete, one of `completion.MOMENTS`; None: the earliest
    moment without a seed, else by the seed."""
    strict: bool = False
    timeout: float | None = None
    limit: float | None = None
    init: bool = True
    store: Any = None
    """Where the default group is to meet; None: in a store of its own."""
    per_node: int | None = None
    device: str | None = None
    """What ranks see: "cuda": a GPU each, shared where there are too few; "auto": the same if
    there are any; "cpu": none; None: what there is."""
    gpus: int | None = None
    """How many GPUs ranks use, of those that are there."""
    on_devices: Callable[[DeviceMap, int], Any] | None = None
    """Is told what GPUs ranks may name, if not those that are there, and how many ranks."""
    replay: str | None = None
    on_tick: Callable[[], Any] | None = None
    on_findings: Callable[[Sequence[Verdict]], Any] | None = None
    on_tally: Callable[[Tally], Any] | None = None
    """Is told at the end, whatever it was, how much was checked."""
    environ: Mapping[str, str] | None = None
    as_torchrun: bool = True
    """Whether ranks find in their environment what torchrun sets."""
    late_numbers: bool = False
    """Whether ranks tell their numbers only when they make their default group."""
    modules: IsolationRule | None = None
    """Which packages every rank imports for itself; None: none."""


def choose_findings(
    findings: Iterable[Verdict], settings: Settings
) -> tuple[list[Verdict], list[Silenced]]:
    """Those that the user wants to hear of, and those that the program's own lines silence."""
    return split_silenced(each for each in findings if each.kind in settings.kinds)


def tell_findings(findings: Sequence[Verdict], settings: Settings) -> None:
    """Whoever made the world is told. Under `strict` it is an error, and so is a finding that
    is one by itself: the first of them is raised, the others are told."""
    check_findings(findings, settings.replay, strict=settings.strict)
    worst = next((each for each in findings if each.severity == "error"), None)
    others = [each for each in findings if each is not worst]
    if others and settings.on_findings is not None:
        settings.on_findings(others)
    if worst is not None:
        raise error_for(worst, settings.replay)


def rank_environ(base: Mapping[str, str], settings: Settings, rank: int) -> dict[str, str]:
    """What torchrun would have set for this rank."""
    where = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "29500"}
    if not settings.as_torchrun:
        return {**where, **base}
    per_node = settings.per_node or settings.ranks
    return {**where, **base, **_torchrun_variables(rank, settings.ranks, per_node)}


@lru_cache(maxsize=1024)
def _torchrun_variables(rank: int, ranks: int, per_node: int) -> dict[str, str]:
    """Not to be changed by whoever gets it: it is made once."""
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
        "TORCHELASTIC_RESTART_COUNT": "0",
        "TORCHELASTIC_MAX_RESTARTS": "0",
    }
