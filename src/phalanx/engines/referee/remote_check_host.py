"""What the checks of `checks/registry.py` may ask besides the journal, where ranks are
processes.

Used by the engines of real process groups; a table in `docs/checks.md` says which kinds are
found so. Must never be asked about a run that failed.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from phalanx.checks import registry
from phalanx.checks.message_race import RaceWatch
from phalanx.checks.unmatched_message import find_leftovers
from phalanx.checks.unwaited_work import find_unwaited_work
from phalanx.engines.referee.remote_referee import RemoteReferee
from phalanx.model import Unmet, Verdict


@dataclass
class RemoteHost:
    """One world, from call to call."""

    referee: RemoteReferee
    profile: str | None = None
    told: set[Verdict] = field(default_factory=set)
    races: RaceWatch | None = None
    unmet: Sequence[Unmet] = ()

    @property
    def kinds(self) -> frozenset[str]:
        return self.referee.kinds

    def machine_of(self, rank: int) -> int:
        return 0

    def must_share_gpus(self) -> bool:
        """It is not known here which GPUs ranks use."""
        return True


def find_at_end(host: RemoteHost) -> list[Verdict]:
    """Of the kinds that are wanted; told once."""
    referee = host.referee
    journal = referee.read_journal()
    host.unmet = find_leftovers(referee.leftovers())
    missing = referee.find_missing_groups()
    reshaped = referee.take_reshaped()
    found = [*host.unmet, *missing, *reshaped, *registry.find_at_end(journal, host)]
    wanted = [each for each in found if each.kind in host.kinds]
    for each in wanted:
        referee.journal.found(each)
    return wanted


def find_reasons(host: RemoteHost) -> list[Verdict]:
    """What may be why the backend failed: where the `Work` of an operation is dropped, Gloo
    gives the operation up, and others wait for it in vain."""
    host.unmet = ()
    journal = host.referee.read_journal()
    return list(find_unwaited_work(journal, host)) if "unwaited-work" in host.kinds else []
