"""What the referee writes into the journal: the calls that ranks announce, and what they tell
it.

Used by `remote_referee.py` and the codec. Ranks say when a thing happened, and are heard of in
no particular order: so an event has the time of its rank, and a lane of a ring is not in order.
What is known of a call comes in pieces: it is posted, it meets others, its rank says that it is
over. A rank's own clock is put on the referee's axis by `clocks`.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, Literal, NamedTuple

from phalanx.engines.referee.announced_calls import AnnouncedCall, AnnouncedMailbox, MetCalls
from phalanx.journal.events import (
    REDUCE_OPS,
    BufferTouched,
    CallId,
    Completed,
    GroupDestroyed,
    GroupMade,
    Met,
    Place,
    Posted,
    RankEnded,
    StoreRead,
    StoreWritten,
    WaitBegan,
    WaitEnded,
    Withdrawn,
    make,
)
from phalanx.journal.writer import MOST_PARTS, JournalWriter
from phalanx.matching.announcement import Form, GroupForm, signature_of
from phalanx.system import monotonic

MOST_OPEN = 4096
"""Calls of a rank whose end is waited for: of some that a program drops it never comes."""

_REDUCE_OPS = {name: code for code, name in enumerate(REDUCE_OPS)}


class FormFields(NamedTuple):
    """Fields of `Posted` that are the same for all calls of one form."""

    reduce_op: int | str | None
    device: int | None
    signature: Any


def fields_of(form: Form) -> FormFields:
    specs = (*form.inputs, *form.outputs)
    devices = (spec.device.partition(":") for spec in specs)
    device = next((int(number) for _, _, number in devices if number.isdigit()), None)
    signature: Any = (form.name, *specs) if form.is_message else signature_of(form)
    brief = signature is None or len(signature[-1] if form.tag is None else specs) < MOST_PARTS
    op = form.reduce_op
    code = None if op is None else _REDUCE_OPS.get(op, op)
    return FormFields(code, device, signature if brief else None)


class RemoteJournal(JournalWriter):
    """One for each call of the program on all ranks; groups and clocks go on. `time` and
    `thread` are those of what is being heard, by the referee's clock; None: now."""

    time: float | None = None
    thread = 0

    def __init__(
        self,
        size: int,
        mailboxes: Iterable[AnnouncedMailbox] = (),
        after: RemoteJournal | None = None,
    ) -> None:
        super().__init__(size, in_full=True, in_order=False, after=after)
        if after is not None:
            self.clocks = after.clocks
        self._undecided: dict[tuple[int, int], AnnouncedCall] = {}
        """Receives from any source, by rank and id of the call."""
        self._open: list[dict[int, AnnouncedCall]] = [{} for _ in range(size)]
        """Calls that are not over, by the id that their rank knows them by."""
        if after is not None:
            self._open = after._open
        self._batches = [0] * size
        self._ended: set[int] = set()
        for mailbox in mailboxes:
            mailbox.record.used = any(mailbox.next_number) or mailbox.messages > 0
            self.keep(mailbox.record)

    def _now(self) -> float:
        return monotonic() if self.time is None else self.time

    # -- calls ------------------------------------------------------------------------------

    def post(
        self, call: AnnouncedCall, fields: FormFields, *, asynchronous: bool = False
    ) -> None:
        """Before the call meets others, which gives it its number."""
        mailbox, form, rank = call.mailbox, call.form, call.rank
        ring = self.rings[rank]
        serial = call.serial = ring.posted
        ring.posted = serial + 1
        self._batches[rank] += form.begins_batch or not form.batched
        call.posted_at, call.thread, call.asynchronous = self._now(), self.thread, asynchronous
        if call.is_any_source:
            self._undecided[rank, call.call_id] = call
        open_calls = self._open[rank]
        open_calls[call.call_id] = call
        if len(open_calls) > MOST_OPEN:
            del open_calls[next(iter(open_calls))]
        ring.calls.append(
            make(
                Posted,
                (
                    call.posted_at,
                    rank,
                    call.thread,
                    form.site,
                    mailbox.record,
                    form.name,
                    serial,
                    call.member,
                    None if form.is_message else mailbox.next_number[call.member],
                    form.root,
                    form.peer,
                    form.tag,
                    fields.reduce_op,
                    asynchronous,
                    self._batches[rank] if form.batched else None,
                    fields.device,
                    fields.signature,
                ),
            )
        )

    def meet(self, calls: Sequence[AnnouncedCall], *, failed: bool = False) -> None:
        """A slot is complete, or messages have found their receives: these two by two. With
        `failed` they disagree, and their ranks are told so."""
        if calls and calls[0].number is not None:
            self._meet(calls, (), None, failed)
            return
        for one, other in zip(calls[::2], calls[1::2], strict=False):
            send, receive = (one, other) if one.name == "send" else (other, one)
            self._undecided.pop((receive.rank, receive.call_id), None)
            self._meet((send, receive), (_id(send), _id(receive)), send.member, failed)

    def receive(self, rank: int, call_id: int, source: int, send: AnnouncedCall | None) -> None:
        """What a receive from any source took: the rank tells when it knows."""
        receive = self._undecided.pop((rank, call_id), None)
        if receive is not None:
            calls = (receive,) if send is None else (send, receive)
            self._meet(calls, tuple(map(_id, calls)), source, failed=False)

    def _meet(
        self,
        members: Sequence[AnnouncedCall],
        calls: tuple[CallId, ...],
        source: int | None,
        failed: bool,
    ) -> None:
        last = next((call for call in members if call.came_last), None)
        last = last or max(members, key=lambda call: call.posted_at)
        when = max(call.posted_at for call in members)
        record, site = last.mailbox.record, last.form.site if not calls else None
        event = (when, last.rank, last.thread, site, record, last.number, calls, source)
        self._flow(last.rank, make(Met, event))
        meeting = MetCalls(last, calls)
        now = self._now() if failed else 0.0
        for call in members:
            call.meeting = meeting
            if failed:
                self._open[call.rank].pop(call.call_id, None)
                self._go_on(call, now, met=True)
                call.over = now, True
            self._complete(call)

    def wait(self, call: AnnouncedCall) -> None:
        """The rank waits. For a call that blocks it does so from the `posted` event on, which
        says it all."""
        self._wait(call, self._now())

    def _wait(self, call: AnnouncedCall, when: float) -> None:
        if not call.is_waiting:
            call.is_waiting = True
            if call.asynchronous:
                self._flow(call.rank, make(WaitBegan, (when, *_about(call))))

    def give_up(self, call: AnnouncedCall) -> None:
        """The rank waits no longer, though nothing has come."""
        self._go_on(call, self._now(), met=False)

    def _go_on(self, call: AnnouncedCall, when: float, *, met: bool) -> None:
        if call.is_waiting:
            call.is_waiting = False
            self._flow(call.rank, make(WaitEnded, (when, *_about(call), met)))

    def _complete(self, call: AnnouncedCall) -> None:
        """Whoever came last tells when the call is complete; if it did not wait for that, the
        first that did."""
        meeting = call.meeting
        if meeting is None or meeting.is_complete or call.over is None:
            return
        if call is not meeting.last and not meeting.last.asynchronous:
            return
        meeting.is_complete = True
        when, failed = call.over
        record, number = call.mailbox.record, call.number
        event = (when, call.rank, call.thread, None, record, number, meeting.calls, failed)
        self._flow(call.rank, make(Completed, event))

    def _flow(self, rank: int, event: Any) -> None:
        ring = self.rings[rank]
        ring.flowed += 1
        ring.flow.append(event)

    def withdraw(self, call: AnnouncedCall) -> None:
        """The rank gave up, and nobody meets its message any more."""
        if call.serial is not None:
            self.add(Withdrawn(self._now(), *_about(call)))

    # -- what ranks say of calls ------------------------------------------------------------

    def waits(self, rank: int, call_id: int, when: float) -> None:
        """The rank begins to wait for a call of before."""
        call = self._open[rank].get(call_id)
        if call is not None:
            self._wait(call, when)

    def open_call(self, rank: int, call_id: int) -> AnnouncedCall | None:
        """A call that is not over, as far as its rank has said."""
        return self._open[rank].get(call_id)

    def over(self, rank: int, call_id: int, when: float, *, failed: bool) -> None:
        """The rank knows that its part of a call has ended."""
        call = self._open[rank].pop(call_id, None)
        if call is not None:
            self._go_on(call, when, met=not failed)
            call.over = when, failed
            self._complete(call)

    # -- the rest ---------------------------------------------------------------------------

    def made(
        self,
        rank: int,
        mailbox: AnnouncedMailbox,
        form: GroupForm,
        site: Place = None,
        *,
        by_program: bool,
    ) -> None:
        """A rank has its end of a group."""
        member = form.member
        if member not in mailbox.made:
            mailbox.made.add(member)
            head = (self._now(), rank, self.thread, site)
            self.add(GroupMade(*head, mailbox.record, member, form.default, by_program))

    def destroyed(
        self,
        rank: int,
        mailbox: AnnouncedMailbox,
        site: Place,
        world: AnnouncedMailbox | None,
        calls: int,
    ) -> None:
        """A rank has destroyed its end of a group, after so many calls on the default group."""
        head = (self._now(), rank, self.thread, site)
        of_world = None if world is None else world.record
        self.add(GroupDestroyed(*head, mailbox.record, world is mailbox, of_world, calls))

    def use_store(self, rank: int, kind: type[Any], site: Place, fields: Any) -> None:
        self._flow(rank, kind(self._now(), rank, self.thread, site, *fields))

    def touched(self, rank: int, site: Place, call_id: int | None, how: str) -> None:
        call = None if call_id is None else self._open[rank].get(call_id)
        ident = None if call is None else _id(call)
        self.add(BufferTouched(self._now(), rank, self.thread, site, ident, how))

    def end_rank(self, rank: int, how: str, error: str) -> None:
        """Of a rank that has told so itself, that counts."""
        if rank not in self._ended:
            self._ended.add(rank)
            self.add(RankEnded(self._now(), rank, 0, None, how, error[:80]))

    def note(
        self, rank: int, lane: Literal["notes", "rare"], events: Sequence[Any], offset: float
    ) -> None:
        """What the rank wrote into this lane of a ring of its own, by a clock that differs by
        `offset`."""
        ring = self.rings[rank]
        for event in events:
            here = event._replace(time=event.time + offset, rank=rank)
            (ring.note if lane == "notes" else ring.add)(here)


STORE_EVENTS = {"store-written": StoreWritten, "store-read": StoreRead}


def _id(call: AnnouncedCall) -> CallId:
    assert call.serial is not None
    return call.rank, call.serial


def _about(call: AnnouncedCall) -> tuple[Any, ...]:
    """The fields of an event about one call, after its time."""
    ident = None if call.serial is None else (call.rank, call.serial)
    return call.rank, call.thread, call.form.site, call.mailbox.record, ident
