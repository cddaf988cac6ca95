"""Where operations meet: slots for collectives, mailboxes for messages. No torch, no waiting.

The backend makes one `Assembly` per group and shares it between the members; whoever holds
the baton may touch it. A `Call` is one rank's op in flight. The n-th collective of each
member on a group meets in slot n, whatever it is: whether the calls agree is judged by the
layers above, when the last member has arrived.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from phalanx.callsite import Mark
from phalanx.core.strand import Strand
from phalanx.journal.events import GroupRecord


class Call:
    """One op in flight: who called what, with which buffers, and whether it is done.

    Defaults stand on the class, because a call is made for every op and most of them need
    few of these. `facts` are an op's own (splits); `event` is the device's, and `device` its
    index. `batch` is equal for ops that are launched at once.
    """

    number: int | None = None
    signature: Any = None
    inputs: Any = ()
    outputs: Any = ()
    op: Any = None
    root: int | None = None
    peer: int | None = None
    tag: int | None = None
    source: int = -1
    batch: int | None = None
    device: int | None = None
    serial: int | None = None
    """How many calls its rank had made before: its name in the journal, with the rank."""
    event: Any = None
    facts: Any = None
    uneven = False
    done = False
    waited = False
    asynchronous = False
    error: BaseException | None = None
    waiters: list[Strand] | None = None
    callbacks: list[Callable[[], None]] | None = None
    whole: Call | None = None
    parts_left = 0
    parts: tuple[Call, ...] | list[Call] = ()
    origin = 0
    """Who made it, as `backend/work/call_origin.py` says; known of asynchronous calls only."""
    flight: Any = None
    """What the guard of buffers in flight knows of it; a list for coalesced parts."""
    put_off: Any = None
    """Set while all members are there and the data is to move later."""

    def __init__(
        self, assembly: Assembly, member: int, strand: Strand, name: str, mark: Mark | None
    ) -> None:
        self.assembly = assembly
        self.member = member
        self.strand = strand
        self.name = name
        self.mark = mark

    @classmethod
    def of_parts(cls, parts: list[Call]) -> Call:
        """A call that is done when all of `parts` are, with the first error among them."""
        last = parts[-1]
        whole = cls(last.assembly, last.member, last.strand, "coalesced", last.mark)
        whole.outputs = [tensor for part in parts for tensor in part.outputs or part.inputs]
        whole.event, whole.device = last.event, last.device
        whole.parts = parts
        whole.flight = [part.flight for part in parts if part.flight is not None] or None
        whole.parts_left = 1
        for part in parts:
            if part.done:
                whole.error = whole.error or part.error
            else:
                part.whole = whole
                whole.parts_left += 1
        whole.finish_part(None)
        return whole

    def finish_part(self, error: BaseException | None) -> None:
        self.error = self.error or error
        self.parts_left -= 1
        if not self.parts_left:
            self.finish(self.error)

    def finish(self, error: BaseException | None = None) -> None:
        """The op is complete: wake who waits for it, and run what its rank asked for."""
        self.done = True
        if error is not None:
            self.error = error
        if self.callbacks:
            for callback in self.callbacks:
                self.strand.baton.post(self.strand, callback)
            self.callbacks = None
        if self.waiters:
            for strand in self.waiters:
                strand.baton.wake(strand)
            self.waiters = None
        if self.whole is not None:
            self.whole.finish_part(error)


class Slot:
    """The calls that belong to one collective, by place in the group."""

    __slots__ = ("arrived", "calls", "clash", "number", "signature")

    def __init__(self, number: int, size: int, signature: Any) -> None:
        self.number = number
        self.calls: list[Call | None] = [None] * size
        self.arrived = 0
        self.signature = signature
        self.clash = False


class Assembly:
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
        self.notes: dict[str, Any] = {}
        """What checks remember about the group, by their kind."""
        self._places: dict[int, int] = {}
        self._left = 0
        self.ends: dict[int, Any] = {}

    def anew(self) -> Assembly:
        """The same members, and nothing has happened yet."""
        made = Assembly(self.name, self.ranks)
        made.record.backend, made.record.eager = self.record.backend, self.record.eager
        made._places, made.ends = self._places, self.ends
        return made

    def claim(self, member: int, rank: int, end: Any = None) -> int | None:
        """A rank takes its place; the rank that has it already, if any. Programs number
        their ranks as they like: from here on `ranks` tells which ranks these really are.
        `end` is the rank's own object for the group."""
        holder = self._places.setdefault(member, rank)
        if holder != rank:
            return holder
        self.ends[rank] = end
        self.ranks = (*self.ranks[:member], rank, *self.ranks[member + 1 :])
        self.record.ranks = self.ranks
        return None

    def has_member(self, member: int) -> bool:
        """Whether a rank has ever taken this place."""
        return member in self._places

    def leave(self, rank: int) -> bool:
        """A member destroys its end of the group; whether it was the last of all."""
        self._left += 1
        self.ends.pop(rank, None)
        return self._left == self.size

    def is_deserted(self) -> bool:
        """Whether all members have destroyed their ends."""
        return self._left == self.size

    def join(self, call: Call) -> Slot | None:
        """Put a collective call into its slot; the slot, once the last member is there."""
        member = call.member
        number = call.number = self.next_number[member]
        self.next_number[member] = number + 1
        slot = self.slots.get(number)
        if slot is None:
            slot = self.slots[number] = Slot(number, self.size, call.signature)
        elif not slot.clash and slot.signature != call.signature:
            slot.clash = True
        slot.calls[member] = call
        slot.arrived += 1
        if slot.arrived < self.size:
            return None
        del self.slots[number]
        return slot

    def post_send(self, call: Call) -> Call | None:
        """A message to `call.peer`; the receive that takes it, if one is waiting."""
        assert call.peer is not None
        self.messages += 1
        waiting = self.receives.get(call.peer, [])
        for index, receive in enumerate(waiting):
            if receive.tag == call.tag and receive.peer in (None, call.member):
                return waiting.pop(index)
        self.sends.setdefault(call.peer, []).append(call)
        return None

    def post_receive(self, call: Call) -> Call | None:
        """A receive from `call.peer` (None: from anyone); the message it takes, if any."""
        pending = self.sends.get(call.member, [])
        for index, send in enumerate(pending):
            if send.tag == call.tag and call.peer in (None, send.member):
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
