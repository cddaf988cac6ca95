"""Find messages that are swapped: two of one shape, between the same ranks, one for the other.

Messages of one sender, receiver and tag are paired in their order, on Gloo and on NCCL alike.
So in a ring of two ranks, where previous and next are one rank, the receive from the next one
gets what was sent to the next one, unless receives are posted in the order of the other side's
sends. The program's text says what each call means (`message_text.py`), and notes say where the
loops around it stand (`message_loops.py`). The journal is read when the run has ended.

| two messages from rank a to rank b, in order                     | verdict                   |
|-------------------------------------------------------------------|--------------------------|
| sent to next, then to prev; received from next, then from prev;   |                          |
| other tensors on both sides                                       | swapped                  |
| sent to next, then to prev; received from prev, then from next    | legal: a ring            |
| one tensor is sent both ways, or received into                    | legal: exchanged alike   |
| sent x, then y; received into y, then into x, each rank in one    |                          |
| pass, without a branch between the two                            | swapped                  |
| the same, where the receiver's names say more (`next_x`, `y_in`)  | swapped                  |
| the same, where x and y are directions or sides (left, bottom)    | legal: edges and halos   |
| the same, where only a letter (but `q`, `k`, `v`) or a number     |                          |
| tells x from y                                                    | legal: double buffers    |
| `state[name]` in loops over the words `name`, in other orders     | swapped                  |
| loops over parameters or buffers of modules of one class, in      |                          |
| other orders; words tell their names apart                        | swapped                  |
| a tag made of a variable of loops, alike on both ranks, and equal |                          |
| for two values of it, which the loops take in other orders        | swapped                  |
| loops over numbers that the tag is not made of                    | legal: kept as they come |
| other tags, any source, calls that the journal has forgotten      | nothing is said          |
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from phalanx.checks.order.message_loops import NO_LOOPS, Loops, loops_of, with_places
from phalanx.checks.order.message_text import (
    UNKNOWN,
    MessageText,
    direction_of_words,
    names_in,
    place_of,
    text_of_message,
    texts_of_batch,
)
from phalanx.journal.events import GroupRecord, Posted
from phalanx.journal.reader import Journal
from phalanx.model import CallBlock, Finding
from phalanx.source_text import lines_together, tree_of_text

KIND: Literal["crossed-order"] = "crossed-order"
NEAR = 4
"""Of so many messages in a row two may be swapped."""
MOST = 256
"""How many messages of one way are looked at."""

_LETTERS = frozenset("qkv")
"""Of attention: they say what a tensor is, where other letters number buffers."""
_ROLES = frozenset(
    (
        *("in", "out", "input", "output", "inp", "incoming", "outgoing"),
        *("send", "sent", "sending", "recv", "recvd", "received", "receive", "rx", "tx"),
        *("next", "nxt", "prev", "prv", "previous", "new", "old", "cur", "current"),
        *("my", "own", "local", "remote", "peer", "other", "tmp", "temp"),
        *("buf", "buffer", "tensor", "self"),
    )
)
"""Words that say on which side of a message a tensor is, and not what is in it."""
_MIRRORED = frozenset(
    (
        *("top", "bottom", "front", "back", "head", "tail", "first", "last", "start", "end"),
        *("lo", "hi", "low", "high", "src", "dst", "source", "target", "mine", "theirs"),
        *("fwd", "bwd", "forward", "backward", "inner", "outer", "ping", "pong"),
        *("red", "black", "white", "odd", "even", "client", "server", "active", "shadow"),
    )
)
"""Words for two sides: what is at one rank's top goes to the other's bottom."""

Way = tuple[GroupRecord, int, int, int | None]
"""The group, the rank that sends, the one that receives, and the tag."""


@dataclass
class _Traffic:
    sends: list[Posted] = field(default_factory=list)
    receives: list[Posted] = field(default_factory=list)

    def is_noted(self, keys: dict[Any, Loops]) -> bool:
        """Whether messages of a loop are among either's."""
        return all(any(x.call in keys for x in ends) for ends in (self.sends, self.receives))

    def has_lines(self) -> bool:
        """Whether either side has several lines, or a batch, which has several on one."""
        return all(
            len({each.mark for each in ends}) > 1 or ends[0].batch is not None
            for ends in (self.sends, self.receives)
        )


@dataclass(frozen=True)
class Message:
    """The two ends of a message, and what the text says about each."""

    send: Posted
    receive: Posted
    sent: MessageText
    received: MessageText
    sent_in: Loops = NO_LOOPS
    received_in: Loops = NO_LOOPS


def find_crossed_messages(journal: Journal) -> Iterator[Finding]:
    """The first two messages of each group that are swapped, if any."""
    told: set[GroupRecord] = set()
    texts: dict[Any, MessageText] = {}
    loops = loops_of(journal)
    journal = with_places(journal)
    for way, traffic in _traffic_of(journal).items():
        if way[0] in told or not (traffic.sends and traffic.receives):
            continue
        is_telling = traffic.has_lines() or traffic.is_noted(loops)
        if is_telling and journal.has_all_calls():
            if not texts:
                texts = _texts_of(journal)
            ends = zip(traffic.sends[:MOST], traffic.receives[:MOST], strict=False)
            met = [
                Message(
                    *(a, b, texts[a.call], texts[b.call]),
                    *(loops.get(end.call, NO_LOOPS) for end in (a, b)),
                )
                for a, b in ends
            ]
            for found in _find_swapped(met):
                told.add(way[0])
                yield found
                break


def _traffic_of(journal: Journal) -> dict[Way, _Traffic]:
    found: dict[Way, _Traffic] = defaultdict(_Traffic)
    open_to_all: set[tuple[GroupRecord, int, int | None]] = set()
    for rank in range(journal.ranks):
        for call in journal.calls(rank):
            if call.number is not None or call.name not in ("send", "recv"):
                continue
            if call.peer is None:
                open_to_all.add((call.group, rank, call.tag))
                continue
            peer = call.group.ranks[call.peer]
            if call.name == "send":
                found[call.group, rank, peer, call.tag].sends.append(call)
            else:
                found[call.group, peer, rank, call.tag].receives.append(call)
    return {
        way: each for way, each in found.items() if (way[0], way[2], way[3]) not in open_to_all
    }


def _texts_of(journal: Journal) -> dict[Any, MessageText]:
    """What the text says about each message, by call."""
    found: dict[Any, MessageText] = defaultdict(lambda: UNKNOWN)
    for rank in range(journal.ranks):
        batches: dict[int, list[Posted]] = {}
        for call in journal.calls(rank):
            if call.number is not None or call.name not in ("send", "recv"):
                continue
            if call.batch is not None:
                batches.setdefault(call.batch, []).append(call)
            else:
                found[call.call] = text_of_message(call.mark, call.name)
        for calls in batches.values():
            place = place_of(calls[0].mark)
            if place is not None and all(call.mark == calls[0].mark for call in calls):
                names = tuple(call.name for call in calls)
                texts = texts_of_batch(*place[:2], names)
                found.update(zip((call.call for call in calls), texts, strict=True))
    return found


def _find_swapped(met: Sequence[Message]) -> Iterator[Finding]:
    for at, one in enumerate(met):
        for other in met[at + 1 : at + NEAR]:
            for ends in (_items(one, other), _parts(one, other)):
                if _by_key(one, other, ends):
                    yield _other_keys(one, other, ends)
                    return
            name = _by_tag(one, other)
            if name is not None:
                yield _same_tag(one, other, name)
                return
            if one.sent.tensor == other.sent.tensor:
                continue
            if one.received.tensor == other.received.tensor:
                continue
            if None in (one.sent.tensor, other.sent.tensor):
                continue
            if None in (one.received.tensor, other.received.tensor):
                continue
            if _by_direction(one, other):
                yield _same_neighbour(one, other)
            elif _by_name(one, other):
                yield _other_names(one, other)


Ends = tuple[tuple[str | None, str | None], tuple[str | None, str | None]]
"""What two messages are called where they are sent, and where they are received."""


def _items(one: Message, other: Message) -> Ends:
    sent = one.sent_in.item, other.sent_in.item
    return sent, (one.received_in.item, other.received_in.item)


def _parts(one: Message, other: Message) -> Ends:
    sent = one.sent_in.part, other.sent_in.part
    return sent, (one.received_in.part, other.received_in.part)


def _by_key(one: Message, other: Message, ends: Ends) -> bool:
    """Loops over the keys of a dict, or the tensors of a module, in other orders."""
    sent, received = ends
    if None in sent or sent != received[::-1] or not _in_one_loop(one, other):
        return False
    if any(_side("_" + "_".join(_words(item))) for item in sent):
        return False
    return _are_different(*map(_words, sent))


def _by_tag(one: Message, other: Message) -> str | None:
    """The variable that the tag is made of, as the lines say, and that the tag is nevertheless
    the same for, so that two values of it are exchanged."""
    if one.sent.tag != one.received.tag or not _in_one_loop(one, other):
        return None
    for name in names_in(one.sent.tag):
        first = _value(one.send, one.sent_in, name)
        second = _value(other.send, other.sent_in, name)
        if None in (first, second) or first == second:
            continue
        if _value(one.receive, one.received_in, name) == second and (
            _value(other.receive, other.received_in, name) == first
        ):
            return name
    return None


def _value(call: Posted, loops: Loops, name: str) -> int | str | None:
    place = place_of(call.mark)
    return None if place is None else loops.values.get((place[2], name))


def _in_one_loop(one: Message, other: Message) -> bool:
    """Whether these are the same lines, with other tensors."""
    if one.sent_in.tensor == other.sent_in.tensor:
        return False
    if one.received_in.tensor == other.received_in.tensor:
        return False
    return one.send.mark == other.send.mark and one.receive.mark == other.receive.mark


def _by_direction(one: Message, other: Message) -> bool:
    first, second = one.sent.direction, other.sent.direction
    if first is None or second is None or first == second:
        return False
    return (one.received.direction, other.received.direction) == (first, second)


def _by_name(one: Message, other: Message) -> bool:
    sent = one.sent.tensor, other.sent.tensor
    received = one.received.tensor, other.received.tensor
    if any(_side(a) != _side(b) for a, b in (sent, received)):
        return False
    if sent == received[::-1]:
        meant = [_words(name) for name in sent]
        if any(_side(name) for name in sent):
            return False
    else:
        meant = [_meaning(name) for name in sent]
        if not all(meant) or meant != [_meaning(name) for name in received[::-1]]:
            return False
    if not _are_different(*meant):
        return False
    return all(
        _in_one_pass(a, b) for a, b in ((one.send, other.send), (one.receive, other.receive))
    )


def _side(name: str | None) -> int | None:
    tree = tree_of_text(str(name))
    return None if tree is None else direction_of_words(tree)


def _words(name: str | None) -> set[str]:
    return set(re.findall("[a-z]+", str(name).lower()))


def _meaning(name: str | None) -> set[str]:
    """What the last part of a name says about the content: `k` for `self.next_k`."""
    words = _words(str(name).rpartition(".")[2]) - _ROLES
    return {word for word in words if len(word) > 1 or word in _LETTERS}


def _are_different(one: set[str], other: set[str]) -> bool:
    """Whether words, and not just letters, numbers or sides, tell one from the other."""
    letters = one & _LETTERS, other & _LETTERS
    only = {word for word in one ^ other if len(word) > 1}
    if not only:
        return all(letters) and letters[0] != letters[1]
    return not only <= _MIRRORED


def _in_one_pass(one: Posted, other: Posted) -> bool:
    first, second = place_of(one.mark), place_of(other.mark)
    if first is None or second is None or (first[0], first[2]) != (second[0], second[2]):
        return False
    return lines_together(first[0], first[1], second[1])


# -- the finding -------------------------------------------------------------------------


def _same_neighbour(one: Message, other: Message) -> Finding:
    send, receive = one.send, one.receive
    return Finding(
        kind=KIND,
        severity="warning",
        ranks=(),
        headline=(
            f"{one.sent.tensor} of rank {send.rank}, sent to {one.sent.peer} "
            f"({_written(send, one.sent)}), was received from {one.received.peer} by rank "
            f"{receive.rank} ({_written(receive, one.received)}), and the other way round"
        ),
        blocks=_blocks(one, other),
        facts=(
            (
                "rule",
                f"{one.sent.peer} and {other.sent.peer} are one rank here, and messages "
                "between two ranks are received in the order in which they were sent",
            ),
        ),
        hint=(
            f"what is sent to {one.sent.peer} has to be received from {other.received.peer}: "
            f"post the receive from {other.received.peer} first, or treat two ranks apart"
        ),
    )


def _other_keys(one: Message, other: Message, ends: Ends) -> Finding:
    send, receive = one.send, one.receive
    sent, received = ends
    return _swapped_in_loops(
        one,
        other,
        f"{sent[0]} of rank {send.rank} ({send.site}) was received as "
        f"{received[0]} by rank {receive.rank} ({receive.site}), and the other way "
        "round",
        [f"sends {each}" for each in sent],
        [f"takes it as {each}" for each in received],
        "messages between two ranks are received in the order in which they were sent",
        "go through the keys in one order on both ranks, e.g. over sorted(...)",
    )


def _same_tag(one: Message, other: Message, name: str) -> Finding:
    send, receive = one.send, one.receive
    sent = [f"{name}={_value(each.send, each.sent_in, name)}" for each in (one, other)]
    return _swapped_in_loops(
        one,
        other,
        f"the message of {sent[0]} of rank {send.rank} ({send.site}) was received for "
        f"{sent[1]} by rank {receive.rank} ({receive.site}), and the other way round",
        [f"sends it for {each}" for each in sent],
        [f"takes it for {each}" for each in reversed(sent)],
        f"both have tag {send.tag}, and messages of one tag are received in the order in which "
        "they were sent",
        f"make a tag that is another for each {name}, or receive in the order of the sends",
    )


def _swapped_in_loops(
    one: Message,
    other: Message,
    headline: str,
    sent: list[str],
    received: list[str],
    rule: str,
    hint: str,
) -> Finding:
    blocks: list[CallBlock] = []
    for each, said, taken in zip((one, other), sent, received, strict=True):
        send, receive = each.send, each.receive
        blocks += [
            CallBlock((send.rank,), send.as_op(bare=False), (said,)),
            CallBlock((receive.rank,), receive.as_op(bare=False), (taken,), "<- crossed"),
        ]
    return Finding(
        kind=KIND,
        severity="warning",
        ranks=(),
        headline=headline,
        blocks=tuple(blocks),
        facts=(("rule", rule),),
        hint=hint,
    )


def _other_names(one: Message, other: Message) -> Finding:
    send, receive = one.send, one.receive
    return Finding(
        kind=KIND,
        severity="warning",
        ranks=(),
        headline=(
            f"{one.sent.tensor} of rank {send.rank} ({send.site}) was received as "
            f"{one.received.tensor} by rank {receive.rank} ({receive.site}), and the other way "
            "round"
        ),
        blocks=_blocks(one, other),
        facts=(
            (
                "rule",
                "messages between two ranks are received in the order in which they were sent",
            ),
        ),
        hint="receive them in the order in which they are sent",
    )


def _written(call: Posted, text: MessageText) -> str:
    """Where it is written: of a batch, not where it is sent."""
    site = call.site
    if site is None:
        return "?"
    return f"{site.file}:{text.line}" if call.batch is not None else str(site)


def _note(call: Posted, said: str, text: MessageText) -> str:
    at = "" if call.batch is None else f", by {_written(call, text)}"
    return f"{said} {text.tensor}{at}"


def _blocks(*messages: Message) -> tuple[CallBlock, ...]:
    return tuple(
        block
        for each in messages
        for block in (
            CallBlock(
                (each.send.rank,),
                each.send.as_op(bare=False),
                (_note(each.send, "sends", each.sent),),
            ),
            CallBlock(
                (each.receive.rank,),
                each.receive.as_op(bare=False),
                (_note(each.receive, "takes it as", each.received),),
                "<- crossed",
            ),
        )
    )
