"""Note which groups each rank of the threads engine makes, splits and destroys, and raise where
ranks disagree.

`torch_patches.py` puts `noting` around torch's maker of groups, which every rank calls, members
and others; `Endpoint.shutdown` calls `note_destroyed`. What disagrees is decided in
`matching/groups.py` and `checks/group_lifecycle.py`. A rank whose `new_group` does not fit
waits until all others have come to theirs, so that all can be asked who is odd; or until they
cannot come any more.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, NamedTuple

from phalanx import callsite
from phalanx.backend.session import RankContext, Session, context_here
from phalanx.callsite import Mark, resolve
from phalanx.checks.group_lifecycle import (
    Destroyed,
    find_destroy_mismatch,
    find_kept_group,
    find_split_mismatch,
)
from phalanx.core.strand import RUNNING, Strand, here
from phalanx.matching.groups import Creation, GroupCreations
from phalanx.matching.mailboxes import GroupMailbox
from phalanx.model import Group, Op, Verdict, Wait

KIND = "mismatch"


class _Destroyed(NamedTuple):
    """A group, the place of the default group at that time, where it was destroyed, and how
    many collectives of the default group the rank had called and groups made by then."""

    met: GroupMailbox
    place: Any
    mark: Mark | None
    calls: int
    made: int


class CreationWait:
    """Why a rank is parked: its `new_group` does not fit, and others are yet to come."""

    __slots__ = ("call", "creations", "strand")

    def __init__(self, creations: GroupCreations, call: Creation, strand: Strand) -> None:
        self.creations = creations
        self.call = call
        self.strand = strand

    def end(self) -> None:
        """The rank waits no longer."""
        if self in self.creations.waiting:
            self.creations.waiting.remove(self)

    def missing(self) -> tuple[int, ...]:
        return self.creations.missing(self.call)

    def describe(self) -> Wait:
        return self.creations.wait_in(self.call)


def noting(original: Any) -> Any:
    """Around torch's maker of groups. It gets the members' number, the rank among them, all of
    them (none for the default group), the backend, the store and the name."""

    def make(*args: Any, **kwargs: Any) -> Any:
        context = context_here()
        if context is not None and KIND in context.session.kinds:
            _, _, ranks, backend, _, name = args[:6]
            if ranks and str(name).isdigit():  # else it is named by its members, who alone call
                _note(context, tuple(ranks), str(backend), callsite.mark(2))
        return original(*args, **kwargs)

    return make


def _note(
    context: RankContext, ranks: tuple[int, ...], backend: str, mark: Mark | None
) -> None:
    strand = here.strand
    creations = _creations(context)
    if strand is None or creations is None:
        return
    call = creations.add(context.rank, (ranks, backend), mark)
    if creations.disagree_at is None:
        return
    if creations.missing(call) and strand.state is RUNNING and not strand.helper:
        wait = CreationWait(creations, call, strand)
        creations.waiting.append(wait)
        strand.baton.park(strand, wait)
        return
    verdict = creations.find_mismatch()
    if verdict is not None:
        waiting, creations.waiting = creations.waiting, []
        own, *others = context.session.report(verdict).for_each(1 + len(waiting))
        for each, error in zip(waiting, others, strict=True):
            each.strand.baton.wake(each.strand, error)
        raise own


def note_split(
    context: RankContext, met: GroupMailbox, number: int, parts: Iterable[int]
) -> None:
    """A rank splits a group for the `number`-th time, and names the part that it is in by
    places in the group. Raises where parts that others named have members in common with it."""
    if KIND not in context.session.kinds:
        return
    part = tuple(met.ranks[place] for place in parts if 0 <= place < met.size)
    splits: dict[int, Op] = met.notes.setdefault("splits", {}).setdefault(number, {})
    group = Group(met.name, part)
    splits[context.rank] = Op(
        context.rank, "split_group", group, site=resolve(callsite.mark(2))
    )
    verdict = find_split_mismatch(splits, context.rank)
    if len(splits) == met.size:
        del met.notes["splits"][number]
    if verdict is not None:
        raise context.session.report(verdict)


def _creations(context: RankContext) -> GroupCreations | None:
    """Those of the rank's default group."""
    group = context.torch_state.default_pg
    if group is None or group._mailbox is None:
        return None
    world: GroupMailbox = group._mailbox
    return context.session.referee.creations_in(group._place, world, world.has_member)


def note_destroyed(context: RankContext, met: GroupMailbox, *, is_default: bool) -> None:
    """A rank has destroyed its end of a group. Those that go with the default group, all in
    one call, are left out: torch itself sees to their order."""
    mark = callsite.mark(2)
    destroyed = context.destroyed
    world = context.torch_state.default_pg
    place = world._place if world is not None else None
    if not is_default:
        _forget_destroyed(context)
        made = context.torch_state.group_count
        destroyed.append(_Destroyed(met, place, mark, _calls_so_far(context), made))
        return
    context.ended_at = mark
    while destroyed and destroyed[-1].mark == mark:
        destroyed.pop()
    context.calls_in_all[place] = _calls_so_far(context)


def _forget_destroyed(context: RankContext) -> None:
    """There is nothing more to be said about a group that all members have destroyed, none of
    them after another one that is not done with. Those that go with the default group are not
    known yet as such: a rank that has made groups since is past that."""
    everyone, own = context.session.ranks, context.destroyed
    while own and own[0].met.is_deserted():
        met = own[0].met
        members = [everyone[rank] for rank in met.ranks]
        if not all(m.destroyed and m.destroyed[0].met is met for m in members):
            return
        if any(m.destroyed[0].made >= m.torch_state.group_count for m in members):
            return
        for member in members:
            member.destroyed.popleft()


def find_at_end(session: Session) -> list[Verdict]:
    """Once all ranks have returned."""
    found: list[Verdict] = []
    found += session.referee.find_missing_groups()
    if not any(context.destroyed or context.calls_in_all for context in session.ranks):
        return found
    gone = (each.place for context in session.ranks for each in context.destroyed)
    for place in dict.fromkeys(gone):
        ops = {context.rank: _destroyed_ops(context, place) for context in session.ranks}
        calls = {c.rank: c.calls_in_all.get(place, _calls_so_far(c)) for c in session.ranks}
        verdict = find_destroy_mismatch(ops) or find_kept_group(ops, calls)
        if verdict is not None:
            found.append(verdict)
    for context in session.ranks:
        context.destroyed.clear()
        context.calls_in_all.clear()
    return found


def _destroyed_ops(context: RankContext, place: Any) -> list[Destroyed]:
    """Of the time of one default group."""
    found = []
    for met, of, mark, calls, _ in context.destroyed:
        if of == place:
            group = Group(met.name, met.ranks)
            op = Op(context.rank, "destroy_process_group", group, calls, site=resolve(mark))
            found.append(Destroyed(id(met), op))
    return found


def _calls_so_far(context: RankContext) -> int:
    """How many collectives the rank has called on its default group."""
    group = context.torch_state.default_pg
    if group is None or group._mailbox is None:
        return 0
    return int(group._mailbox.next_number[group._member])
