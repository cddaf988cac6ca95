"""What the referee writes into the journal: the calls that ranks announce, and what they told
it.

Used by `remote_referee.py`. Ranks are heard of in no particular order, and a rank that is done
with one call may announce the next before another is heard of, so times tell when the referee
heard; the order of one rank's own events is right. What the real backend does with a call is
not seen: there are no completions.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, Literal

from phalanx.engines.referee.announced_calls import AnnouncedCall, AnnouncedMailbox
from phalanx.journal.events import (
    GroupMade,
    Met,
    Noted,
    Posted,
    RankEnded,
    WaitBegan,
    WaitEnded,
    Withdrawn,
    make,
)
from phalanx.journal.writer import MOST_PARTS, JournalWriter
from phalanx.system import monotonic

UNKNOWN_THREAD = -1
"""Of a rank that calls in several threads: which one it was is not known here."""


class RemoteJournal(JournalWriter):
    """One for each call of the program on all ranks; groups go on."""

    def __init__(
        self,
        size: int,
        mailboxes: Iterable[AnnouncedMailbox] = (),
        after: RemoteJournal | None = None,
    ) -> None:
        super().__init__(size, in_full=True, in_order=False, after=after)
        self._undecided: dict[tuple[int, int], AnnouncedCall] = {}
        """Receives from any source, by rank and id of the call."""
        self._batches = [0] * size
        for mailbox in mailboxes:
            mailbox.record.used = any(mailbox.next_number) or mailbox.messages > 0
            self.keep(mailbox.record)

    def made(self, rank: int, mailbox: AnnouncedMailbox, member: int) -> None:
        """A rank has its end of a group."""
        record = mailbox.record
        default = record.name == "world"
        self.add(GroupMade(monotonic(), rank, 0, None, record, member, default))

    def post(
        self, call: AnnouncedCall, *, asynchronous: bool = False, threads: int = 1
    ) -> None:
        """Before the call meets others, which gives it its number."""
        mailbox, form, rank = call.mailbox, call.form, call.rank
        ring = self.rings[rank]
        serial = call.serial = ring.posted
        ring.posted = serial + 1
        self._batches[rank] += not form.batched
        if call.is_any_source:
            self._undecided[rank, call.call_id] = call
        specs = (*form.inputs, *form.outputs)
        ring.calls.append(
            make(
                Posted,
                (
                    monotonic(),
                    rank,
                    0 if threads == 1 else UNKNOWN_THREAD,
                    form.site,
                    mailbox.record,
                    form.name,
                    serial,
                    call.member,
                    None if form.is_message else mailbox.next_number[call.member],
                    form.root,
                    form.peer,
                    form.tag,
                    form.reduce_op,
                    asynchronous,
                    # Batches with nothing between them are taken for one.
                    self._batches[rank] if form.batched else None,
                    None,
                    (form.name, *specs) if len(specs) < MOST_PARTS else None,
                ),
            )
        )

    def meet(self, calls: Sequence[AnnouncedCall]) -> None:
        """A slot is complete, or messages have found their receives: these two by two."""
        if calls and calls[0].number is not None:
            last = calls[-1]
            self._flow(
                Met, last, (monotonic(), last.rank, 0, None, last.mailbox.record, last.number)
            )
            return
        for one, other in zip(calls[::2], calls[1::2], strict=False):
            send, receive = (one, other) if one.name == "send" else (other, one)
            self._undecided.pop((receive.rank, receive.call_id), None)
            self._meet(send, receive, send.member)

    def receive(self, rank: int, call_id: int, source: int) -> None:
        """What a receive from any source took: the rank tells when it knows."""
        receive = self._undecided.pop((rank, call_id), None)
        if receive is not None:
            self._meet(None, receive, source)

    def _meet(self, send: AnnouncedCall | None, receive: AnnouncedCall, source: int) -> None:
        calls = tuple((call.rank, call.serial) for call in (send, receive) if call is not None)
        record = receive.mailbox.record
        event = (monotonic(), receive.rank, 0, None, record, None, calls, source)
        self._flow(Met, receive, event)

    def wait(self, call: AnnouncedCall) -> None:
        """The rank waits until it is answered."""
        call.is_waiting = True
        self._flow(WaitBegan, call, self._of(call))

    def go_on(self, call: AnnouncedCall, *, met: bool) -> None:
        """It is answered."""
        if call.is_waiting:
            call.is_waiting = False
            self._flow(WaitEnded, call, (*self._of(call), met))

    def _of(self, call: AnnouncedCall) -> tuple[Any, ...]:
        ident = None if call.serial is None else (call.rank, call.serial)
        return monotonic(), call.rank, 0, call.form.site, call.mailbox.record, ident

    def _flow(self, kind: type[Any], call: AnnouncedCall, fields: tuple[Any, ...]) -> None:
        ring = self.rings[call.rank]
        ring.flowed += 1
        ring.flow.append(kind(*fields))

    def withdraw(self, call: AnnouncedCall) -> None:
        """The rank gave up, and nobody meets its message any more."""
        if call.serial is not None:
            self.add(Withdrawn(*self._of(call)))

    def end_rank(self, rank: int, how: Literal["finished", "failed"], error: str) -> None:
        name = error.partition(":")[0] if how == "failed" else ""
        self.add(RankEnded(monotonic(), rank, 0, None, how, name[:80]))

    def note(self, rank: int, kind: str, what: Any) -> None:
        """What only the rank could see, for the check of that name."""
        self.add(Noted(monotonic(), rank, 0, None, kind, what))
