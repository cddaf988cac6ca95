"""Calls that ranks in other processes announce, and the mailboxes of their groups.

Used by `remote_referee.py`. `matching/slots.py` says how calls meet; this adds who announced
them, and receives from any source, of which only the real backend decides what they take. Must
never decide what is right or wrong.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

from phalanx.checks.call_paths import with_paths
from phalanx.checks.error_handlers import with_handled
from phalanx.checks.message_race import MOST_TAKEN, Taken, hint_taken
from phalanx.journal.events import CallId
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
from phalanx.matching.waitgraph import Node
from phalanx.model import Op, RankView, Verdict, Wait


class AnnouncedCall(Call):
    """One announced call. `asked` says that its rank waits for an answer about it, `timed`
    that it counts on a time of its own; `entered` that the backend has the call already. For
    the journal: `came_last` says that it completed its slot, `over` when it ended and whether
    by a failure."""

    asked = False
    timed = False
    entered = False
    gave_up = ""
    """Why its rank takes no part any more: what became of the call."""
    lost = ""
    """Why it can never be met, once another member gave it up."""
    is_waiting = False
    came_last = False
    posted_at = 0.0
    thread = 0
    meeting: MetCalls | None = None
    over: tuple[float, bool] | None = None
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


class MetCalls:
    """Calls that have met: the one that came last, and the send and the receive if it is a
    message."""

    __slots__ = ("calls", "is_complete", "last")

    def __init__(self, last: AnnouncedCall, calls: tuple[CallId, ...]) -> None:
        self.last = last
        self.calls = calls
        self.is_complete = False


class Exchange(NamedTuple):
    """What comes of a message or a receive: the send and the receive that have `met`; or
    receives from any source for which there is a message, of which the backend decides. With
    `undecided` it also decides what becomes of the call itself."""

    met: tuple[AnnouncedCall, AnnouncedCall] | None = None
    receives: Sequence[AnnouncedCall] = ()
    undecided: bool = False


_NO_STRAND: Any = None
"""Nobody parks here: the ranks wait in their own processes."""


class AnnouncedMailbox(GroupMailbox):
    """The mailbox of a group whose real backend decides what receives from any source take."""

    def __init__(self, form: GroupForm, size: int) -> None:
        world = form.name == "0" and len(form.ranks) == size
        super().__init__("world" if world else f"group {form.name}", form.ranks)
        self.form = form
        self.record.backend, self.record.eager = form.backend, form.eager
        self.record.description = form.description
        self.made: set[int] = set()
        """Members of which the journal knows that they have made it."""
        self.deciding: list[AnnouncedCall] = []
        """Receives from any source for which there is a message, or several: the backend
        decides which, and the receiver tells."""
        self.taken: deque[tuple[AnnouncedCall, int]] = deque(maxlen=MOST_TAKEN)
        """The last of them, and whose message each took: a place in the group."""

    # -- receives from any source -----------------------------------------------------------

    def exchange(self, call: AnnouncedCall) -> Exchange:
        """A message or a receive has come: see what it meets, and put it where it waits if
        that is nothing yet. Of two members the other one is the only source."""
        sending = call.name == "send"
        if call.is_any_source and self.size == 2:
            call.peer = 1 - call.member
        if self.is_undecided(call):
            self.post(call)
            return Exchange(undecided=True)
        if call.is_any_source and self.messages_for(call):
            return Exchange(receives=[call])
        if sending and (open_ones := self.open_receives_from_any(call.peer, call.tag)):
            for receive in open_ones:
                self.withdraw(receive)
            self.post(call)
            return Exchange(receives=open_ones, undecided=True)
        other = self.post_send(call) if sending else self.post_receive(call)
        if not isinstance(other, AnnouncedCall):
            return Exchange()
        return Exchange(met=(call, other) if sending else (other, call))

    def settle_after(
        self, decided: AnnouncedCall
    ) -> tuple[list[AnnouncedCall], list[AnnouncedCall]]:
        """A receive from any source has taken its message: sends and receives, in turn, that
        have met thereby, and receives from any source for which there is a message now."""
        if self.is_undecided(decided):
            return [], []
        met = self.match_rest(decided)
        waiting = self.open_receives_from_any(decided.member, decided.tag)
        if not self.messages_for(decided):
            return met, []
        for each in waiting:
            self.withdraw(each)
        return met, waiting

    def is_undecided(self, call: AnnouncedCall) -> bool:
        """Whether a receive from any source may take this message, or take what this receive
        waits for: then only the backend knows."""
        receiver = call.member if call.name == "recv" else call.peer
        return call.form.is_message and any(
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


class AnnouncedReader(CallReader):
    """Knows which messages receives from any source took."""

    def taken_before(self, call: Call, op: Op) -> str | None:
        mailbox = call.mailbox
        if op.name != "recv" or op.peer is None or not isinstance(mailbox, AnnouncedMailbox):
            return None
        taken = [
            Taken(describe_call(receive, self), mailbox.ranks[source], 0, 0)
            for receive, source in mailbox.taken
            if receive.member == call.member and receive.tag == call.tag
        ]
        return hint_taken(taken, op)


def wait_in(call: AnnouncedCall) -> Wait:
    """What its rank needs before it can go on."""
    reader = AnnouncedReader()
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


def missing_in(call: AnnouncedCall) -> tuple[int, ...]:
    """Whom a `new_group` waits for."""
    assert call.creation is not None
    return call.creations.missing(call.creation)


def node_of(call: AnnouncedCall, *, free: bool) -> Node:
    """As the wait graph has it; `free` says that the rank can move in another way."""
    wait = wait_in(call)
    free = free or not (wait.needs or wait.any_of)
    return Node(call.rank, f"call {call.call_id}", wait.needs, wait.any_of, free=free)


def waiting_view(call: AnnouncedCall) -> RankView:
    """The rank as one that waits in this call."""
    wait = wait_in(call)
    return RankView(call.rank, "waiting", wait, wait.op)


def with_evidence(verdict: Verdict | None, calls: Iterable[AnnouncedCall]) -> Verdict | None:
    """With what is known of the ways by which ranks came to these calls, and of the errors that
    they were handling there."""
    if verdict is None:
        return None
    made = list(calls)
    found = with_paths(verdict, {call.rank: call.form.stack for call in made})
    handling = {call.rank: call.form.handling for call in made if call.form.handling}
    return with_handled(found, handling)
