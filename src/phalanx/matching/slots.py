"""Calls in flight, and the slots in which those of one collective meet. No torch, no waiting.

A `Call` is one rank's op in flight. The n-th collective of each member on a group meets in slot
n, whatever it is: whether the calls agree is judged by the referee, when the last member has
arrived. `mailboxes.py` holds the open slots of a group.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from phalanx.callsite import Mark
from phalanx.core.strand import Strand

if TYPE_CHECKING:
    from phalanx.matching.mailboxes import GroupMailbox


class Call:
    """One op in flight: who called what, with which buffers, and whether it is done.

    Defaults stand on the class, because a call is made for every op and most of them need
    few of these. `facts` are an op's own (splits); `point` is where its rank's stream stands,
    then where its data has moved, and `device` the index of its device. `batch` is equal for
    ops that are launched at once.
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
    point: Any = None
    facts: Any = None
    uneven = False
    plain = False
    """Whether it is known to have one input, and perhaps one output, that lie in memory as
    usual, and apart."""
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
    stamp: Any = None
    """In a run that is explored: what its rank had heard of when it made the call."""
    heard: Any = None
    """The stamps of all that it has met."""
    polls = 0
    """How often the program has asked there whether it is complete, in vain or not."""
    polled_at = 0
    """How many calls its rank had made when it last did."""
    seen_done = False
    """Whether the program has seen by asking that it is."""
    put_off: Any = None
    """Set while all members are there and the data is to move later."""

    def __init__(
        self, mailbox: GroupMailbox, member: int, strand: Strand, name: str, mark: Mark | None
    ) -> None:
        self.mailbox = mailbox
        self.member = member
        self.strand = strand
        self.name = name
        self.mark = mark

    @classmethod
    def of_parts(cls, parts: list[Call]) -> Call:
        """A call that is done when all of `parts` are, with the first error among them."""
        last = parts[-1]
        whole = cls(last.mailbox, last.member, last.strand, "coalesced", last.mark)
        whole.outputs = [tensor for part in parts for tensor in part.outputs or part.inputs]
        whole.point, whole.device = last.point, last.device
        whole.parts = parts
        whole.asynchronous = True
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


def finish_all(calls: Sequence[Call], errors: Sequence[Exception] | None) -> None:
    """The ops of all members of a collective are complete, with `errors` for each."""
    if errors is not None:
        for call, error in zip(calls, errors, strict=True):
            call.finish(error)
        return
    woken: list[Strand] = []
    for call in calls:
        if call.callbacks or call.whole is not None:
            break
        woken += call.waiters or ()
    else:  # the usual case, with one look at the mutex
        for call in calls:
            call.done = True
            call.waiters = None
        calls[0].strand.baton.wake_all(woken)
        return
    for call in calls:
        call.finish()


class Slot:
    """The calls that belong to one collective, by place in the group."""

    __slots__ = ("arrived", "calls", "clash", "mark", "number", "signature")

    def __init__(self, number: int, size: int, signature: Any, mark: Mark | None) -> None:
        self.number = number
        self.calls: list[Call | None] = [None] * size
        self.arrived = 0
        self.signature = signature
        self.mark = mark
        self.clash = False
