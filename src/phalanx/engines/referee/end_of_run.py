"""What can be said once all ranks have returned: from the journal, with the ranks' notes.

Used by the engines of real process groups. It asks the same functions of `checks/` as the
threads engine does; a table in `docs/checks.md` says which kinds are found so. Must never be
asked about a run that failed.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

from phalanx.checks import registry
from phalanx.checks.message_race import RaceWatch
from phalanx.checks.unmatched_message import find_leftovers
from phalanx.checks.unwaited_work import Unwaited, find_unwaited
from phalanx.engines.remote.object_lifetimes import judge_lives
from phalanx.engines.remote.remote_referee import RemoteReferee
from phalanx.engines.remote.single_rank_watcher import judge_trails, judge_uses
from phalanx.journal.events import Noted
from phalanx.journal.reader import Journal
from phalanx.model import Finding, Unmet, Verdict


@dataclass
class RemoteHost:
    """What checks may ask besides the journal, where ranks are processes."""

    kinds: frozenset[str]
    profile: str | None = None
    told: set[Verdict] = field(default_factory=set)
    races: RaceWatch | None = None

    def machine_of(self, rank: int) -> int:
        return 0

    def must_share_gpus(self) -> bool:
        """It is not known here which GPUs ranks use."""
        return True


def find_at_end(referee: RemoteReferee, host: RemoteHost) -> list[Verdict]:
    """Of the kinds that are wanted; told once."""
    kinds, journal = host.kinds, referee.journal.reader()
    open_ones = find_leftovers(referee.leftovers())
    found: list[Verdict] = [*open_ones]
    if "mismatch" in kinds:
        found += referee.find_missing_groups()
    found += judge_lives(_notes(journal, "lives"), host.profile, kinds)
    if "unwaited-work" in kinds:
        found += _find_unwaited(journal, open_ones)
    if "crossed-order" in kinds:
        found += _find_crossed(journal)
    if "rank-space" in kinds:
        found += _find_rank_spaces(journal)
    found += registry.find_at_end(journal, host)
    return [each for each in found if each.kind in kinds]


def find_reasons(referee: RemoteReferee) -> list[Verdict]:
    """What may be why the backend failed: where the `Work` of an operation is dropped, Gloo
    gives the operation up, and others wait for it in vain."""
    if "unwaited-work" not in referee.kinds:
        return []
    return list(_find_unwaited(referee.journal.reader(), ()))


def _notes(journal: Journal, kind: str) -> dict[int, Any]:
    """What ranks have noted for a check, by rank."""
    return {event.rank: event.what for event in journal.rare(Noted) if event.about == kind}


def _find_unwaited(journal: Journal, open_ones: Iterable[Unmet]) -> tuple[Finding, ...]:
    """Without those that never met their counterpart, which are told already."""
    known = {
        (rank, block.op.name, block.op.site)
        for each in open_ones
        for block in each.blocks
        for rank in block.ranks
    }
    left: list[Unwaited] = [
        each
        for _, noted in sorted(_notes(journal, "unwaited-work").items())
        for each in noted
        if (each.op.rank, each.op.name, each.op.site) not in known
    ]
    return find_unwaited(left)


def _find_crossed(journal: Journal) -> list[Verdict]:
    return [
        found for noted in _by_group(journal, "crossed-order") for found in judge_trails(noted)
    ]


def _find_rank_spaces(journal: Journal) -> list[Verdict]:
    return [found for noted in _by_group(journal, "rank-space") for found in judge_uses(noted)]


def _by_group(journal: Journal, kind: str) -> list[list[Any]]:
    """What the members of each group have noted, in the order of ranks."""
    groups: dict[str, list[Any]] = {}
    for _, noted in sorted(_notes(journal, kind).items()):
        for key, each in noted.items():
            groups.setdefault(key, []).append(each)
    return list(groups.values())
