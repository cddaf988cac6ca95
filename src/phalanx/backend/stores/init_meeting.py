"""Where ranks wait in `init_process_group` until all members of the new world are there.

Gloo connects its members there, and a TCPStore waits for all its clients, so nobody leaves
`init_process_group` alone; ranks that name different addresses never do. Where torch does not
wait (NCCL over the store of torchrun's agent, a file or the program's own store), nobody waits
here. Used by `group_history.py`; the engines describe an `InitWait` in reports.
"""

from __future__ import annotations

from typing import Any

import torch.distributed
from torch.distributed.distributed_c10d import PrefixStore

from phalanx import callsite
from phalanx.backend.session import RankContext
from phalanx.backend.stores.store import InProcessStore, holding_baton
from phalanx.callsite import Mark, resolve
from phalanx.core.baton import Baton
from phalanx.core.strand import Strand, here
from phalanx.matching.mailboxes import GroupMailbox
from phalanx.matching.other_group import INIT
from phalanx.model import Group, Op, Wait, rank_list

dist: Any = torch.distributed  # torch's type stubs leave several of the names below out


class InitWait:
    """Why a rank is parked: members of its new world have not come to `init_process_group`."""

    __slots__ = ("context", "mailbox", "mark", "store")

    def __init__(self, context: RankContext, mailbox: GroupMailbox, store: Any) -> None:
        self.context = context
        self.mailbox = mailbox
        self.store = store
        self.mark: Mark | None = callsite.mark(2)

    def needs(self) -> tuple[tuple[int, ...], bool]:
        """The ranks that have not come there, and whether any one of them would do: a world of
        all ranks needs them all, a smaller one any that is in no place of it yet."""
        everyone = range(self.context.session.size)
        came = set(self.mailbox.came())
        others = tuple(rank for rank in everyone if rank not in came)
        return others, self.mailbox.size < len(everyone)

    def address(self) -> str:
        """Where the rank waits for the others."""
        below = _underlying(self.store)
        if isinstance(below, InProcessStore) and below.address:
            return below.address
        name = type(below).__name__
        if isinstance(below, dist.FileStore):
            return f"store={name}({below.path!r})"
        if isinstance(below, dist.TCPStore):
            return f"store={name}({below.host!r}, {below.port})"
        return f"store={name}() of {rank_list(sorted(self.mailbox.came()))}"

    def describe(self) -> Wait:
        group = Group(f"{self.address()}, world_size={self.mailbox.size}", self.mailbox.ranks)
        op = Op(self.context.rank, INIT, group, site=resolve(self.mark))
        needs, any_of = self.needs()
        return Wait(op=op, needs=needs, any_of=any_of)


def meet(context: RankContext, group: Any) -> None:
    """A rank has made its end of its default group: block until all members have, if torch
    does. Those who waited go on in the order of their numbers. Raises `DistStoreError` after
    the group's timeout, as torch's stores do."""
    strand = here.strand
    if strand is None or group.size() == 1 or not _waits_for_all(group):
        return
    mailbox: GroupMailbox = group._mailbox
    with holding_baton(strand):
        if len(mailbox.came()) == mailbox.size:
            _release(strand.baton, mailbox)
            strand.baton.give_way(strand)
            return
        wait = InitWait(context, mailbox, group.get_group_store())
        try:
            _wait(strand, wait, group._limit)
        except BaseException:
            mailbox.vacate(group.rank())  # nobody will meet it here
            raise


def _release(baton: Baton, mailbox: GroupMailbox) -> None:
    waiting = [
        strand
        for strand in baton.strands
        if isinstance(strand.why, InitWait) and strand.why.mailbox is mailbox
    ]
    for strand in sorted(waiting, key=lambda strand: strand.rank):
        baton.wake(strand)


def _wait(strand: Strand, wait: InitWait, limit: float) -> None:
    mailbox, baton = wait.mailbox, strand.baton
    until = baton.clock.now() + limit
    while len(mailbox.came()) < mailbox.size:
        if not baton.park(strand, wait, deadline=until):
            raise dist.DistStoreError(
                f"{INIT}: {len(mailbox.came())} of {mailbox.size} ranks came to "
                f"{wait.address()} within {limit:g} s"
            )


def _waits_for_all(group: Any) -> bool:
    """Whether torch lets nobody leave `init_process_group` before all members are there."""
    below = _underlying(group.get_group_store())
    by_store = isinstance(below, InProcessStore) and below.waits_for_clients
    return by_store or group.name() != "nccl"


def _underlying(store: Any) -> Any:
    while isinstance(store, PrefixStore):
        store = store.underlying_store
    return store
