"""What Gloo's algorithms do, step by step: who sends to whom, who waits for what.

A rank whose algorithm needs a lost rank directly fails at once; one that needs it only
through others waits until its timeout. So who sees what is decided by these steps, which follow
the sources of Gloo (`allreduce.cc`, `broadcast.cc`, ...). Used by `stepped_collective.py`. No
torch, no waiting.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

SEND, RECV, WAIT_SEND, WAIT_RECV = "send", "recv", "wait send", "wait recv"

Step = tuple[str, str, int]
"""What is done, with which buffer, and whom it concerns: nobody in particular for a wait."""
Steps = Iterator[Step]

_NOBODY = -1
_LARGEST_SEGMENT = 1 << 20
_MOST_BYTES = 1 << 23
"""Of one rank's part. Above it a tensor only has more segments."""


def steps_of(
    name: str, member: int, size: int, *, root: int | None, count: int, width: int
) -> list[Step]:
    """Those of one member of a collective on `count` elements of `width` bytes."""
    if size == 1:
        return []
    if name in _ROOTED:
        assert root is not None
        return list(_ROOTED[name](member, size, root, count * width, width))
    if name.startswith("all_gather"):
        return list(_all_gather(member, size))
    if name.startswith(("all_reduce", "reduce_scatter")):
        return list(_all_reduce(member, size, count * width, width))
    return list(_OTHERS.get(name, _all_to_all)(member, size))


def steps_with_all(member: int, size: int) -> list[Step]:
    """Of a collective in which every member needs every other one."""
    return list(_all_to_all(member, size))


def _all_reduce(member: int, size: int, total: int, width: int) -> Steps:
    """A ring: each member gets a part of the sum, then all parts go around."""
    ring = _Ring(member, size, total, width)
    yield from ring.steps(1, tmp="tmp", own=lambda number: "out")
    yield from ring.steps(0, tmp="out", own=lambda number: "out")


def _reduce(member: int, size: int, root: int, total: int, width: int) -> Steps:
    ring = _Ring(member, size, total, width)
    if not ring.segments:
        return
    yield from ring.steps(
        1, tmp="tmp", own=lambda number: "in" if number < ring.per_rank else "out"
    )
    if member != root:
        if ring.has_chunk(member):
            yield SEND, "out", root
            yield WAIT_SEND, "out", _NOBODY
        return
    senders = [each for each in range(size) if each != root and ring.has_chunk(each)]
    for sender in senders:
        yield RECV, "out", sender
    for _ in senders:
        yield WAIT_RECV, "out", _NOBODY


class _Ring:
    """How Gloo cuts a tensor into segments that go around a ring."""

    def __init__(self, member: int, size: int, total: int, width: int) -> None:
        total = min(total, size * _MOST_BYTES)
        self._member, self._size, self._total = member, size, total
        self.segments = 0
        if not total:
            return
        largest = width * max(1, _LARGEST_SEGMENT // width)
        self._bytes = _round_up(min(-(-total // (2 * size)), largest), width)
        self.segments = _round_up(max(-(-total // self._bytes), 2 * size), size)
        self.per_rank = self.segments // size

    def has_chunk(self, member: int) -> bool:
        """Whether any of the tensor is this member's part."""
        return member * self.per_rank * self._bytes < self._total

    def steps(self, first: int, *, tmp: str, own: Callable[[int], str]) -> Steps:
        """Once around, two segments at a time: it sends from its part number `first` on."""
        receives_from = (self._member + 1) % self._size
        sends_to = (self._member - 1) % self._size
        for number in range(self.segments):
            before = number - 2
            if before >= 0 and self._is_there(first + 1, before):
                yield WAIT_RECV, tmp, _NOBODY
            if before >= 0 and self._is_there(first, before):
                yield WAIT_SEND, own(before), _NOBODY
            if number >= self.segments - 2:
                continue
            if self._is_there(first + 1, number):
                yield RECV, tmp, receives_from
            if self._is_there(first, number):
                yield SEND, own(number), sends_to

    def _is_there(self, part: int, number: int) -> bool:
        """Small tensors have fewer segments than there would be."""
        place = (self._member + part) * self.per_rank + number
        return place % self.segments * self._bytes < self._total


def _all_gather(member: int, size: int) -> Steps:
    """A ring, in which each part goes around in two pieces."""
    for number in range((size - 1) * 2):
        if number >= 2:
            yield WAIT_SEND, "out", _NOBODY
            yield WAIT_RECV, "out", _NOBODY
        yield SEND, "out", (member + 1) % size
        yield RECV, "out", (member - 1) % size
    for _ in range(2):
        yield WAIT_SEND, "out", _NOBODY
        yield WAIT_RECV, "out", _NOBODY


def _broadcast(member: int, size: int, root: int, total: int, width: int) -> Steps:
    """A binomial tree from the root."""
    place = (member - root) % size
    depth = (size - 1).bit_length()
    mask, sends = (1 << depth) - 1, 0
    for bit in (1 << index for index in range(depth)):
        mask ^= bit
        other = place ^ bit
        if place & mask or other >= size:
            continue
        peer = (other + root) % size
        if place & bit:
            yield RECV, "out", peer
            yield WAIT_RECV, "out", _NOBODY
        else:
            yield SEND, "out", peer
            sends += 1
    for _ in range(sends):
        yield WAIT_SEND, "out", _NOBODY


def _gather(member: int, size: int, root: int, total: int, width: int) -> Steps:
    if member != root:
        yield SEND, "in", root
        yield WAIT_SEND, "in", _NOBODY
        return
    others = [each for each in range(size) if each != root]
    for sender in others:
        yield RECV, "out", sender
    for _ in others:
        yield WAIT_RECV, "out", _NOBODY


def _scatter(member: int, size: int, root: int, total: int, width: int) -> Steps:
    if member != root:
        yield RECV, "out", root
        yield WAIT_RECV, "out", _NOBODY
        return
    others = [each for each in range(size) if each != root]
    for receiver in others:
        yield SEND, f"in {receiver}", receiver
    for receiver in others:
        yield WAIT_SEND, f"in {receiver}", _NOBODY


def _all_to_all(member: int, size: int) -> Steps:
    for distance in range(1, size):
        yield SEND, "in", (member + distance) % size
        yield RECV, "out", (member - distance) % size
    for _ in range(1, size):
        yield WAIT_SEND, "in", _NOBODY
        yield WAIT_RECV, "out", _NOBODY


def _barrier(member: int, size: int) -> Steps:
    """Dissemination: in each round to a member twice as far away."""
    distance = 1
    while distance < size:
        yield RECV, "both", (member - distance) % size
        yield SEND, "both", (member + distance) % size
        yield WAIT_RECV, "both", _NOBODY
        yield WAIT_SEND, "both", _NOBODY
        distance *= 2


def _monitored_barrier(member: int, size: int) -> Steps:
    """All send to the first member, which answers them when it has heard of all."""
    if member:
        yield SEND, "call", 0
        yield RECV, "answer", 0
        yield WAIT_SEND, "call", _NOBODY
        yield WAIT_RECV, "answer", _NOBODY
        return
    for verb, wait in ((RECV, WAIT_RECV), (SEND, WAIT_SEND)):
        for other in range(1, size):
            yield verb, f"{verb} {other}", other
        for other in range(1, size):
            yield wait, f"{verb} {other}", _NOBODY


def _round_up(value: int, to: int) -> int:
    return -(-value // to) * to


_ROOTED = {"broadcast": _broadcast, "reduce": _reduce, "gather": _gather, "scatter": _scatter}
_OTHERS = {"barrier": _barrier, "monitored_barrier": _monitored_barrier}
