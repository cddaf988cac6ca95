"""Replay tokens: a run of a program as short text, which a shell and pytest take as it is.

`4-12.1-30_5.2-a7f3` means: on 4 ranks, the default order but for choice 12, where candidate 1
goes first, and choices 30 to 34, where candidate 2 does. The last part is a checksum of what
the run chose, so that a program which has changed since is recognised. Many deviations are
packed into one word that begins with `z`; a plan of faults is one that begins with `f`.

Whatever strategy has found the run, the token says what it chose.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import re
import zlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

from phalanx.errors import UsageError
from phalanx.explore.trace import Trace

_FORM = re.compile(
    r"(?P<ranks>[1-9]\d*)"
    r"(?P<plain>(-\d+(_\d+)?\.\d+)*)"
    r"(-z(?P<packed>[\w+]+))?"
    r"(-f(?P<faults>[\w+]+))?"
    r"-(?P<checksum>[0-9a-f]{4})",
    re.ASCII,
)
LONGEST_PLAIN = 60
"""Characters of deviations that are written in full; more are packed."""
_WORDS = (
    b"raise_(MemoryError, rank=0, at=drop_store(at=during=(moment(corrupt(rank=3, call=9, bits="
    b'1, part="contribution", seed=partition([0, 1], [2, 3], during=(0, 10))stop(rank=1, second'
    b's=900, at=store(3))delay(rank=1, seconds=30, at=line("train.py:40"))kill(rank=2, at=call('
    b"17))"
)
"""What texts of plans are made of: with it they pack into a third. Never changes, or tokens
that people have kept would mean nothing."""


@dataclass(frozen=True)
class Token:
    """What a token says."""

    ranks: int
    deviations: Mapping[int, int] = field(default_factory=dict)
    checksum: str = ""
    faults: str = ""
    """The plan of faults, as `phalanx.faults.parse_faults` reads it."""

    def __str__(self) -> str:
        words = [str(self.ranks)]
        if self.deviations:
            plain = "-".join(_plain_words(self.deviations))
            words.append(
                plain if len(plain) <= LONGEST_PLAIN else f"z{_packed(self.deviations)}"
            )
        if self.faults:
            words.append(f"f{_text(_deflated(self.faults.encode()))}")
        return "-".join([*words, self.checksum])


def token_of(ranks: int, trace: Trace, faults: str = "") -> Token:
    return Token(ranks, trace.deviations(), checksum_of(trace), faults)


def read_token(text: str) -> Token:
    """Raises `UsageError` for what is no token."""
    found = _FORM.fullmatch(text.strip()) if isinstance(text, str) else None
    if found is None:
        raise _refusal(text)
    try:
        deviations = dict(_plain_pairs(found["plain"]))
        deviations.update(_unpacked(found["packed"]) if found["packed"] else {})
        faults = _inflated(_data(found["faults"])).decode() if found["faults"] else ""
    except (ValueError, zlib.error, IndexError):
        raise _refusal(text) from None
    return Token(int(found["ranks"]), deviations, found["checksum"], faults)


def checksum_of(trace: Trace) -> str:
    """Of all that was chosen, by whom and from how many; lines of the program do not count."""
    digest = hashlib.blake2b(digest_size=2)
    for choice in trace.choices:
        count = len(choice.candidates) or len(choice.values)
        digest.update(f"{choice.thread} {choice.kind} {choice.chosen} {count};".encode())
    return digest.hexdigest()


def _refusal(text: object) -> UsageError:
    return UsageError(
        f"replay={text!r}: give the token that a failure was reported with, the whole of it, "
        "such as '4-12.1-a7f3'"
    )


# -- deviations -----------------------------------------------------------------------------


def _runs(deviations: Mapping[int, int]) -> Iterator[tuple[int, int, int]]:
    """Where a row of equal deviations begins, how many there are, and what was chosen."""
    start, count, value = 0, 0, 0
    for index, chosen in sorted(deviations.items()):
        if count and index == start + count and chosen == value:
            count += 1
            continue
        if count:
            yield start, count, value
        start, count, value = index, 1, chosen
    if count:
        yield start, count, value


def _plain_words(deviations: Mapping[int, int]) -> Iterator[str]:
    for start, count, chosen in _runs(deviations):
        yield f"{start}.{chosen}" if count == 1 else f"{start}_{count}.{chosen}"


def _plain_pairs(words: str) -> Iterator[tuple[int, int]]:
    for word in words.split("-")[1:]:
        where, chosen = word.split(".")
        start, _, count = where.partition("_")
        if int(count or 1) > _MOST:
            raise ValueError(word)
        for index in range(int(start), int(start) + int(count or 1)):
            yield index, int(chosen)


_MOST = 1_000_000
"""Choices of a run that a token may speak of."""


def _packed(deviations: Mapping[int, int]) -> str:
    data, before = bytearray(), 0
    for start, count, chosen in _runs(deviations):
        for number in (start - before, count, chosen):
            data += _number(number)
        before = start + count
    return _text(_deflated(bytes(data)))


def _unpacked(word: str) -> dict[int, int]:
    data = iter(_inflated(_data(word)))
    numbers = list(_numbers(data))
    found: dict[int, int] = {}
    before = 0
    for skipped, count, chosen in zip(*[iter(numbers)] * 3, strict=True):
        start = before + skipped
        before = start + count
        if before > _MOST:
            raise ValueError(word)
        found.update(dict.fromkeys(range(start, before), chosen))
    return found


def _number(number: int) -> bytes:
    """Seven bits to a byte, the low ones first; the last byte is below 128."""
    data = bytearray()
    while number >= 128:
        data.append(number & 127 | 128)
        number >>= 7
    data.append(number)
    return bytes(data)


def _numbers(data: Iterator[int]) -> Iterator[int]:
    number, shift = 0, 0
    for byte in data:
        number |= (byte & 127) << shift
        shift += 7
        if byte < 128:
            yield number
            number, shift = 0, 0
    if shift:
        raise ValueError("a number has no end")


# -- bytes as a word ------------------------------------------------------------------------


def _deflated(data: bytes) -> bytes:
    packer = zlib.compressobj(9, zlib.DEFLATED, -15, zdict=_WORDS)
    return packer.compress(data) + packer.flush()


def _inflated(data: bytes) -> bytes:
    unpacker = zlib.decompressobj(-15, zdict=_WORDS)
    found = unpacker.decompress(data, _MOST) + unpacker.flush()
    if not unpacker.eof or unpacker.unconsumed_tail:
        raise ValueError("cut off")
    return found


def _text(data: bytes) -> str:
    return base64.b64encode(data, b"_+").decode().rstrip("=")


def _data(text: str) -> bytes:
    try:
        return base64.b64decode(text + "=" * (-len(text) % 4), b"_+", validate=True)
    except binascii.Error:
        raise ValueError(text) from None
