"""Describe calls in the words of `phalanx.model`: ops, and what a wait needs.

Every engine keeps calls as `slots.Call` in group mailboxes, but in its own material: the
threads engine keeps tensors and code marks, the others keep specs and sites that travelled. A
`CallReader` translates the material; everything else is the same for all of them and is here.
Nothing here decides whether calls fit.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator
from typing import Any

from phalanx.journal.events import REDUCE_OPS, Posted
from phalanx.matching.mailboxes import GroupMailbox
from phalanx.matching.slots import Call, Slot
from phalanx.model import Group, Op, Site, TensorSpec, Wait


class CallReader:
    """Reads calls whose material is in the words of `phalanx.model` already.

    A reader lives for one look, while nothing moves: what many calls have in common (a group,
    the missing members of a slot) is found out once.
    """

    def __init__(self) -> None:
        self._groups: dict[int, Group] = {}
        self._missing: dict[int, tuple[int, ...]] = {}

    def group(self, mailbox: GroupMailbox) -> Group:
        found = self._groups.get(id(mailbox))
        if found is None:
            found = self._groups[id(mailbox)] = Group(mailbox.record.title, mailbox.ranks)
        return found

    def missing(self, mailbox: GroupMailbox, slot: Slot) -> tuple[int, ...]:
        """The ranks that have not come to a slot; none if it is not known who they are. Equal
        for all that ask, not only the same: a thousand ranks that wait in one slot share one
        tuple."""
        found = self._missing.get(id(slot))
        if found is None:
            members = [member for member, there in enumerate(slot.calls) if there is None]
            found = ranks_of(mailbox, members)
            self._missing[id(slot)] = found
        return found

    def site(self, mark: Any) -> Site | None:
        found: Site | None = mark
        return found

    def reduce_op(self, op: Any) -> str | None:
        found: str | None = op
        return found

    def specs(self, tensors: Any) -> tuple[TensorSpec, ...]:
        return tuple(tensors)

    def taken_before(self, call: Call, op: Op) -> str | None:
        """What to say if a receive from any source took the message that this one needs."""
        return None


def describe_call(call: Call, reader: CallReader) -> Op:
    mailbox = call.mailbox
    splits = call.facts or ((), ())
    return Op(
        rank=mailbox.ranks[call.member],
        name=call.name,
        group=reader.group(mailbox),
        number=call.number,
        root=None if call.root is None else mailbox.ranks[call.root],
        reduce_op=reader.reduce_op(call.op),
        peer=None if call.peer is None else mailbox.ranks[call.peer],
        tag=call.tag,
        inputs=reader.specs(call.inputs),
        outputs=reader.specs(call.outputs),
        input_splits=splits[0],
        output_splits=splits[1],
        site=reader.site(call.mark),
    )


def describe_earlier(call: Posted, mailbox: GroupMailbox, reader: CallReader) -> Op:
    """A collective of the journal, with the name that its group has for the program."""
    code = call.reduce_op
    return Op(
        rank=call.rank,
        name=call.name,
        group=reader.group(mailbox),
        number=call.number,
        root=None if call.root is None else mailbox.ranks[call.root],
        reduce_op=REDUCE_OPS[code] if isinstance(code, int) else code,
        site=reader.site(call.mark),
    )


def describe_wait(call: Call, reader: CallReader) -> Wait:
    """What a call that is not complete needs."""
    needs, any_of = needs_of(call, reader)
    left = parts_of(call) if call.parts_left else ()
    return wait_for(left[0] if left else call, reader, needs=needs, any_of=any_of)


def wait_for(call: Call, reader: CallReader, *, needs: tuple[int, ...], any_of: bool) -> Wait:
    """A wait in this call for these ranks, with the messages that nearly fit."""
    op = describe_call(call, reader)
    taken = reader.taken_before(call, op)
    near = tuple(_near_misses(call)) if call.number is None else ()
    near = near if taken is None else (taken, *near)
    return Wait(op, needs, any_of=any_of, near=near, robbed=taken is not None)


def needs_of(call: Call, reader: CallReader) -> tuple[tuple[int, ...], bool]:
    """The ranks that a call needs, and whether any one of them is enough. No ranks, and not
    any: it is about to complete."""
    mailbox = call.mailbox
    if call.parts_left:
        parts = [needs_of(part, reader) for part in parts_of(call)]
        one_of = [part for part in parts if part[1]]
        return one_of[0] if one_of else (tuple({r for needs, _ in parts for r in needs}), False)
    if call.done:
        return (), False
    if call.number is not None:
        slot = mailbox.slots.get(call.number)
        return (reader.missing(mailbox, slot) if slot is not None else ()), False
    if call.name == "send" and call.peer is not None:
        pending = mailbox.sends.get(call.peer, ())
    else:
        pending = mailbox.receives.get(call.member, ())
    if call not in pending:
        return (), False  # it has met its counterpart, and is put off
    return partners_of(call)


def partners_of(call: Call) -> tuple[tuple[int, ...], bool]:
    """The ranks that a message may meet, and whether any one of them is enough. None, and not
    any, if it is not known who they are."""
    mailbox = call.mailbox
    if call.peer is not None:
        return ranks_of(mailbox, (call.peer,)), False
    members = [at for at in range(mailbox.size) if at != call.member]
    others = ranks_of(mailbox, members)
    return others, len(others) == len(members)


def ranks_of(mailbox: GroupMailbox, members: Collection[int]) -> tuple[int, ...]:
    """Which ranks these are; none if that is not known of one of them, so that nothing is
    proved from it."""
    if mailbox.is_renumbered and not all(map(mailbox.is_known, members)):
        return ()
    ranks = mailbox.ranks
    return tuple(ranks[member] for member in members)


def parts_of(call: Call) -> list[Call]:
    """What is left of a coalesced batch."""
    return [part for part in call.mailbox.open_calls() if part.whole is call]


def describe_pending_sends(mailboxes: Iterable[GroupMailbox], reader: CallReader) -> list[Op]:
    """The messages that nobody has received."""
    return [
        describe_call(send, reader)
        for mailbox in list(mailboxes)
        for sent in list(mailbox.sends.values())
        for send in sent
    ]


def _near_misses(call: Call) -> Iterator[str]:
    """Pending messages between the same two ranks that do not fit."""
    mailbox = call.mailbox
    me = mailbox.ranks[call.member]
    if call.name == "recv":
        for send in mailbox.sends.get(call.member, ()):
            if send.tag != call.tag:
                sender = mailbox.ranks[send.member]
                yield f"rank {sender} sent tag {send.tag}; rank {me} waits for tag {call.tag}"
    elif call.peer is not None:
        for receive in mailbox.receives.get(call.peer, ()):
            if receive.tag != call.tag and receive.peer in (None, call.member):
                other = mailbox.ranks[call.peer]
                yield f"rank {me} sent tag {call.tag}; rank {other} waits for tag {receive.tag}"
