"""An order in which the calls of a run may have happened, for journals that were written later.

A referee hears of ranks in no particular order. So the ranks' calls are gone through once more,
each when those that it needs have come. Whoever waits in the program waits here, and so do some
who need not, which orders more than there is and never less. A program that cannot be gone
through in this way is left alone. Used by `checks/message_race.py`.
"""

from __future__ import annotations

from collections import defaultdict, deque
from typing import Any

from phalanx.journal.events import CallId, GroupRecord, Met, Posted
from phalanx.journal.reader import Journal


def in_causal_order(journal: Journal) -> list[Posted | Met] | None:
    """What ranks posted and what met; None if that is not known, or if no receive from any
    source makes it worth while."""
    if not journal.has_all_calls():
        return None
    calls = [journal.calls(rank) for rank in range(journal.ranks)]
    chosen = {c.call for own in calls for c in own if c.name == "recv" and c.peer is None}
    if not chosen or any(call.thread not in (0, 1) for own in calls for call in own):
        return None
    sources = {
        event.calls[-1]: event.source
        for event in journal.filter(kind="met")
        if isinstance(event, Met) and event.number is None
    }
    if not chosen <= sources.keys():
        return None  # one that took nothing
    passage = _Passage(calls, sources)
    return passage.events if passage.is_through() else None


class _Passage:
    """Where each rank is, going through its calls."""

    def __init__(self, calls: list[list[Posted]], sources: dict[CallId, int | None]) -> None:
        self._calls = calls
        self._sources = sources
        self._at = [0] * len(calls)
        self._met: dict[tuple[GroupRecord, int | None], list[int]] = defaultdict(list)
        self._sends: dict[Any, deque[Posted]] = defaultdict(deque)
        self._waits: dict[int, CallId] = {}
        """The send that a rank waits in."""
        self._changed = True
        self.events: list[Posted | Met] = []

    def is_through(self) -> bool:
        while self._changed:
            self._changed = False
            for rank in range(len(self._at)):
                while self._at[rank] < len(self._calls[rank]):
                    if not self._pass(rank, self._calls[rank][self._at[rank]]):
                        break
                    self._changed = True
        return all(at == len(own) for at, own in zip(self._at, self._calls, strict=True))

    def _pass(self, rank: int, call: Posted) -> bool:
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
