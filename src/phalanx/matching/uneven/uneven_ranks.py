"""How the members of a group parted, for the report of a mismatch or a deadlock.

Used by the referee. Everything comes from the journal, so it is the same for ranks that are
threads, processes or started by torchrun.
"""

from __future__ import annotations

from collections.abc import Collection, Hashable, Mapping, Sequence
from dataclasses import replace
from itertools import islice

from phalanx.journal.events import GroupRecord
from phalanx.journal.reader import Journal
from phalanx.matching.hints import says_less
from phalanx.matching.uneven.call_counts import Counts, PlaceCount, Steps, find_counts
from phalanx.matching.uneven.call_sites import Sites, key_of
from phalanx.matching.uneven.left_loop import has_left_loop
from phalanx.matching.uneven.ways_past import are_arms_of_one_branch, find_ways_past
from phalanx.model import Deadlock, Group, LineCount, Mismatch, OpBlock, Site, Uneven

MOST_CALLS = 65_536
LEAST_CALLS = 64
"""How many calls are looked at: of all ranks together, and of each at least."""

MOST_PLACES = 3


def find_uneven(
    journal: Journal,
    record: GroupRecord,
    group: Group,
    now: Mapping[int, Site | None],
    *,
    disputed: int | None = None,
    behind: Collection[int] = (),
    sites: Sites | None = None,
) -> Uneven | None:
    """Which lines the members of a group came to unequally often, if the journal shows that.
    `now` says where ranks are, None for those that have ended; `disputed` is the call in which
    they disagree; `behind` are those that others wait for."""
    sites = Sites() if sites is None else sites
    steps = {
        rank: _steps(journal, rank, record, disputed, sites)
        for rank in record.ranks
        if rank < journal.ranks
    }
    if not journal.has_all_calls() and not all(steps.values()):
        return None
    found = find_counts(steps, disputed=disputed, behind=behind)
    if found is None:
        return None
    return _told(found, group, now, sites)


def with_uneven(verdict: Mismatch, journal: Journal, record: GroupRecord) -> Mismatch:
    """The mismatch, with how the ranks parted, and whether its calls were meant to meet."""
    sides = _sides(verdict.blocks)
    if sides is None:
        return verdict
    now = {rank: block.op.site for block in verdict.blocks for rank in block.ranks}
    sites = Sites()
    uneven = find_uneven(
        journal, record, verdict.group, now, disputed=verdict.number, sites=sites
    )
    apart = len(verdict.differs) > 1 and not are_arms_of_one_branch(
        *sides, sites.file_of(sides[0])
    )
    if uneven is None:
        return replace(verdict, unrelated=apart)
    hint = verdict.hint
    if hint is not None and says_less(hint, with_branch=bool(uneven.past)):
        hint = None
    verdict = replace(verdict, uneven=uneven, unrelated=True, hint=hint)
    return _with_parted(verdict, uneven, sites)


def _with_parted(verdict: Mismatch, uneven: Uneven, sites: Sites) -> Mismatch:
    """The mismatch, with those at fault that have left out steps of a loop that all share, if
    no majority decides and these are one of its sides."""
    if verdict.ranks or uneven.together is None or len(uneven.went) != 1 or not uneven.past:
        return verdict
    (parted, went), (most, *fewer) = uneven.went[0], uneven.places[0]
    odd = [block for block in verdict.blocks if block.op.site == went]
    if went is None or sorted(r for block in odd for r in block.ranks) != list(parted):
        return verdict
    if {r for each in fewer for r in each.ranks} != set(parted) or not is_shared(uneven):
        return verdict
    if not has_left_loop(most.site, sites.file_of(most.site), went):
        return verdict
    usual = [block for block in verdict.blocks if block.op.site != went]
    blocks = (*usual, *(replace(block, odd=True) for block in odd))
    return replace(verdict, ranks=parted, blocks=blocks)


def is_shared(uneven: Uneven | None) -> bool:
    """Whether all ranks have been where they parted: a branch that asks for the rank does not
    lead there."""
    return uneven is not None and all(each.times for each in uneven.places[0])


def with_uneven_wait(
    deadlock: Deadlock, journal: Journal, records: Mapping[Group, GroupRecord]
) -> Deadlock:
    """The deadlock, with how the members of a group parted: of that to which some have not
    come, or of one in whose collective ranks wait for others that have ended. Where ranks wait
    for each other in any other way, each may be ahead of the other."""
    absence = deadlock.absence
    if absence is not None and absence.instead is not None:
        now: dict[int, Site | None] = dict.fromkeys(absence.absent, absence.instead.site)
        groups = [absence.group]
    else:
        now = dict.fromkeys(deadlock.missed)
        groups = _groups_of_ended(deadlock)
    for group in groups if now else ():
        record = records.get(group)
        uneven = record and find_uneven(journal, record, group, now, behind=now.keys())
        if uneven:
            return replace(deadlock, uneven=uneven, hint=_other_hint(deadlock))
    return deadlock


def _groups_of_ended(deadlock: Deadlock) -> list[Group]:
    """Groups in whose collectives ranks wait for others that have ended."""
    waits = [b.view.wait for b in deadlock.blocks if b.view.status == "waiting"]
    gone = set(deadlock.missed)
    found = [
        wait.op.group
        for wait in waits
        if wait is not None and wait.op.number is not None and not gone.isdisjoint(wait.needs)
    ]
    return list(dict.fromkeys(found))


def _other_hint(deadlock: Deadlock) -> str | None:
    """The hint, unless it says that ranks have made fewer calls."""
    waits = [block.view.wait for block in deadlock.blocks]
    is_near = any(wait is not None and wait.near for wait in waits)
    return deadlock.hint if deadlock.cause != "finished-peer" or is_near else None


def _sides(blocks: Sequence[OpBlock]) -> tuple[Site, Site] | None:
    """The lines of the two sides, if they are two, each with a line of its own."""
    sites = list(dict.fromkeys(block.op.site for block in blocks))
    if len(sites) != 2 or sites[0] is None or sites[1] is None:
        return None
    if any(len({b.odd for b in blocks if b.op.site == site}) > 1 for site in sites):
        return None
    one, other = sites[0], sites[1]
    return None if key_of(one) == key_of(other) else (one, other)


def _steps(
    journal: Journal, rank: int, record: GroupRecord, disputed: int | None, sites: Sites
) -> Steps:
    most = max(LEAST_CALLS, MOST_CALLS // max(1, len(record.ranks)))
    return {
        call.number: sites.line_of(call.mark)
        for call in islice(reversed(journal.calls(rank)), most)
        if call.group is record
        and call.number is not None
        and (disputed is None or call.number <= disputed)
    }


def _told(
    found: Counts, group: Group, now: Mapping[int, Site | None], sites: Sites
) -> Uneven | None:
    places = [each for each in found.places if sites.keys() >= set(each.lines.values())]
    if not places:
        return None
    first = places[0]
    most = max(first.times.values())
    fewer = [rank for rank, times in first.times.items() if times < most]
    went: dict[Site | None, list[int]] = {}
    for rank in fewer:
        site = now.get(rank)
        if rank in now and (site is None or key_of(site) != first.lines[rank]):
            went.setdefault(site, []).append(rank)
    return Uneven(
        group,
        tuple(_line_counts(place, sites) for place in places[:MOST_PLACES]),
        found.since,
        first.together,
        tuple((tuple(sorted(ranks)), site) for site, ranks in went.items()),
        _ways_past(first, went, sites),
    )


def _ways_past(
    place: PlaceCount, went: Collection[Site | None], sites: Sites
) -> tuple[Site, ...]:
    """Ways past the line of those who came there most, for ranks that are at one place now."""
    if len(went) > 1:
        return ()
    line = sites[place.lines[max(place.times, key=lambda rank: place.times[rank])]]
    others = {
        sites[each].line for each in place.lines.values() if sites[each].file == line.file
    }
    return find_ways_past(line, sites.file_of(line), next(iter(went), None), others)


def _line_counts(place: PlaceCount, sites: Mapping[Hashable, Site]) -> tuple[LineCount, ...]:
    """Ranks with the same number together, those with the most first."""
    alike: dict[tuple[int, Hashable], list[int]] = {}
    for rank in sorted(place.times):
        alike.setdefault((place.times[rank], place.lines[rank]), []).append(rank)
    ordered = sorted(alike.items(), key=lambda each: (-each[0][0], each[1]))
    return tuple(
        LineCount(tuple(ranks), sites[line], times) for (times, line), ranks in ordered
    )
