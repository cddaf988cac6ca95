"""Calls that ranks in other processes announce, and the mailboxes of their groups.

Used by `remote_referee.py`. `matching/slots.py` says how calls meet; this adds who announced
them, and receives from any source, of which only the real backend decides what they take. Must
never decide what is right or wrong.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from typing import Any

from phalanx.matching.announcement import Form, GroupForm
from phalanx.matching.descriptions import (
    CallReader,
    describe_call,
    describe_wait,
    partners_of,
    wait_for,
)
from phalanx.matching.groups import Creation, GroupCreations
from phalanx.matching.mailboxes import GroupMailbox
from phalanx.matching.slots import Call
from phalanx.model import Op, Wait


class AnnouncedCall(Call):
    """One announced call. `asked` says that its rank waits for an answer about it, `timed`
    that it counts on a time of its own; `entered` that the backend has the call already."""

    asked = False
    timed = False
    entered = False
    gave_up = False
    is_waiting = False
    verdict: Any = None
    creation: Creation | None = None
    """What it is in `creations`, if it is a `new_group`."""
    creations: GroupCreations
    mailbox: AnnouncedMailbox

    def __init__(
        self, mailbox: AnnouncedMailbox, rank: int, call_id: int, form: Form, member: int
    ) -> None:
        site: Any = form.site  # a `CallReader` takes it as it is
        super().__init__(mailbox, member, _NO_STRAND, form.name, site)
        self.rank = rank
        self.call_id = call_id
        self.form = form
        self.peer, self.tag, self.root, self.op = form.peer, form.tag, form.root, form.reduce_op
        self.inputs, self.outputs = form.inputs, form.outputs
        self.facts = form.input_splits, form.output_splits

    @property
    def is_any_source(self) -> bool:
        return self.name == "recv" and self.peer is None


_NO_STRAND: Any = None
"""Nobody parks here: the ranks wait in their own processes."""


class AnnouncedMailbox(GroupMailbox):
    """The mailbox of a group whose real backend decides what receives from any source take."""

    def __init__(self, form: GroupForm, size: int) -> None:
        world = form.name == "0" and len(form.ranks) == size
        super().__init__("world" if world else f"group {form.name}", form.ranks)
        self.form = form
        self.record.backend, self.record.eager = form.backend, form.eager
        self.deciding: list[AnnouncedCall] = []
        """Receives from any source for which there is a message, or several: the backend
        decides which, and the receiver tells."""

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


def wait_in(call: AnnouncedCall) -> Wait:
    """What its rank needs before it can go on."""
    reader = CallReader()
    if call.creation is not None:
        return call.creations.wait_in(call.creation)
    if not call.form.is_message:
        return describe_wait(call, reader)
    needs, any_of = partners_of(call)
    return wait_for(call, reader, needs=needs, any_of=any_of)


def last_op(call: AnnouncedCall) -> Op:
    """Without the tensors of a call that was waited for at once, as the threads engine has
    it."""
    op = describe_call(call, CallReader())
    return op if call.entered else replace(op, inputs=(), outputs=())
