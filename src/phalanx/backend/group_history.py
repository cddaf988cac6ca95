"""Note which groups each rank makes and destroys, and raise where ranks disagree.

`torch_patches.py` puts `noting` around torch's maker of groups, which every rank calls, members
and others; `Endpoint.shutdown` calls `note_destroyed`. Deciding is done in
`checks/group_lifecycle.py`. A rank whose `new_group` does not fit waits until all others have
come to theirs, so that all can be asked who is odd; or until they cannot come any more.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, NamedTuple

from phalanx import callsite
from phalanx.backend.session import RankContext, Session, context_here
from phalanx.callsite import Mark, resolve
from phalanx.checks.group_lifecycle import (
    Destroyed,
    do_clash,
    find_destroy_mismatch,
    find_kept_group,
    find_making_mismatch,
    find_missing_making,
    find_split_mismatch,
)
from phalanx.core.strand import RUNNING, Strand, here
from phalanx.matching.slots import Assembly
from phalanx.model import Finding, Group, Op, Verdict, Wait

KIND = "mismatch"

_Made = tuple[tuple[int, ...], str, Mark | None]


class _Destroyed(NamedTuple):
    """A group, the place of the default group at that time, where it was destroyed, and how
    many collectives of the default group the rank had called and groups made by then."""

    met: Assembly
    place: Any
    mark: Mark | None
    calls: int
    made: int


class GroupMakings:
    """The calls of `new_group` by the ranks of one default group, in order."""

    def __init__(self, met: Assembly) -> None:
        self._met = met
        self.made: dict[int, list[_Made]] = {}
        self.first: list[_Made] = []
        self._mixed: set[int] = set()
        """Places where not all ranks make the same group, which may be in order."""
        self.disagree_at: int | None = None
        self.waiting: list[Strand] = []

    def add(self, rank: int, made: _Made) -> int:
        """Note it; its number."""
        own = self.made.setdefault(rank, [])
        number = len(own)
        own.append(made)
        if number == len(self.first):
            self.first.append(made)
            return number
        if self.first[number][:2] != made[:2]:
            self._mixed.add(number)
        if number in self._mixed and self.disagree_at is None:
            there = {r: each[number][:2] for r, each in self.made.items() if len(each) > number}
            if do_clash(there):
                self.disagree_at = number
        return number

    def missing(self) -> tuple[int, ...]:
        """Who has not come to the place where ranks disagree."""
        at = self.disagree_at
        assert at is not None
        return tuple(rank for rank in self._met.ranks if len(self.made.get(rank, ())) <= at)

    def ops(self) -> dict[int, list[Op]]:
        """By rank. Those that have taken no place in the default group have not begun."""
        return {
            rank: [_op(rank, made) for made in self.made.get(rank, ())]
            for member, rank in enumerate(self._met.ranks)
            if self._met.has_member(member)
        }

    def find_mismatch(self) -> Finding | None:
        if self.disagree_at is None:
            return None
        return find_making_mismatch(self.ops(), self.disagree_at)


class MakingWait:
    """Why a rank is parked: its `new_group` does not fit, and others are yet to come."""

    __slots__ = ("makings", "rank")

    def __init__(self, makings: GroupMakings, rank: int) -> None:
        self.makings = makings
        self.rank = rank

    def describe(self) -> Wait:
        assert self.makings.disagree_at is not None
        made = self.makings.made[self.rank][self.makings.disagree_at]
        return Wait(op=_op(self.rank, made), needs=self.makings.missing())


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
    makings = _makings(context)
    if strand is None or makings is None:
        return
    makings.add(context.rank, (ranks, backend, mark))
    if makings.disagree_at is None:
        return
    if makings.missing() and strand.state is RUNNING and not strand.helper:
        makings.waiting.append(strand)
        strand.baton.park(strand, MakingWait(makings, context.rank))
        return
    verdict = makings.find_mismatch()
    if verdict is not None:
        own, *others = context.session.report(verdict).for_each(1 + len(makings.waiting))
        for waiting, error in zip(makings.waiting, others, strict=True):
            waiting.baton.wake(waiting, error)
        makings.waiting = []
        raise own


def note_split(context: RankContext, met: Assembly, number: int, parts: Iterable[int]) -> None:
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


def _makings(context: RankContext) -> GroupMakings | None:
    """Those of the rank's default group."""
    group = context.torch_state.default_pg
    if group is None or group._assembly is None:
        return None
    known: dict[Any, GroupMakings] = context.session.makings
    found = known.get(group._place)
    if found is None:
        found = known[group._place] = GroupMakings(group._assembly)
    return found


def note_destroyed(context: RankContext, met: Assembly, *, is_default: bool) -> None:
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


def find_open_mismatch(session: Session, gone: Iterable[int] = ()) -> Verdict | None:
    """When ranks cannot move: do their groups explain it? `gone` are ranks that have ended
    and that others wait for in a group that these never made."""
    lost = set(gone)
    everyones: list[GroupMakings] = list(session.makings.values())
    for makings in everyones:
        verdict = makings.find_mismatch()
        if verdict is None and lost:
            missing = find_missing_making(makings.ops())
            if missing is not None and lost.issuperset(missing.ranks):
                verdict = missing
        if verdict is not None:
            return verdict
    return None


def find_at_end(session: Session) -> list[Verdict]:
    """Once all ranks have returned."""
    found: list[Verdict] = []
    makings, session.makings = session.makings, {}
    for each in makings.values():
        verdict = find_missing_making(each.ops())
        if verdict is not None:
            found.append(verdict)
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
    if group is None or group._assembly is None:
        return 0
    return int(group._assembly.next_number[group._member])


def _op(rank: int, made: _Made) -> Op:
    ranks, backend, mark = made
    return Op(rank, "new_group", Group(backend, ranks), site=resolve(mark))
