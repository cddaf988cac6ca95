"""What processes that ranks start print: it is shown as their ranks' own.

Such a process gets a pipe of its rank in place of the descriptors that ranks share; a thread
reads it and hands the text to the printer. Used by `streams.py` for `phalanx run`.
"""

from __future__ import annotations

import codecs
import fcntl
import os
import struct
import termios
import threading
import time
from typing import Any, Protocol

from phalanx.core.strand import here

PATIENCE = 0.3
"""Seconds to wait, in the end, for a process that has outlived its rank."""
PAUSE = 0.0005


class RankWriter(Protocol):
    def write(self, rank: int, text: str) -> Any: ...


class ChildPipes:
    """By rank and descriptor. `printers` has those for 1 and 2; what has none is dropped."""

    def __init__(self, printers: dict[int, RankWriter | None]) -> None:
        self._printers = printers
        self._pipes: dict[tuple[int, int], _Pipe] = {}

    def descriptor(self, rank: int, place: int) -> int:
        """What to give to a process of this rank in place of 1 or 2."""
        if (rank, place) not in self._pipes:
            self._pipes[rank, place] = _Pipe(self._printers[place], rank)
        return self._pipes[rank, place].writing

    def drain(self, rank: int) -> None:
        """Before the rank prints something itself: what its processes have printed already
        comes first."""
        if self._pipes:
            for (whose, _), pipe in list(self._pipes.items()):
                if whose == rank:
                    pipe.drain()

    def close(self) -> None:
        while self._pipes:
            self._pipes.popitem()[1].close()


class _Pipe:
    def __init__(self, printer: RankWriter | None, rank: int) -> None:
        self._printer = printer
        self._rank = rank
        self._reading, self.writing = os.pipe()
        self._taken = False
        self._thread = threading.Thread(target=self._pump, daemon=True)
        outer, here.strand = here.strand, None  # the thread is nobody's
        try:
            self._thread.start()
        finally:
            here.strand = outer

    def _pump(self) -> None:
        decode = codecs.getincrementaldecoder("utf-8")("replace").decode
        while True:
            data = os.read(self._reading, 1 << 16)
            self._taken = True
            if data and self._printer is not None:
                self._printer.write(self._rank, decode(data))
            self._taken = False
            if not data:
                return

    def drain(self) -> None:
        limit = time.monotonic() + PATIENCE
        while (self._taken or self._waiting()) and time.monotonic() < limit:
            _sleep(PAUSE)

    def _waiting(self) -> int:
        """Bytes in the pipe that nobody has read."""
        found: int = struct.unpack("i", fcntl.ioctl(self._reading, termios.FIONREAD, bytes(4)))[
            0
        ]
        return found

    def close(self) -> None:
        os.close(self.writing)
        self._thread.join(PATIENCE)
        if self._thread.is_alive():  # a process still holds the other end
            self._printer = None
        else:
            os.close(self._reading)


_sleep = time.sleep
