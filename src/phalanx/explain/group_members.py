"""Which calls are on one group, and who is in it, as far as dumps tell.

Used by `dump_replay.py`. Gloo's dumps do not tell the members of a group: whoever used it is
one, others may be. What rests on a guess is told as such: `without_guesses` takes it out of
verdicts.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, TypeVar

from phalanx.explain.rank_dump import DumpedCall, DumpedGroup, RankDump
from phalanx.model import Group, Mismatch, Wait

_T = TypeVar("_T")


@dataclass
class Memberships:
    """`members` are those that a group is taken to have, by its key. `users` has the groups
    whose members nobody tells, with those that surely are. `is_guess` says that ranks were
    taken for members that have never used a group."""

    members: dict[str, tuple[int, ...]] = field(default_factory=dict)
    users: dict[str, frozenset[int]] = field(default_factory=dict)
    is_guess: bool = False


def find_members(dumps: Mapping[int, RankDump], world: int) -> Memberships:
    """As a dump tells them; all ranks for the default group; else those that used it, or all
    ranks where these alone cannot be all."""
    found = Memberships()
    used: dict[str, set[int]] = {}
    for rank, dump in dumps.items():
        for key, group in dump.groups.items():
            if group.ranks is not None:
                found.members.setdefault(key, group.ranks)
            elif group.name == "0":
                found.members.setdefault(key, tuple(range(world)))
        for call in dump.calls:
            used.setdefault(call.group, set()).add(rank)
    for key, ranks in used.items():
        if key in found.members:
            continue
        more = _is_missing_members(key, [dumps[rank] for rank in ranks])
        found.members[key] = tuple(range(world)) if more else tuple(sorted(ranks))
        # Who waits in a group is not alone there, so of two ranks both are in it.
        if len(ranks) < world and not (more and world == 2):
            found.users[key] = frozenset(ranks)
            found.is_guess = found.is_guess or more
    return found


def _is_missing_members(key: str, users: Sequence[RankDump]) -> bool:
    """Whether a call of a group is not complete though all who use the group have entered it:
    then others belong to it, too."""
    last = [
        max((call.number or 0 for call in dump.calls if call.group == key), default=0)
        for dump in users
    ]
    return any(
        call.done is False and call.number is not None and call.number <= min(last)
        for dump in users
        for call in dump.calls
        if call.group == key
    )


# -- groups that are made again -------------------------------------------------------------


def part_restarts(dumps: Mapping[int, RankDump]) -> tuple[dict[int, RankDump], frozenset[str]]:
    """The dumps, in which a group that was made again under the same name is another one: its
    numbers begin again, as those of the default group after `destroy_process_group`. The keys
    are of groups of which nobody can say how often that happened, because rings begin late:
    their numbers mean nothing."""
    again = {call.group for dump in dumps.values() for call, round in _rounds(dump) if round}
    late = any(dump.begins_late for dump in dumps.values())
    if late or not again:
        return dict(dumps), frozenset(again)
    return {rank: _parted(dump) for rank, dump in dumps.items()}, frozenset()


def _parted(dump: RankDump) -> RankDump:
    groups, calls = dict(dump.groups), []
    for call, round in _rounds(dump):
        if round:
            key = f"{call.group} again {round}"
            before = dump.groups.get(call.group, DumpedGroup(key, call.group, None))
            groups[key] = replace(before, key=key)
            call = replace(call, group=key)
        calls.append(call)
    return replace(dump, groups=groups, calls=calls)


def _rounds(dump: RankDump) -> list[tuple[DumpedCall, int]]:
    """Each call with how often its group had been made before."""
    last: dict[str, int] = {}
    rounds: dict[str, int] = {}
    found = []
    for call in dump.calls:
        if call.number is not None:
            if call.number == 0 and last.get(call.group, 0) > 0:
                rounds[call.group] = rounds.get(call.group, 0) + 1
            last[call.group] = call.number
        found.append((call, rounds.get(call.group, 0)))
    return found


# -- what may be said -----------------------------------------------------------------------


def without_guesses(value: _T, users: Mapping[str, frozenset[int]]) -> _T:
    """A verdict or a view, in which the groups of these names have no members, and nobody waits
    for a rank that is not known to be one."""
    return _told(value, users) if users else value


def _told(value: Any, users: Mapping[str, frozenset[int]]) -> Any:
    if isinstance(value, Group):
        return Group(value.name, ()) if value.name in users else value
    if isinstance(value, tuple):
        return tuple(_told(each, users) for each in value)
    if isinstance(value, dict):
        return {key: _told(each, users) for key, each in value.items()}
    if not dataclasses.is_dataclass(value) or isinstance(value, type):
        return value
    if isinstance(value, Wait) and value.op.group.name in users:
        known = users[value.op.group.name]
        value = replace(value, needs=tuple(r for r in value.needs if r in known))
    if isinstance(value, Mismatch) and value.group.name in users:
        known = users[value.group.name]
        value = replace(value, missing=tuple(r for r in value.missing if r in known))
    fields = {each.name: getattr(value, each.name) for each in dataclasses.fields(value)}
    return replace(value, **{name: _told(each, users) for name, each in fields.items()})
