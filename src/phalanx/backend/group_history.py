"""Note which groups each rank of the threads engine makes and splits, and raise where ranks
disagree.

`torch_patches.py` puts `noting` around torch's maker of groups, which every rank calls, members
and others. What disagrees is decided in `matching/groups.py` and `checks/group_lifecycle.py`. A
rank whose `new_group` does not fit waits until all others have come to theirs, so that all can
be asked who is odd; or until they cannot come any more. In `init_process_group` ranks wait as
`stores/init_meeting.py` says.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable
from typing import Any

from phalanx import callsite
from phalanx.backend.evidence.env_groups import SCRIPT, note_default_group
from phalanx.backend.session import RankContext, context_here
from phalanx.backend.stores.init_meeting import meet
from phalanx.callsite import Mark, resolve
from phalanx.checks.group_lifecycle import find_split_mismatch
from phalanx.core.strand import RUNNING, Strand, here
from phalanx.matching.groups import Creation, GroupCreations
from phalanx.matching.mailboxes import GroupMailbox
from phalanx.model import Group, Op, Wait

KIND = "mismatch"


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

    def needs(self) -> tuple[int, ...]:
        return self.creations.needs(self.call)

    def describe(self) -> Wait:
        return self.creations.wait_in(self.call)


def noting(original: Any) -> Any:
    """Around torch's maker of groups. It gets the members' number, the rank among them, all of
    them (none for the default group), the backend, the store and the name."""

    def make(*args: Any, **kwargs: Any) -> Any:
        context = context_here()
        if context is not None and SCRIPT in context.saved and not args[2]:
            note_default_group(context, context.saved, sys._getframe(1), str(args[3]))
        if context is not None and context.session.losses is not None:
            context.session.losses.await_members(context, args, kwargs)
        if context is not None and KIND in context.session.kinds:
            _, _, ranks, backend, _, name = args[:6]
            if ranks and str(name).isdigit():  # else it is named by its members, who alone call
                note_creation(context, tuple(ranks), str(backend), callsite.mark(2))
        made = original(*args, **kwargs)
        if context is not None and context.makes is not None:
            context.makes.append((args, kwargs))
        if context is not None and not args[2] and not context.session.makes_world:
            meet(context, made[0])
        return made

    return make


def note_creation(
    context: RankContext, ranks: tuple[int, ...], backend: str, mark: Mark | None
) -> None:
    """A rank makes a group, as a member or not. Raises, or waits, where it does not fit."""
    strand = here.strand
    creations = creations_of(context)
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
    splits = met.splits.setdefault(number, {})
    group = Group(met.name, part)
    splits[context.rank] = Op(
        context.rank, "split_group", group, site=resolve(callsite.mark(2))
    )
    verdict = find_split_mismatch(splits, context.rank)
    if len(splits) == met.size:
        del met.splits[number]
    if verdict is not None:
        raise context.session.report(verdict)


def creations_of(context: RankContext) -> GroupCreations | None:
    """Those of the rank's default group."""
    group = context.torch_state.default_pg
    if group is None or group._mailbox is None:
        return None
    world: GroupMailbox = group._mailbox
    return context.session.referee.creations_in(group._place, world, world.has_member)
