"""Where announced calls meet: the slots and mailboxes of a group, and its calls as ops.

Used by the referee. `core.meeting` knows how calls meet; this adds who made them, in the words
of `phalanx.model`, and receives from any source, of which only the real backend decides what
they take. Must never decide what is right or wrong.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator
from typing import Any

from phalanx.matching.announcement import Form, GroupForm
from phalanx.matching.slots import HISTORY, Assembly, Call, Slot
from phalanx.model import Group, Meeting, Op, Wait


class AnnouncedCall(Call):
    """One announced call. `asked` says that its rank waits for an answer about it, `timed`
    that it counts on a time of its own; `entered` that the backend has the call already."""

    asked = False
    timed = False
    entered = False
    gave_up = False
    turn = 0
    verdict: Any = None

    def __init__(
        self, place: GroupMailbox, rank: int, call_id: int, form: Form, member: int
    ) -> None:
        super().__init__(place, member, _NO_STRAND, form.name, None)
        self.place = place
        self.rank = rank
        self.call_id = call_id
        self.form = form
        self.peer, self.tag, self.root = form.peer, form.tag, form.root

    @property
    def is_any_source(self) -> bool:
        return self.name == "recv" and self.peer is None

    def as_op(self, *, bare: bool = False) -> Op:
        """As a report names it; `bare` leaves the tensors out."""
        return self.place.op_of(self.form, self.member, self.number, bare=bare)


_NO_STRAND: Any = None
"""Nobody parks here: the ranks wait in their own processes."""


class GroupMailbox(Assembly):
    """The meeting place of one group."""

    def __init__(self, form: GroupForm, size: int) -> None:
        world = form.name == "0" and len(form.ranks) == size
        super().__init__("world" if world else f"group {form.name}", form.ranks)
        self.form = form
        self.past: list[deque[tuple[int, Form]]] = [deque(maxlen=HISTORY) for _ in form.ranks]
        self.deciding: list[AnnouncedCall] = []
        """Receives from any source for which there is a message, or several: the backend
        decides which, and the receiver tells."""

    def meet(self, call: AnnouncedCall) -> Slot | None:
        """Put a collective into its slot; the slot, once the last member is there."""
        slot = self.join(call)
        assert call.number is not None
        self.past[call.member].append((call.number, call.form))
        return slot

    def op_of(self, form: Form, member: int, number: int | None, *, bare: bool = False) -> Op:
        ranks = self.ranks
        return Op(
            rank=ranks[member],
            name=form.name,
            group=Group(self.name, ranks),
            number=number,
            root=None if form.root is None else ranks[form.root],
            reduce_op=form.reduce_op,
            peer=None if form.peer is None else ranks[form.peer],
            tag=form.tag,
            inputs=() if bare else form.inputs,
            outputs=() if bare else form.outputs,
            input_splits=form.input_splits,
            output_splits=form.output_splits,
            site=form.site,
        )

    def meeting(self, slot: Slot) -> Meeting:
        """The slot, complete or not, as a value for the analysis."""
        return Meeting(
            group=Group(self.name, self.ranks),
            number=slot.number,
            ops=tuple(call.as_op() for call in _present(slot.calls)),
            history={
                rank: tuple(self._earlier(member, slot.number))
                for member, rank in enumerate(self.ranks)
            },
        )

    def _earlier(self, member: int, number: int) -> Iterator[Op]:
        for past, form in self.past[member]:
            if past < number:
                op = self.op_of(form, member, past, bare=True)
                yield Op(
                    rank=op.rank,
                    name=op.name,
                    group=op.group,
                    number=op.number,
                    root=op.root,
                    reduce_op=op.reduce_op,
                    site=op.site,
                )

    def pending_sends(self) -> list[AnnouncedCall]:
        return _present(send for sent in self.sends.values() for send in sent)

    def wait_of(self, call: AnnouncedCall) -> Wait:
        """What this call needs before it is met."""
        op = call.as_op()
        if call.number is not None:
            slot = self.slots.get(call.number)
            there = slot.calls if slot else ()
            missing = (self.ranks[at] for at, other in enumerate(there) if other is None)
            return Wait(op=op, needs=tuple(missing))
        near = tuple(self._near_misses(call))
        if call.peer is not None:
            return Wait(op=op, needs=(self.ranks[call.peer],), near=near)
        others = tuple(rank for rank in self.ranks if rank != op.rank)
        return Wait(op=op, needs=others, any_of=True, near=near)

    def _near_misses(self, call: AnnouncedCall) -> Iterator[str]:
        """Pending messages between the same two ranks that do not fit."""
        me = self.ranks[call.member]
        if call.name == "recv":
            for send in self.sends.get(call.member, ()):
                if send.tag != call.tag:
                    sender = self.ranks[send.member]
                    yield (
                        f"rank {sender} sent tag {send.tag}; rank {me} waits for tag {call.tag}"
                    )
        elif call.peer is not None:
            for receive in self.receives.get(call.peer, ()):
                if receive.tag != call.tag and receive.peer in (None, call.member):
                    other = self.ranks[call.peer]
                    yield (
                        f"rank {me} sent tag {call.tag}; rank {other} waits for tag "
                        f"{receive.tag}"
                    )

    # -- receives from any source -----------------------------------------------------------

    def is_undecided(self, call: AnnouncedCall) -> bool:
        """Whether a receive from any source may take this message, or take what this receive
        waits for: then only the backend knows."""
        receiver = call.member if call.name == "recv" else call.peer
        return any(
            each is not call and each.member == receiver and each.tag == call.tag
            for each in self.deciding
        )

    def post(self, call: AnnouncedCall) -> None:
        """Put a message or a receive where it waits, without looking for what it meets."""
        self.messages += call.name == "send"
        boxes, owner = (
            (self.sends, call.peer) if call.name == "send" else (self.receives, call.member)
        )
        boxes.setdefault(owner or 0, []).append(call)

    def match_rest(self, decided: AnnouncedCall) -> list[AnnouncedCall]:
        """What met while the last receive from any source of this kind was undecided."""
        met: list[AnnouncedCall] = []
        for receive in _present(list(self.receives.get(decided.member, ()))):
            if receive.tag == decided.tag and not receive.is_any_source:
                send = self.take_message(receive, receive.peer or 0)
                if send is not None:
                    self.receives[decided.member].remove(receive)
                    met += [send, receive]
        return met

    def open_receives_from_any(
        self, member: int | None, tag: int | None
    ) -> list[AnnouncedCall]:
        return [
            receive
            for receive in _present(self.receives.get(member or 0, ()))
            if receive.is_any_source and receive.tag == tag
        ]

    def messages_for(self, receive: AnnouncedCall) -> list[AnnouncedCall]:
        pending = _present(self.sends.get(receive.member, ()))
        return [send for send in pending if send.tag == receive.tag]

    def take_message(self, receive: AnnouncedCall, source: int) -> AnnouncedCall | None:
        """The backend gave this receive a message from there."""
        if receive in self.deciding:
            self.deciding.remove(receive)
        for send in self.messages_for(receive):
            if send.member == source:
                self.sends[receive.member].remove(send)
                return send
        return None


def _present(calls: Iterable[Call | None]) -> list[AnnouncedCall]:
    return [call for call in calls if isinstance(call, AnnouncedCall)]
