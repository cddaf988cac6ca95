"""Start a script again on all ranks when one fails, as torchrun does with `--max-restarts`.

Used by the doors of scripts, on threads and on processes. Keeps what torchrun's agent keeps
from one attempt to the next: how many restarts are left, how many nodes, the store at the
address in the ranks' environment, and the time. All else is new. What ends a run from outside
(Ctrl-C, a wrong command, a stall) is no failure of a rank, and nothing starts again.
"""

from __future__ import annotations

import gc
from collections.abc import Callable, Collection
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, TypeVar

from phalanx.errors import RankFailedError, StallError, VerdictError
from phalanx.faults import Fault
from phalanx.model import RankFailure, Restart, Site, Verdict, ViewBlock
from phalanx.report.situations import site_of
from phalanx.report.text import headline

if TYPE_CHECKING:
    from phalanx.engines.run_settings import Settings

SettingsType = TypeVar("SettingsType", bound="Settings")

OnRestart = Callable[[Restart, BaseException], Any]


@dataclass
class Attempts:
    """What outlives an attempt. One object for all attempts of a run."""

    number: int = 0
    """Of the attempt that is going on, from 0: `TORCHELASTIC_RESTART_COUNT`."""
    store: Any = None
    """What `env://` leads to; the threads engine makes it in the first attempt."""
    clock: Any = None
    """The virtual clock, where ranks have one: time goes on."""
    stamps: list[Any] = field(default_factory=list)
    """In a run that is explored: what the ranks of former attempts have done."""
    happened: set[Fault] = field(default_factory=set)
    """The faults of the plan that have happened; none does twice."""


def run_attempts(settings: SettingsType, attempt: Callable[[SettingsType], bool]) -> bool:
    """Call `attempt` with the settings of one attempt after the other, until it succeeds;
    returns what it returns. Raises its error if no restart is left. `settings.on_restart` is
    called before each restart, with the error that was the reason."""
    kept = Attempts()
    settings = replace(settings, attempts=kept)
    while True:
        try:
            return attempt(settings)
        except (RankFailedError, VerdictError) as error:
            following = _following(settings, kept, error)
            if following is None:
                raise
            _tell(following, settings, error)
        settings = following
        # Frames of the attempt hold what a process would have taken with it: files, sockets.
        gc.collect()


def _following(
    settings: SettingsType, kept: Attempts, error: BaseException
) -> SettingsType | None:
    """The settings of the next attempt; None: the run has failed."""
    if kept.number >= settings.max_restarts or isinstance(error, StallError):
        return None
    if isinstance(error, VerdictError) and error.of_finished:
        return None  # all ranks had ended well
    ranks = settings.ranks
    lost = lost_nodes(settings, failed=getattr(error, "failures", ()), kept=kept)
    if lost:
        nodes = -(-ranks // settings.node_size) - len(lost)
        if nodes < (settings.fewest_nodes or 1):
            return None
        ranks = nodes * settings.node_size
    kept.number += 1
    rule = None if settings.modules is None else settings.modules.anew()
    left = tuple(each for each in settings.faults if each not in kept.happened)
    faults = tuple(each for each in left if all(rank < ranks for rank in each.ranks))
    return replace(settings, ranks=ranks, modules=rule, faults=faults)


def lost_nodes(settings: Settings, *, failed: Collection[int], kept: Attempts) -> set[int]:
    """The nodes that are gone for good: where there may be fewer, those with a rank that has
    failed and of which the plan kills every rank."""
    if settings.fewest_nodes is None:
        return set()
    size = settings.node_size
    killed = {rank for each in settings.faults if each.kind == "kill" for rank in each.ranks}
    nodes = {rank // size for rank in failed if rank in killed}
    return {node for node in nodes if killed.issuperset(range(node * size, (node + 1) * size))}


def _tell(following: Settings, settings: Settings, error: BaseException) -> None:
    if settings.on_restart is None:
        return
    verdict = getattr(error, "verdict", None)
    restart = Restart(
        number=_number(following),
        most=settings.max_restarts,
        why=headline(verdict) if isinstance(verdict, Verdict) else str(error),
        site=_site_of(verdict),
        ranks=following.ranks,
        fewer=following.ranks < settings.ranks,
    )
    settings.on_restart(restart, error)


def _number(settings: Settings) -> int:
    assert settings.attempts is not None
    return settings.attempts.number


def _site_of(verdict: Any) -> Site | None:
    """The line at which the first rank failed, or that the report begins with."""
    if isinstance(verdict, RankFailure):
        first = verdict.raised[0][0][0] if verdict.raised else -1
        return verdict.sites.get(first)
    for block in getattr(verdict, "blocks", ())[:1]:
        return site_of(block.view) if isinstance(block, ViewBlock) else block.op.site
    return None
