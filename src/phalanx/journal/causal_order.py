"""An order in which the calls of a run may have happened, for journals that were written later.

A referee hears of ranks in no particular order. So the ranks' calls are gone through once more,
each when those that it needs have come. Whoever waits in the program waits here, and so do some
who need not, which orders more than there is and never less. What the program does with a key
of a store comes in the order of its times, which say who can have seen what as long as all
ranks have one clock (`engines/remote/store_watch.py`). A program that cannot be gone through in
this way is left alone. Used by `checks/message_race.py`.
"""

from __future__ import annotations

from collections import defaultdict, deque
from typing import Any

from phalanx.journal.events import (
    CallId,
    GroupRecord,
    Met,
    Posted,
    StoreRead,
    StoreWritten,
)
from phalanx.journal.reader import Journal

Use = StoreRead | StoreWritten
Step = Posted | Use


def in_causal_order(journal: Journal) -> list[Posted | Met | Use] | None:
    """What ranks posted, what met and what was done with stores; None if that is not known, or
    if neither a receive from any source nor a store makes it worth while."""
    if not journal.has_all_calls():
        return None
    calls = [journal.calls(rank) for rank in range(journal.ranks)]
    chosen = {c.call for own in calls for c in own if c.name == "recv" and c.peer is None}
    uses = journal.store_uses()
    if uses is None or (uses and journal.clocks) or not (chosen or uses):
        return None
    steps = [
        _merged(own, [use for use in uses if use.rank == r]) for r, own in enumerate(calls)
    ]
    if any(step.thread not in (0, 1) for own in steps for step in own):
        return None
    sources = {
        event.calls[-1]: event.source
        for event in journal.filter(kind="met")
        if isinstance(event, Met) and event.number is None
    }
    if not chosen <= sources.keys():
        return None  # one that took nothing
    passage = _Passage(steps, sources)
    return passage.events if passage.is_through() else None


def _merged(calls: list[Posted], uses: list[Use]) -> list[Step]:
    """What one rank did, one after the other."""
    if not uses:
        return list(calls)
    return sorted([*calls, *uses], key=lambda step: step.time)


class _Passage:
    """Where each rank is, going through its calls."""

    def __init__(self, calls: list[list[Step]], sources: dict[CallId, int | None]) -> None:
        self._calls = calls
        self._sources = sources
        self._turns: dict[Any, deque[Use]] = defaultdict(deque)
        """By key, what has not come yet, in order."""
        uses = [each for own in calls for each in own if not isinstance(each, Posted)]
        for use in sorted(uses, key=lambda use: use.time):
            self._turns[use.store, use.key].append(use)
        self._at = [0] * len(calls)
        self._met: dict[tuple[GroupRecord, int | None], list[int]] = defaultdict(list)
        self._sends: dict[Any, deque[Posted]] = defaultdict(deque)
        self._waits: dict[int, CallId] = {}
        """The send that a rank waits in."""
        self._changed = True
        self.events: list[Posted | Met | Use] = []

    def is_through(self) -> bool:
        while self._changed:
            self._changed = False
            for rank in range(len(self._at)):
                while self._at[rank] < len(self._calls[rank]):
                    if not self._pass(rank, self._calls[rank][self._at[rank]]):
                        break
                    self._changed = True
        return all(at == len(own) for at, own in zip(self._at, self._calls, strict=True))

    def _pass(self, rank: int, call: Step) -> bool:
        if not isinstance(call, Posted):
            return self._pass_use(rank, call)
        if call.name == "send":
            return self._pass_send(rank, call)
        if call.name == "recv":
            return self._pass_receive(rank, call)
        there = self._met[call.group, call.number]
        if rank not in there:
            there.append(rank)
            self.events.append(call)
        if len(there) < len(call.group.ranks):
            return False
        self.events.append(Met(call.time, rank, 0, None, call.group, call.number))
        for each in there:
            self._at[each] += 1
        return True

    def _pass_use(self, rank: int, use: Use) -> bool:
        turns = self._turns[use.store, use.key]
        if turns[0] is not use:
            return False
        turns.popleft()
        self.events.append(use)
        self._at[rank] += 1
        return True

    def _pass_send(self, rank: int, call: Posted) -> bool:
        """One that blocks comes back when it has been received."""
        sent = self._waits.get(rank)
        if sent is None:
            self._changed = True
            self.events.append(call)
            self._sends[call.group, call.peer, call.tag, call.member].append(call)
            if not call.asynchronous:
                self._waits[rank] = call.call
                return False
        elif sent != _RECEIVED:
            return False
        self._waits.pop(rank, None)
        self._at[rank] += 1
        return True

    def _pass_receive(self, rank: int, call: Posted) -> bool:
        source = self._sources.get(call.call) if call.peer is None else call.peer
        sends = self._sends[call.group, call.member, call.tag, source]
        if not sends:
            return False
        send = sends.popleft()
        pair = (send.call, call.call)
        self.events += [call, Met(call.time, rank, 0, None, call.group, None, pair, source)]
        if self._waits.get(send.rank) == send.call:
            self._waits[send.rank] = _RECEIVED
        self._at[rank] += 1
        return True


_RECEIVED: CallId = (-1, -1)
