"""What ranks print in a run that is explored: kept for each rank, and shown where one run is
repeated for somebody to see."""

from __future__ import annotations

import io
import sys
from contextlib import ExitStack, redirect_stderr, redirect_stdout
from typing import Any, TextIO

from phalanx.core.strand import here


class RankTexts:
    """In a `with` statement: takes what ranks write to `sys.stdout` and `sys.stderr`. Threads
    that belong to no rank write where they did before; with `is_shown` ranks do, too, and a
    debugger finds its terminal."""

    def __init__(self, ranks: int, *, is_shown: bool = False) -> None:
        self._is_shown = is_shown
        self._out: list[list[str]] = [[] for _ in range(ranks)]
        self._err: list[list[str]] = [[] for _ in range(ranks)]
        self._stack = ExitStack()

    def texts(self) -> tuple[str, ...]:
        """What each rank wrote to standard output."""
        return tuple(map("".join, self._out))

    def __enter__(self) -> RankTexts:
        kind = _ShownStream if self._is_shown else _Stream
        self._stack.enter_context(redirect_stdout(kind(sys.stdout, self._out)))
        self._stack.enter_context(redirect_stderr(kind(sys.stderr, self._err)))
        return self

    def __exit__(self, *about: object) -> None:
        self._stack.close()


class _Stream(io.TextIOBase):
    def __init__(self, original: TextIO, parts: list[list[str]]) -> None:
        self._original = original
        self._parts = parts

    def writable(self) -> bool:
        return True

    def write(self, text: str) -> int:
        strand = here.strand
        if strand is None:
            return self._original.write(text)
        self._parts[strand.rank].append(text)
        return len(text)

    def flush(self) -> None:
        if here.strand is None:
            self._original.flush()

    def fileno(self) -> int:
        return self._original.fileno()

    @property
    def encoding(self) -> Any:  # type: ignore[override]
        return getattr(self._original, "encoding", "utf-8")


class _ShownStream(_Stream):
    """Passes on what it keeps."""

    def write(self, text: str) -> int:
        if here.strand is not None:
            self._original.write(text)
        return super().write(text)

    def flush(self) -> None:
        self._original.flush()

    def isatty(self) -> bool:
        return self._original.isatty()

    @property
    def buffer(self) -> Any:
        return self._original.buffer
