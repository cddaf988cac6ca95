"""Messages as NCCL would pair them: in order, on the communicator of a pair or of the group.

Used by `nccl_order` and `backend_hazard`. torch makes a communicator for each pair of ranks
that exchange single messages; batched ones go over the group's own. Neither knows tags.
"""

from __future__ import annotations

from collections import defaultdict, deque
from collections.abc import Hashable, Iterator
from dataclasses import dataclass, field

from phalanx.checks.nccl_rules.nccl_hazards import Hazard, Issued, Law, NcclTrace

IGNORED_TAGS = Law(
    "ignored-tags",
    "NCCL knows no tags: messages from one rank to another are received in the order in "
    "which they were sent",
    "torch.distributed.isend, warning on tag; ProcessGroupNCCL.cpp: send, recv",
    "receive in the order in which the messages are sent",
)
HALF_BATCHED = Law(
    "half-batched",
    "batched messages go over the group's communicator, single ones over one of the two "
    "ranks; a message that is batched on one side only never arrives",
    "ProcessGroupNCCL.hpp: devNCCLCommMap_; torch.distributed.batch_isend_irecv",
    "batch both sides, or neither",
)

Way = tuple[int, int, int]
"""A group, the rank that sends and the one that receives."""


@dataclass
class Traffic:
    """All messages of one way. `pairs` are as the run matched them, by tag."""

    sends: list[Issued] = field(default_factory=list)
    receives: list[Issued] = field(default_factory=list)

    def pairs(self) -> list[tuple[int, int]]:
        """Where the two ends of each message stand in `sends` and `receives`."""
        waiting: dict[int | None, deque[int]] = defaultdict(deque)
        for index, send in enumerate(self.sends):
            waiting[send.tag].append(index)
        return [
            (waiting[receive.tag].popleft(), index)
            for index, receive in enumerate(self.receives)
            if waiting[receive.tag]
        ]


def traffic_of(trace: NcclTrace) -> dict[Way, Traffic]:
    """Without what ranks get that receive from anyone: who met whom is not known there."""
    found: dict[Way, Traffic] = defaultdict(Traffic)
    open_to_all: set[tuple[int, int]] = set()
    for calls in trace.ranks if trace.whole else ():
        for call in calls:
            if not call.is_message:
                continue
            if call.peer is None:
                open_to_all.add((call.group, call.rank))
            elif call.name == "send":
                found[call.group, call.rank, call.peer].sends.append(call)
            else:
                found[call.group, call.peer, call.rank].receives.append(call)
    return {way: each for way, each in found.items() if (way[0], way[2]) not in open_to_all}


def find_message_hazards(trace: NcclTrace, traffic: dict[Way, Traffic]) -> Iterator[Hazard]:
    for way, messages in sorted(traffic.items()):
        pairs = messages.pairs()
        if way[0] not in trace.eager:
            for sent, received in pairs:
                send, receive = messages.sends[sent], messages.receives[received]
                if (send.batch is None) != (receive.batch is None):
                    yield _half_batched(send, receive)
        yield from _find_ignored_tags(messages, pairs)


def _half_batched(send: Issued, receive: Issued) -> Hazard:
    batched, single = (send, receive) if receive.batch is None else (receive, send)
    return Hazard(
        HALF_BATCHED,
        (HALF_BATCHED.name, send.place, receive.place),
        (send.rank, receive.rank),
        f"rank {batched.rank}'s batched {batched.name} meets rank {single.rank}'s single "
        f"{single.name}; NCCL may hang",
        (((send.rank,), send, _manner(send)), ((receive.rank,), receive, _manner(receive))),
    )


def _manner(call: Issued) -> str:
    return "single" if call.batch is None else "part of a batch"


def _find_ignored_tags(messages: Traffic, pairs: list[tuple[int, int]]) -> Iterator[Hazard]:
    """Where a receive takes a message and leaves an earlier one to a later receive."""
    by_order = sorted(sent for sent, _ in pairs)
    for (sent, received), instead in zip(pairs, by_order, strict=True):
        if sent > instead:
            receive = messages.receives[received]
            yield _ignored_tag(messages.sends[sent], messages.sends[instead], receive)


def _ignored_tag(meant: Issued, instead: Issued, receive: Issued) -> Hazard:
    return Hazard(
        IGNORED_TAGS,
        (IGNORED_TAGS.name, receive.place, meant.place),
        (meant.rank, receive.rank),
        f"rank {receive.rank} receives from rank {meant.rank} out of order by tags, which NCCL "
        "ignores",
        (
            ((receive.rank,), receive, f"takes the message with tag {receive.tag}"),
            ((meant.rank,), meant, "which is this one"),
            ((instead.rank,), instead, "NCCL would give it this one, sent before"),
        ),
    )


def joints_of(trace: NcclTrace, traffic: dict[Way, Traffic]) -> dict[int, Hashable]:
    """For each end of a message, by `id`, what it meets on NCCL: the same place in the order
    of the other side's."""
    found: dict[int, Hashable] = {}
    for way, messages in traffic.items():
        for ends in (messages.sends, messages.receives):
            counts: dict[bool, int] = defaultdict(int)
            for call in ends:
                batched = call.batch is not None and way[0] not in trace.eager
                found[id(call)] = ("message", way, batched, counts[batched])
                counts[batched] += 1
    return found
