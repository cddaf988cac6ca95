"""The frames that travel between a rank and the referee.

Used by both ends. A frame is a header of fixed size and perhaps a pickle: calls that repeat
need the header only. Must never know what a frame leads to.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator, Sequence
from typing import NamedTuple

_HEADER = struct.Struct("!IBIIB")

# From a rank.
HELLO, GROUP, FORM, FORGET, ANNOUNCE, WAIT, GIVE_UP, RECEIVED, FINISHED, FAILED = range(10)
PAST, FOUND, NOTES = 10, 11, 12
# From the referee.
MET, GO, VERDICT, STOP, WITHDRAWN, LOST = range(20, 26)

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


FORMS_KEPT = 4096
"""Forms that both ends keep when a rank has them forgotten, the newest ones: other threads of
the rank may be about to use them."""


class Frame(NamedTuple):
    """`call_id` names a call of the rank; what `number` is depends on the kind."""

    kind: int
    call_id: int = 0
    number: int = 0
    flags: int = 0
    body: bytes = b""


def encode(
    kind: int, call_id: int = 0, number: int = 0, flags: int = 0, body: bytes = b""
) -> bytes:
    return _HEADER.pack(len(body), kind, call_id, number, flags) + body


def encode_past(forms: Sequence[int]) -> bytes:
    """Calls that met on the fast path, by the numbers of their forms, in order."""
    return encode(PAST, body=struct.pack(f"!{len(forms)}I", *forms))


def past_in(frame: Frame) -> tuple[int, ...]:
    return struct.unpack(f"!{len(frame.body) // 4}I", frame.body)


def encoded(frame: Frame) -> bytes:
    return encode(*frame)


def announced(beginning: bytes) -> int | None:
    """How long the frame that begins so will be; None if that is not known yet."""
    if len(beginning) < _HEADER.size:
        return None
    return _HEADER.size + int(_HEADER.unpack_from(beginning)[0])


class Decoder:
    """Frames out of bytes as they come."""

    def __init__(self) -> None:
        self._data = bytearray()

    def feed(self, data: bytes) -> Iterator[Frame]:
        self._data += data
        start, size = 0, _HEADER.size
        try:
            while len(self._data) - start >= size:
                length, kind, call_id, number, flags = _HEADER.unpack_from(self._data, start)
                end = start + size + length
                if len(self._data) < end:
                    return
                body = bytes(self._data[start + size : end])
                start = end
                yield Frame(kind, call_id, number, flags, body)
        finally:
            del self._data[:start]
