"""What became of the ranks that torch's launcher started, and which error tells it.

Used by `torchrun_launcher.py`. Each machine knows its own ranks; the one with the referee knows
what it found and who failed elsewhere. Pure decisions: must never talk to a rank.
"""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol

from phalanx import errors
from phalanx.engines import outcome
from phalanx.engines.outcome import Outcome, Outcomes
from phalanx.engines.remote.control_messages import Raised
from phalanx.engines.remote.failure_evidence import (
    Failure,
    death,
    is_lost_peer,
    precedence,
    restored,
)
from phalanx.engines.torchrun.launcher_messages import Found, Stopped
from phalanx.errors import RankDied, RankFailedError, VerdictError
from phalanx.model import ViewBlock, rank_list
from phalanx.system import monotonic

ELSEWHERE = "died on another machine"


class RefereeView(Protocol):
    """What of a referee is looked at here."""

    @property
    def error(self) -> VerdictError | None: ...
    @property
    def failures(self) -> Mapping[int, str]: ...
    @property
    def stopped(self) -> tuple[ViewBlock, ...]: ...


@dataclass
class Incarnation:
    """The ranks of this machine between two restarts, and what is known of them."""

    generation: int
    ranks: int
    meeting: str = ""
    members: dict[int, Any] = field(default_factory=dict)
    done: dict[int, bool] = field(default_factory=dict)
    ended: dict[int, Raised | Found | Stopped] = field(default_factory=dict)
    exits: dict[int, int] = field(default_factory=dict)
    stderr: dict[int, deque[str]] = field(default_factory=dict)
    gone: set[int] = field(default_factory=set)
    lost: dict[int, float] = field(default_factory=dict)
    asking: set[int] = field(default_factory=set)
    is_refereed: bool = False

    @property
    def known(self) -> tuple[int, int, str]:
        """What their hellos say."""
        return self.generation, self.ranks, self.meeting

    def take_leave(self, rank: int) -> None:
        """The rank's connection was closed."""
        self.gone.add(rank)
        if rank in self.members and rank not in self.done and rank not in self.ended:
            self.lost[rank] = monotonic()

    def living(self) -> list[Any]:
        """The members that have not left."""
        return [each for rank, each in self.members.items() if rank not in self.gone]

    @property
    def has_failed(self) -> bool:
        return bool(self.ended or self.lost)

    @property
    def initialised(self) -> bool:
        return any(self.done.values()) or bool(self.lost)

    @property
    def has_succeeded(self) -> bool:
        return bool(self.members) and set(self.done) == set(self.members)


def find_error(
    now: Incarnation, referee: RefereeView | None, replay: str | None, *, well: bool = False
) -> BaseException | None:
    """The one error to raise on this machine, or None if there is nothing to tell. If torch's
    launcher says that all is `well`, ranks that ended without a word left by `os._exit(0)`."""
    if now.has_succeeded or not (now.ended or now.lost or now.exits):
        return None
    verdict = _verdict_of(now, referee)
    if verdict is not None:
        return verdict
    if well and not now.ended:
        return None
    failed = _failed(now, referee) or _left(now)
    if not failed:
        return _stopped_elsewhere(now)
    first = failed[0][2]
    outcomes = Outcomes([Outcome(rank) for rank in range(now.ranks)])
    for _, rank, failure in failed:
        if is_lost_peer(failure) and not is_lost_peer(first):
            continue
        error, site = restored(failure)
        outcomes.ranks[rank].site = site
        outcomes.record(rank, error, stopping=False)
    outcomes.stopped_at = () if referee is None else referee.stopped
    return outcome.find_error(outcomes, replay)


def _verdict_of(now: Incarnation, referee: RefereeView | None) -> VerdictError | None:
    if referee is not None and referee.error is not None:
        return referee.error
    found = next((each for each in now.ended.values() if isinstance(each, Found)), None)
    if found is None:
        return None
    kind: Any = getattr(errors, found.name, None)
    if not (isinstance(kind, type) and issubclass(kind, VerdictError)):
        kind = type(found.name, (VerdictError,), {})
    error: VerdictError = kind(found.text)
    return error


def _failed(now: Incarnation, referee: RefereeView | None) -> list[tuple[float, int, Failure]]:
    """Who failed when. The referee heard of all machines' failures in order; clocks differ."""
    heard = {} if referee is None else referee.failures
    order = {rank: place - len(heard) for place, rank in enumerate(heard)}
    failed: list[tuple[float, int, Failure]] = []
    for rank, each in now.ended.items():
        if isinstance(each, Raised):
            failed.append((order.get(rank, each.when), rank, each))
    for rank, code in now.exits.items():
        if rank not in now.ended and rank not in now.done:
            when = order.get(rank, now.lost.get(rank, 0.0))
            failed.append((when, rank, _death(code, now.stderr.get(rank, ()))))
    for rank, text in heard.items():
        # Ranks that are stopped because of the first failure end without a word, too.
        if rank not in now.members and (text != "died" or rank == next(iter(heard))):
            failed.append((order[rank], rank, _elsewhere(rank, text)))
    causes = [each for each in failed if not _is_ended_by_launcher(each[2])]
    return sorted(causes or failed, key=precedence)


def _left(now: Incarnation) -> list[tuple[float, int, Failure]]:
    """Ranks that ended without a word, which torch's launcher takes for success. Where there
    are other machines, one of those may have ended them."""
    if len(now.members) < now.ranks:
        return []
    lost = [(when, rank) for rank, when in now.lost.items() if rank not in now.exits]
    return sorted((when, rank, _death(0, now.stderr.get(rank, ()))) for when, rank in lost)


def _is_ended_by_launcher(failure: object) -> bool:
    """torch's launcher ends the others when one has failed, and sometimes counts them."""
    return isinstance(failure, RankDied) and failure.signal == "SIGTERM"


def is_ended_from_outside(error: BaseException | None) -> bool:
    """Whether no rank failed by itself, as far as this machine knows."""
    if not isinstance(error, RankFailedError):
        return False
    return all(
        _is_ended_by_launcher(each) or getattr(each, "args", ()) == (ELSEWHERE,)
        for each in error.failures.values()
    )


def _death(code: int, stderr: Iterable[str]) -> RankDied:
    """As `evidence` tells it; its lines come from the bottom of the stack up, where we are."""
    status = -code if code < 0 else code << 8
    return death(status, [line for line in stderr if '"<frozen runpy>"' not in line])


def _elsewhere(rank: int, text: str) -> Failure:
    """What the referee knows of a failure on another machine."""
    if text == "died":
        died = RankDied(code=1, signal=None)
        died.args = (ELSEWHERE,)
        return died
    kind, _, message = text.partition(": ")
    return Raised(rank, kind, message, trace="", when=0.0)


def _stopped_elsewhere(now: Incarnation) -> BaseException:
    here = tuple(sorted(now.members))
    return RankFailedError(
        f"{rank_list(here)} of this machine ({os.uname().nodename}) ended because a rank of "
        "another machine failed; the report is there",
        {},
    )
