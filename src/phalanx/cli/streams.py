"""`sys.stdout` and `sys.stderr` during a run: what a rank writes goes to its printer.

Used by `phalanx run` and by the pytest plugin. Threads that are nobody's write to the original
stream.
"""

from __future__ import annotations

import io
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Protocol, TextIO

from phalanx.core.baton import here


class Printer(Protocol):
    """Where the ranks' text goes, such as `FoldingPrinter`."""

    def write(self, rank: int, text: str) -> Any: ...

    def prompt(self, rank: int) -> Any:
        """The rank wants to see what it has written now."""

    def close(self) -> Any: ...


class RankStream(io.TextIOBase):
    """Looks the writing rank up; without a printer, what ranks write is dropped."""

    def __init__(self, original: TextIO, printer: Printer | None) -> None:
        self._original = original
        self._printer = printer
        self.buffer = _Bytes(self)

    def write(self, text: str) -> int:
        if not isinstance(text, str):
            raise TypeError(f"write() argument must be str, not {type(text).__name__}")
        strand = here.strand
        if strand is None:
            return self._original.write(text)
        if self._printer is not None:
            self._printer.write(strand.rank, text)
        return len(text)

    def flush(self) -> None:
        strand = here.strand
        if strand is None:
            self._original.flush()
        elif self._printer is not None and self._original.isatty():
            self._printer.prompt(strand.rank)

    def fileno(self) -> int:
        return self._original.fileno()

    def isatty(self) -> bool:
        return False

    def writable(self) -> bool:
        return True

    @property
    def encoding(self) -> str:  # type: ignore[override]
        return self._original.encoding

    @property
    def errors(self) -> str | None:  # type: ignore[override]
        return self._original.errors


class _Bytes:
    """`sys.stdout.buffer`, for programs that write bytes."""

    def __init__(self, stream: RankStream) -> None:
        self._stream = stream

    def write(self, data: bytes) -> int:
        self._stream.write(bytes(data).decode(errors="replace"))
        return len(data)

    def flush(self) -> None:
        self._stream.flush()


@contextmanager
def redirected(out: Printer | None, err: Printer | None) -> Iterator[None]:
    """Send the ranks' output to the printers; close these and put the streams back."""
    before = sys.stdout, sys.stderr
    sys.stdout, sys.stderr = RankStream(before[0], out), RankStream(before[1], err)
    try:
        yield
    finally:
        sys.stdout, sys.stderr = before
        for printer in (out, err):
            if printer is not None:
                printer.close()
