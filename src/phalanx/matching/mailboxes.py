"""The mailbox of a group: its open slots and its pending messages. No torch, no waiting.

The referee has one for each group, which all members share. In the threads engine whoever holds
the baton may touch it; for ranks in processes the referee alone does.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

from phalanx.journal.events import GroupRecord
from phalanx.matching.slots import Call, Slot
from phalanx.model import Op


class GroupMailbox:
    """What the members of one group share: open slots and pending messages."""

    def __init__(self, name: str, ranks: tuple[int, ...]) -> None:
        self.name = name
        self.ranks = ranks
        self.size = len(ranks)
        self.record = GroupRecord(0, name, ranks)
        """The group in the journal."""
        self.slots: dict[int, Slot] = {}
        self.next_number = [0] * self.size
        self.sends: dict[int, list[Call]] = {}
        self.receives: dict[int, list[Call]] = {}
        self.messages = 0
        """How many were sent."""
        self.splits: dict[int, dict[int, Op]] = {}
        """How members split the group: by the number of the split, and by rank."""
        self.dull_places: dict[tuple[int, int], list[Any]] = {}
        """Lines whose calls say the same again and again; see `evidence/order_notes.py`."""
        self.is_renumbered = False
        """Whether ranks of the run number themselves otherwise than the engine does."""
        self._places: dict[int, int] = {}
        self._left = 0
        self.ends: dict[int, Any] = {}

    def anew(self) -> GroupMailbox:
        """The same members, and nothing has happened yet."""
        made = GroupMailbox(self.name, self.ranks)
        made.record.backend, made.record.eager = self.record.backend, self.record.eager
        made._places, made.ends = self._places, self.ends
        made.is_renumbered = self.is_renumbered
        return made

    def claim(self, member: int, rank: int, end: Any = None) -> int | None:
        """A rank takes its place; the rank that has it already, if any. Programs number
        their ranks as they like: from here on `ranks` tells which ranks these really are.
        `end` is the rank's own object for the group."""
        holder = self._places.setdefault(member, rank)
        if holder != rank:
            return holder
        self.ends[rank] = end
        if self.ranks[member] != rank:
            self.is_renumbered = True
            self.ranks = (*self.ranks[:member], rank, *self.ranks[member + 1 :])
            self.record.ranks = self.ranks
        return None

    def has_member(self, member: int) -> bool:
        """Whether a rank has ever taken this place."""
        return member in self._places

    def came(self) -> Collection[int]:
        """The ranks that have ever taken a place; as many as `size` once all are there."""
        return self._places.values()

    def vacate(self, member: int) -> None:
        """The rank that took this place gave up before the others had come."""
        self.ends.pop(self._places.pop(member), None)

    def is_known(self, member: int) -> bool:
        """Whether `ranks` tells which rank this member is. Until somebody takes the place, it
        has the number that the program gave, which says nothing where ranks number
        themselves."""
        return not self.is_renumbered or member in self._places

    def leave(self, rank: int) -> bool:
        """A member destroys its end of the group; whether it was the last of all."""
        self._left += 1
        self.ends.pop(rank, None)
        return self._left == self.size

    def is_deserted(self) -> bool:
        """Whether all members have destroyed their ends."""
        return self._left == self.size

    def join(self, call: Call) -> Slot | None:
        """Put a collective call into its slot; the slot, once the last member is there.

        Equal calls share one signature and one mark from then on: the journal keeps both, and
        what it keeps is counted by the garbage collector."""
        member = call.member
        number = call.number = self.next_number[member]
        self.next_number[member] = number + 1
        slot = self.slots.get(number)
        if slot is None:
            slot = self.slots[number] = Slot(number, self.size, call.signature, call.mark)
        else:
            if slot.signature == call.signature:
                call.signature = slot.signature
            else:
                slot.clash = True
            if slot.mark == call.mark:
                call.mark = slot.mark
        slot.calls[member] = call
        slot.arrived += 1
        if slot.arrived < self.size:
            return None
        del self.slots[number]
        return slot

    def post_send(self, call: Call) -> Call | None:
        """A message to `call.peer`; the receive that takes it, if one is waiting. From any
        source: one whose `source` is not negative waits for a message of that member."""
        assert call.peer is not None
        self.messages += 1
        waiting = self.receives.get(call.peer, [])
        for index, receive in enumerate(waiting):
            wanted = receive.source if receive.peer is None else receive.peer
            if receive.tag == call.tag and wanted in (-1, call.member):
                return waiting.pop(index)
        self.sends.setdefault(call.peer, []).append(call)
        return None

    def sources_for(self, call: Call) -> list[int]:
        """The members that have sent what a receive from any source may take, in order."""
        pending = self.sends.get(call.member, ())
        return sorted({send.member for send in pending if send.tag == call.tag})

    def post_receive(self, call: Call, source: int = -1) -> Call | None:
        """A receive from `call.peer` (None: from anyone); the message it takes, if any. From
        anyone it takes that of `source`, if it is not negative."""
        wanted = call.peer if call.peer is not None or source < 0 else source
        pending = self.sends.get(call.member, [])
        for index, send in enumerate(pending):
            if send.tag == call.tag and wanted in (None, send.member):
                return pending.pop(index)
        self.receives.setdefault(call.member, []).append(call)
        return None

    def withdraw(self, call: Call) -> bool:
        """Take back a message whose rank gave up waiting (a timeout), so that nobody meets
        it; whether there was one. A collective cannot be taken back."""
        for pending in (*self.sends.values(), *self.receives.values()):
            if call in pending:
                pending.remove(call)
                return True
        return False

    def take_back(self, member: int) -> list[Call]:
        """All that a member has begun and that nobody has met: nobody will."""
        calls = [call for call in self.open_calls() if call.member == member]
        for slot in self.slots.values():
            if slot.calls[member] is not None:
                slot.calls[member] = None
                slot.arrived -= 1
        for call in calls:
            self.withdraw(call)
        return calls

    def abandon(self, error: BaseException) -> None:
        """What is open will never be met: it ends with `error`, and all members go on with
        the same number."""
        calls = self.open_calls()
        self.slots.clear()
        self.sends.clear()
        self.receives.clear()
        self.next_number = [max(self.next_number)] * self.size
        for call in calls:
            call.finish(error)

    def open_calls(self) -> list[Call]:
        """What was begun and has not met its counterpart."""
        calls = [call for slot in self.slots.values() for call in slot.calls if call]
        for pending in (*self.sends.values(), *self.receives.values()):
            calls += pending
        return calls

    def in_flight(self) -> int:
        return sum(map(len, self.sends.values()))
