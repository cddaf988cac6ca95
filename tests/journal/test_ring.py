"""Rings keep the newest, within a number and within bytes."""

from __future__ import annotations

import pickle
import sys
from typing import Any

from phalanx.journal.events import (
    GroupDestroyed,
    GroupMade,
    GroupRecord,
    Noted,
    Posted,
    RankEnded,
)
from phalanx.journal.ring import EVENT_BYTES, LEAST, Ring, ring_length
from phalanx.journal.writer import BYTES, CALLS, MOST_PARTS, JournalWriter

WORLD = GroupRecord(0, "world", (0,))


def call(serial: int, signature: Any = None) -> Posted:
    return Posted(
        float(serial),
        0,
        0,
        None,
        WORLD,
        "all_reduce",
        serial=serial,
        member=0,
        number=serial,
        signature=signature,
    )


def post(ring: Ring, count: int) -> None:
    for serial in range(count):
        ring.calls.append(call(serial))
        ring.posted += 1


def test_the_newest_are_kept_and_the_rest_is_counted() -> None:
    ring = Ring(32)
    post(ring, 32)
    assert ring.has_all_calls and ring.dropped == 0
    post(ring, 8)
    assert not ring.has_all_calls
    assert ring.dropped == 8
    assert ring.calls[-1].serial == 7


def test_what_is_rare_is_not_pushed_out_by_calls() -> None:
    ring = Ring(32)
    ring.add(RankEnded(0.0, 0, 0, None, "finished"))
    post(ring, 1000)
    assert [event.kind for event in ring.rare] == ["rank-ended"]


def test_bounded_by_number_and_by_bytes() -> None:
    assert ring_length(1, count=CALLS, size=BYTES) == CALLS
    assert ring_length(8, count=CALLS, size=BYTES) == CALLS // 8
    assert ring_length(256, count=CALLS, size=BYTES, least=128) == 128
    many = ring_length(4096, count=CALLS, size=BYTES, least=128)
    assert LEAST <= many < 128
    for ranks in (1, 8, 64, 512):
        length = ring_length(ranks, count=1 << 30, size=BYTES)
        in_all = 2 * length + 2 * (length // 4)
        assert in_all * ranks * EVENT_BYTES <= BYTES


def test_the_estimate_of_an_event_is_not_too_small() -> None:
    """The largest signature that is kept, with shapes of eight dimensions."""
    shape = tuple(range(1000, 1008))
    tensors = [("torch.float32", shape, True), ("torch.float32", tuple(shape), True)]
    signature = ("reduce", 3, 0, *tensors)
    assert len(signature) == MOST_PARTS
    event = call(1 << 40, signature)
    own = [event, event.time, event.serial, signature, *signature]
    assert sum(map(sys.getsizeof, own)) < EVENT_BYTES


def test_a_journal_holds_no_tensor_and_no_run() -> None:
    writer = JournalWriter(2)
    writer.add(RankEnded(0.0, 1, 0, None, "finished"))
    group = writer.group("world", (0, 1))
    writer.end(group)
    assert writer.reader().groups == ()


def test_a_later_journal_begins_with_the_groups_that_are_left() -> None:
    first = JournalWriter(2)
    world, gone = first.group("world", (0, 1)), first.group("group 1", (0, 1))
    for rank in (0, 1):
        first.add(GroupMade(1.0, rank, 0, None, world, rank, default=True))
        first.add(GroupMade(2.0, rank, 0, None, gone, rank))
    first.add(GroupDestroyed(3.0, 1, 0, None, gone))
    then = JournalWriter(2, after=first).reader()
    made = [(event.rank, event.group) for event in then]
    assert made == [(0, world), (1, world), (0, gone)]


def test_notes_about_calls_have_a_lane_of_their_own() -> None:
    ring, place = Ring(64), (here.__code__, 0)
    ring.add(RankEnded(0.0, 0, 0, None, "finished"))
    for number in range(40):
        ring.note(Noted(1.0, 0, 0, place, "some-check", (number, (place, "word"))))
    assert (len(ring.notes), len(ring.rare), ring.dropped) == (16, 1, 24)
    copy = pickle.loads(pickle.dumps(ring.resolved().notes))
    number, (site, word) = copy[-1].what
    assert (number, word, site) == (39, "word", copy[-1].site)
    assert site.function == "here"


def here() -> None: ...
