"""What the checks of `checks/registry.py` may ask besides the journal, where ranks are
processes.

Used by the engines of real process groups; a table in `docs/checks.md` says which kinds are
found so. Must never be asked about a run that failed.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

from phalanx.checks import registry
from phalanx.checks.message_race import RaceWatch
from phalanx.checks.unmatched_message import find_leftovers
from phalanx.checks.unwaited_work import find_unwaited_work
from phalanx.engines.referee.remote_referee import RemoteReferee
from phalanx.engines.remote.object_lifetimes import (
    find_lifecycle_mismatches,
    find_lifetime_leaks,
    find_outsiders,
)
from phalanx.engines.remote.single_rank_watcher import give_trails, give_uses
from phalanx.journal.events import Noted
from phalanx.journal.reader import Journal
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

    def find_group_mismatches(self) -> Iterator[Verdict]:
        yield from self.referee.find_missing_groups()
        yield from find_lifecycle_mismatches(_notes(self.referee.read_journal(), "lives"))

    def find_leaks(self) -> Iterable[Verdict]:
        lives = _notes(self.referee.read_journal(), "lives")
        return find_lifetime_leaks(lives, self.profile)


def find_at_end(host: RemoteHost) -> list[Verdict]:
    """Of the kinds that are wanted; told once."""
    referee = host.referee
    journal = referee.read_journal()
    host.unmet = find_leftovers(referee.leftovers())
    groups = referee.records()
    for key, noted in _by_group(journal, "crossed-order").items():
        if key in groups:
            give_trails(groups[key], noted)
    for key, noted in _by_group(journal, "rank-space").items():
        if key in groups:
            give_uses(groups[key], noted)
    outsiders = find_outsiders(_notes(journal, "lives"))
    found = [*host.unmet, *outsiders, *registry.find_at_end(journal, host)]
    return [each for each in found if each.kind in host.kinds]


def find_reasons(host: RemoteHost) -> list[Verdict]:
    """What may be why the backend failed: where the `Work` of an operation is dropped, Gloo
    gives the operation up, and others wait for it in vain."""
    host.unmet = ()
    journal = host.referee.read_journal()
    return list(find_unwaited_work(journal, host)) if "unwaited-work" in host.kinds else []


def _notes(journal: Journal, kind: str) -> dict[int, Any]:
    """What ranks have noted for a check, by rank."""
    return {event.rank: event.what for event in journal.rare(Noted) if event.about == kind}


def _by_group(journal: Journal, kind: str) -> dict[str, list[Any]]:
    """What the members of each group have noted, by its key, in the order of ranks."""
    groups: dict[str, list[Any]] = {}
    for _, noted in sorted(_notes(journal, kind).items()):
        for key, each in noted.items():
            groups.setdefault(key, []).append(each)
    return groups
