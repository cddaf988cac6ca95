"""Where calls of `new_group` meet: those of all ranks of one default group, in order.

Used by the referee. torch asks every rank to make every group, in one order; the members of one
wait for each other while their backend connects, the other ranks do not wait. A rank whose
call does not fit is held until all have come to theirs, so that all can be asked who is odd.
Deciding is done in `checks/group_lifecycle.py`.
"""

from __future__ import annotations

from collections.abc import Iterable

from phalanx.checks.group_lifecycle import do_clash, find_making_mismatch, find_missing_making
from phalanx.engines.referee.group_mailbox import AnnouncedCall, GroupMailbox
from phalanx.matching.announcement import Form
from phalanx.model import Finding, Group, Op, Wait


class GroupCreations(GroupMailbox):
    """`world` is the place of the default group."""

    def __init__(self, world: GroupMailbox) -> None:
        super().__init__(world.form, world.size)
        self.ranks = world.ranks
        self.made: dict[int, list[AnnouncedCall]] = {rank: [] for rank in world.ranks}
        self._first: list[AnnouncedCall] = []
        """Who came first, in each place."""
        self._mixed: set[int] = set()
        """Places where not all ranks make the same group, which may be in order."""
        self.disagree_at: int | None = None

    def add(self, call: AnnouncedCall) -> None:
        own = self.made.setdefault(call.rank, [])
        call.turn = len(own)
        own.append(call)
        turn = call.turn
        if turn == len(self._first):
            self._first.append(call)
            return
        if self._first[turn].form.made != call.form.made:
            self._mixed.add(turn)
        if turn in self._mixed and self.disagree_at is None:
            there = {
                at: self.made[rank][turn].form.made or ((), "")
                for at, rank in enumerate(self.ranks)
                if len(self.made[rank]) > turn
            }
            if do_clash(there):
                self.disagree_at = turn

    def missing(self, call: AnnouncedCall) -> tuple[int, ...]:
        """Whom a call waits for: members that have not come to theirs, or, where calls
        disagree, anyone."""
        at, whom = call.turn, self._members(call)
        if self.disagree_at is not None:
            at, whom = self.disagree_at, tuple(self.made)
        return tuple(rank for rank in whom if len(self.made.get(rank, ())) <= at)

    def _members(self, call: AnnouncedCall) -> tuple[int, ...]:
        members, _ = call.form.made or ((), "")
        ranks = tuple(self.ranks[at] for at in members if at < self.size)
        return ranks if call.form.holds and call.rank in ranks else ()

    def wait_of(self, call: AnnouncedCall) -> Wait:
        return Wait(op=call.as_op(), needs=self.missing(call))

    def op_of(self, form: Form, member: int, number: int | None, *, bare: bool = False) -> Op:
        members, backend = form.made or ((), "")
        return Op(self.ranks[member], "new_group", Group(backend, members), site=form.site)

    def find_mismatch(self) -> Finding | None:
        if self.disagree_at is None:
            return None
        return find_making_mismatch(self._ops(), self.disagree_at)

    def find_missing(self, gone: Iterable[int] | None = None) -> Finding | None:
        """Who made fewer groups than others and cannot any more; None: all have ended."""
        found = find_missing_making(self._ops())
        if found is None or gone is None or set(gone).issuperset(found.ranks):
            return found
        return None

    def forget(self) -> None:
        """What is to be said about them is said."""
        for each in self.made.values():
            each.clear()
        self._first.clear()
        self._mixed.clear()
        self.disagree_at = None

    def _ops(self) -> dict[int, list[Op]]:
        return {rank: [call.as_op() for call in self.made[rank]] for rank in sorted(self.made)}
