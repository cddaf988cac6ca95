"""Shows what processes print that ranks start, as output of their ranks.

Such a process gets a pipe in place of descriptors 1 and 2, which all ranks share. A thread
reads the pipe and passes the text to the printer. Used by `streams.py` for `phalanx run`.
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
"""Seconds to wait at the end for a process that has outlived its rank."""
PAUSE = 0.0005


class RankWriter(Protocol):
    def write(self, rank: int, text: str) -> Any: ...


class ChildPipes:
    """One pipe for each rank and descriptor. `printers` maps 1 and 2 to printers; output of a
    descriptor without a printer is dropped."""

    def __init__(self, printers: dict[int, RankWriter | None]) -> None:
        self._printers = printers
        self._pipes: dict[tuple[int, int], _Pipe] = {}

    def descriptor(self, rank: int, place: int) -> int:
        """The descriptor that a process of this rank gets in place of 1 or 2."""
        if (rank, place) not in self._pipes:
            self._pipes[rank, place] = _Pipe(self._printers[place], rank)
        return self._pipes[rank, place].writing

    def drain(self, rank: int) -> None:
        """Pass on what the rank's processes have printed so far. Called before the rank itself
        prints, so that the order stays."""
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
        outer, here.strand = here.strand, None  # the thread belongs to no rank
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
        """How many bytes in the pipe are not read yet."""
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
