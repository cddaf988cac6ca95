"""The frames that travel between a rank and the referee.

Used by both ends. A frame is a header of fixed size and perhaps a message of
`serialization.plain_messages`: calls that repeat need the header only. What a rank only has to
tell, and nobody answers, waits for the next frame and travels before it as a `LOG`: four
numbers for each thing. Must never know what a frame leads to.
"""

from __future__ import annotations

import struct
from array import array
from collections.abc import Iterable, Iterator
from itertools import chain
from typing import NamedTuple

_HEADER = struct.Struct("!IBIIBdQ")

# From a rank.
HELLO, GROUP, FORM, FORGET, ANNOUNCE, WAIT, GIVE_UP, RECEIVED, FINISHED, FAILED = range(10)
LOG, FOUND, NOTES, EVENTS, PING, CLOCK, THREADS = range(10, 17)
# From the referee.
MET, GO, VERDICT, STOP, WITHDRAWN, LOST, PONG = range(20, 27)

# What a record of a `LOG` tells of a call: it met its counterparts on the fast path, after a
# wait or as the last one; its rank begins to wait for it; it is over, or has failed.
MET_AFTER_WAIT, MET_AS_LAST, WAITS, OVER, BROKEN = range(5)

Record = tuple[int, int, int, float]
"""Which of these, the id of the call, its form if it met on the fast path, and the time."""

ANSWERS = {
    "met": MET,
    "go": GO,
    "verdict": VERDICT,
    "stop": STOP,
    "withdrawn": WITHDRAWN,
    "lost": LOST,
}

# What `flags` of a frame says: the number of threads of the rank, and two bits.
BLOCKING = 0x80
TIMED = 0x40
MOST_THREADS = 0x3F
"""So many, or more."""


LONGEST_BODY = 1 << 28
"""Bytes. Notes of a long run are the longest that ranks say, some megabytes."""

FORMS_KEPT = 4096
"""Forms that both ends keep when a rank has them forgotten, the newest ones: other threads of
the rank may be about to use them."""


class Frame(NamedTuple):
    """`call_id` names a call of the rank; what `number` is depends on the kind. `time` is
    when it happened, by the sender's clock; `thread` is 0 for a rank's main thread."""

    kind: int
    call_id: int = 0
    number: int = 0
    flags: int = 0
    body: bytes = b""
    time: float = 0.0
    thread: int = 0


def encode(
    kind: int,
    call_id: int = 0,
    number: int = 0,
    flags: int = 0,
    body: bytes = b"",
    time: float = 0.0,
    thread: int = 0,
) -> bytes:
    return _HEADER.pack(len(body), kind, call_id, number, flags, time, thread) + body


_CLOCK = struct.Struct("!dd")


def encode_clock(seconds: float, error: float) -> bytes:
    """What is to be added to this rank's times, and how wrong that may be."""
    return encode(CLOCK, body=_CLOCK.pack(seconds, error))


def clock_in(frame: Frame) -> tuple[float, float]:
    seconds, error = _CLOCK.unpack(frame.body)
    return seconds, error


def encode_log(records: Iterable[Record]) -> bytes:
    """All numbers as doubles: an array of them takes the fewest steps at both ends."""
    return encode(LOG, body=array("d", chain.from_iterable(records)).tobytes())


def log_in(frame: Frame) -> Iterator[Record]:
    numbers = array("d", frame.body)
    fields = iter(numbers)
    return zip(map(int, fields), map(int, fields), map(int, fields), fields, strict=True)


def encoded(frame: Frame) -> bytes:
    return encode(*frame)


def announced(beginning: bytes) -> int | None:
    """How long the frame that begins so will be; None if that is not known yet."""
    if len(beginning) < _HEADER.size:
        return None
    return _HEADER.size + int(_HEADER.unpack_from(beginning)[0])


class Decoder:
    """Frames out of bytes as they come. Raises `ValueError` at a length that no frame has."""

    def __init__(self) -> None:
        self._data = bytearray()

    def feed(self, data: bytes) -> Iterator[Frame]:
        self._data += data
        start, size = 0, _HEADER.size
        try:
            while len(self._data) - start >= size:
                length, *rest = _HEADER.unpack_from(self._data, start)
                kind, call_id, number, flags, time, thread = rest
                if length > LONGEST_BODY:
                    raise ValueError(f"a frame of {length} bytes")
                end = start + size + length
                if len(self._data) < end:
                    return
                body = bytes(self._data[start + size : end])
                start = end
                yield Frame(kind, call_id, number, flags, body, time, thread)
        finally:
            del self._data[:start]
