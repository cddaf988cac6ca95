"""The file of a recording: lines of JSON, compressed, with the newest kept if it must not grow.

A file is a sequence of gzip members, which every gzip tool reads as one. The first member holds
the header, each later one the lines of about a second. A member is written with one call, so
that a process that dies leaves whole members and perhaps a broken last one.
"""

from __future__ import annotations

import os
import zlib
from collections import deque
from collections.abc import Callable, Sequence

GZIP = 31
"""zlib's number for a member with a gzip header."""
MAGIC = b"\x1f\x8b"
"""How such a file begins."""
MEMBER = MAGIC + bytes([8, 0, 0, 0, 0, 0])
"""How each of its members begins: deflated, no name, no time."""
LEVEL = 1
LEAST_BYTES = 64 << 10


class RecordingFile:
    """Appends members to a file that it makes, or empties. `limit` bounds the file's size: the
    oldest members go, and `head` is asked for the lines that all later ones need."""

    def __init__(
        self, path: str | os.PathLike[str], limit: int, head: Callable[[], Sequence[str]]
    ) -> None:
        self.path = os.fspath(path)
        self.limit = max(limit, LEAST_BYTES)
        self.forgotten = 0
        """Members that had to go."""
        self._head = head
        self._members: deque[tuple[int, int]] = deque()
        self._file = open(self.path, "w+b", buffering=0)  # noqa: SIM115
        self._size = 0
        self._write(compressed(head()))

    def append(self, lines: Sequence[str]) -> None:
        """Write these lines now."""
        data = compressed(lines)
        if self._size + len(data) > self.limit and self._members:
            self._forget(self.limit // 2)
        at = self._size
        self._write(data)
        self._members.append((at, len(data)))

    def close(self) -> None:
        self._file.close()

    def _write(self, data: bytes) -> None:
        view = memoryview(data)
        while view:
            view = view[self._file.write(view) :]
        self._size += len(data)

    def _forget(self, target: int) -> None:
        """Write the file anew with the newest members only. It takes the place of the old one
        when it is whole."""
        while self._members and sum(size for _, size in self._members) > target:
            self._members.popleft()
            self.forgotten += 1
        old, kept = self._file, deque[tuple[int, int]]()
        beside = f"{self.path}.new"
        self._file, self._size = open(beside, "w+b", buffering=0), 0  # noqa: SIM115
        self._write(compressed(self._head()))
        for at, size in self._members:
            old.seek(at)
            kept.append((self._size, size))
            self._write(old.read(size) or b"")
        self._members = kept
        os.replace(beside, self.path)
        old.close()


def compressed(lines: Sequence[str]) -> bytes:
    packer = zlib.compressobj(LEVEL, zlib.DEFLATED, GZIP)
    text = "".join(f"{line}\n" for line in lines).encode("utf-8", "surrogateescape")
    return packer.compress(text) + packer.flush()
