"""What can be said once all ranks have returned: from the referee's records and the ranks'
notes.

Used by the engines of real process groups. It asks the same functions of `checks/` as the
threads engine does; a table in `docs/checks.md` says which kinds are found so. Must never be
asked about a run that failed.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

from phalanx.checks.nccl_hazards import (
    Hazard,
    Issued,
    Trace,
    as_findings,
    find_first_batches,
    find_refused_calls,
)
from phalanx.checks.nccl_messages import find_message_hazards, traffic_of
from phalanx.checks.nccl_order import find_orders
from phalanx.checks.unmatched_message import find_leftovers
from phalanx.checks.unwaited_work import Unwaited, find_unwaited
from phalanx.engines.referee.call_records import Entry, Records
from phalanx.engines.referee.remote_races import find_message_races
from phalanx.engines.remote.announced_calls import GroupMailbox
from phalanx.engines.remote.object_lifetimes import judge_lives
from phalanx.engines.remote.remote_referee import RemoteReferee
from phalanx.engines.remote.single_rank_watcher import judge_trails, judge_uses
from phalanx.model import Finding, Group, Op, Severity, Unmet, Verdict

NCCL = "nccl"


def find_at_end(referee: RemoteReferee, profile: str | None = None) -> list[Verdict]:
    """Of the kinds that are wanted; told once."""
    kinds, records = referee.kinds, referee.records
    open_ones = find_leftovers(referee.leftovers())
    found: list[Verdict] = [*open_ones]
    if "mismatch" in kinds:
        found += referee.find_missing_groups()
    found += judge_lives(records.notes.get("lives", {}), profile, kinds)
    if "unwaited-work" in kinds:
        found += _find_unwaited(records, open_ones)
    if "crossed-order" in kinds:
        found += _find_crossed(records)
    if "rank-space" in kinds:
        found += _find_rank_spaces(records)
    looking_back: list[Verdict] = []
    if "message-race" in kinds:
        looking_back += find_message_races(records)
    if "backend-hazard" in kinds:
        looking_back += _find_hazards(records, profile)
    fresh = [each for each in looking_back if each not in records.told]
    records.told.update(fresh)
    found += fresh
    return [each for each in found if each.kind in kinds]


def find_reasons(referee: RemoteReferee) -> list[Verdict]:
    """What may be why the backend failed: where the `Work` of an operation is dropped, Gloo
    gives the operation up, and others wait for it in vain."""
    return list(_find_unwaited(referee.records, ())) if "unwaited-work" in referee.kinds else []


def _find_unwaited(records: Records, open_ones: Iterable[Unmet]) -> tuple[Finding, ...]:
    """Without those that never met their counterpart, which are told already."""
    known = {
        (rank, block.op.name, block.op.site)
        for each in open_ones
        for block in each.blocks
        for rank in block.ranks
    }
    left: list[Unwaited] = [
        each
        for _, noted in sorted(records.notes.get("unwaited-work", {}).items())
        for each in noted
        if (each.op.rank, each.op.name, each.op.site) not in known
    ]
    return find_unwaited(left)


def _find_crossed(records: Records) -> list[Verdict]:
    return [
        found for noted in _by_group(records, "crossed-order") for found in judge_trails(noted)
    ]


def _find_rank_spaces(records: Records) -> list[Verdict]:
    return [found for noted in _by_group(records, "rank-space") for found in judge_uses(noted)]


def _by_group(records: Records, kind: str) -> list[list[Any]]:
    """What the members of each group have noted, in the order of ranks."""
    groups: dict[str, list[Any]] = {}
    for _, noted in sorted(records.notes.get(kind, {}).items()):
        for key, each in noted.items():
            groups.setdefault(key, []).append(each)
    return list(groups.values())


# -- what NCCL may hang on -----------------------------------------------------------------


def _find_hazards(records: Records, profile: str | None) -> list[Finding]:
    if records.threaded or profile not in (None, NCCL):
        return []  # of which thread a call was is not known
    chosen = _chosen(records, profile)
    if not chosen:
        return []
    severity: Severity = "error" if profile else "warning"
    trace = _trace_of(records, chosen)
    return as_findings(_hazards_in(trace), _describe, severity)


def _hazards_in(trace: Trace) -> Iterator[Hazard]:
    traffic = traffic_of(trace)
    yield from find_orders(trace, traffic)
    yield from find_message_hazards(trace, traffic)
    yield from find_first_batches(trace)
    yield from find_refused_calls(trace)


def _chosen(records: Records, profile: str | None) -> dict[GroupMailbox, int]:
    """The groups that are NCCL's, or stand for such."""
    asked = {entry.place: None for journal in records.journals for entry in journal}
    by_name = [place for place in asked if NCCL in place.form.backend]
    if profile != NCCL:
        by_name = [place for place in by_name if "gloo" not in place.form.backend]
    chosen = by_name if by_name or profile != NCCL else list(asked)
    return {place: index for index, place in enumerate(chosen)}


def _trace_of(records: Records, chosen: dict[GroupMailbox, int]) -> Trace:
    return Trace(
        groups=tuple(Group(place.name, place.ranks) for place in chosen),
        ranks=tuple(tuple(_issued(journal, chosen)) for journal in records.journals),
        whole=records.is_whole,
        eager=frozenset(index for place, index in chosen.items() if place.form.eager),
    )


def _issued(journal: Iterable[Entry], chosen: dict[GroupMailbox, int]) -> Iterator[Issued]:
    """Messages of a batch follow each other; two batches with nothing between them are taken
    for one, which hides a hazard at most."""
    batch = 0
    for entry in journal:
        form, ranks = entry.form, entry.place.ranks
        batch += not form.batched
        if entry.place in chosen:
            yield Issued(
                ranks[entry.member],
                0,
                chosen[entry.place],
                form.name,
                entry.number,
                None if form.peer is None else ranks[form.peer],
                form.tag,
                batch if form.batched else None,
                form.site,
                entry,
            )


def _describe(call: Issued) -> Op:
    entry: Entry = call.step
    return entry.place.op_of(entry.form, entry.member, entry.number, bare=True)
