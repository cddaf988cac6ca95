"""Writes the journal of a run into a file while the run goes on.

The engine makes a `Recorder` for its `JournalWriter`, and closes it when the run has ended. A
thread of its own looks at the rings several times a second, so that ranks pay nothing: it
never blocks one, and ranks need not know of it. A process that dies loses less than the last
second.
"""

from __future__ import annotations

import json
import os
import platform
import sys
import threading
import time
from collections.abc import Mapping
from itertools import islice
from typing import Any

from phalanx.errors import UsageError
from phalanx.journal.events import VERSION, Event
from phalanx.journal.recording.encoder import Encoder
from phalanx.journal.recording.recording_file import RecordingFile
from phalanx.journal.ring import Ring
from phalanx.journal.writer import JournalWriter
from phalanx.system import monotonic

FORMAT = "phalanx recording"
LOOK, MOST_WAIT = 0.05, 0.5
"""Seconds between two looks at the rings: the least, and the most."""
FLUSH = 0.5
"""Seconds after which lines are written."""
FULL = 0.25
"""The part of a ring that may fill between two looks."""
LIMIT = 256 << 20


class Recorder:
    """Records one run. `facts` go into the header: engine, program, replay line and the like;
    no environment and no values of the program."""

    def __init__(
        self,
        path: str | os.PathLike[str],
        journal: JournalWriter,
        facts: Mapping[str, Any],
        *,
        limit: int = LIMIT,
    ) -> None:
        self._encoder = Encoder(monotonic())
        self._header = header_of(len(journal.rings), self._encoder.start, facts)
        try:
            self._file = RecordingFile(path, limit, self._head)
        except OSError as error:
            raise UsageError(
                f"record={os.fspath(path)!r}: {error.strerror or error}; name a file in a "
                "folder that exists and that you may write to"
            ) from None
        self._pending: list[str] = []
        self._rings: list[_RingTail] = []
        self._flushed = monotonic()
        self._failed: Exception | None = None
        self._looking = threading.Lock()
        self.follow(journal)
        self._ended = threading.Event()
        self._thread = threading.Thread(
            target=self._poll_rings, name="phalanx-recorder", daemon=True
        )
        self._thread.start()

    @property
    def path(self) -> str:
        return self._file.path

    def follow(self, journal: JournalWriter) -> None:
        """From now on this is the run's journal. The rest of the one before is written first;
        it must have ended."""
        with self._looking:
            if self._rings:
                self._look()
                self._encoder.renumber_groups()
            self._rings = [_RingTail(ring) for ring in journal.rings]

    def close(self, end: Mapping[str, Any]) -> None:
        """Write what is left, then how the run ended. Never raises: the run's own error
        matters more."""
        self._ended.set()
        self._thread.join()
        try:
            if self._failed is None:
                self._look()
                self._pending.append(encoded_end(end))
                self._flush()
        except Exception as error:
            self._failed = error
        finally:
            self._file.close()

    @property
    def failed(self) -> Exception | None:
        """Why the recording is not whole, if something went wrong."""
        return self._failed

    def _poll_rings(self) -> None:
        wait = LOOK
        try:
            while not self._ended.wait(wait):
                with self._looking:
                    filled = self._look()
                    if monotonic() - self._flushed >= FLUSH:
                        self._flush()
                wait = MOST_WAIT if filled <= 0 else wait * FULL / filled
                wait = min(max(wait, LOOK), MOST_WAIT)
        except Exception as error:
            self._failed = error

    def _look(self) -> float:
        """Encode what is new; how far the ring that filled most did so."""
        filled = 0.0
        for ring in self._rings:
            events, part, lost = ring.take()
            filled = max(filled, part)
            if lost:
                self._pending.append(f'{{"dropped":{lost},"rank":{events[0].rank}}}')
            if events:
                self._pending += self._encoder.encode(events)
        return filled

    def _flush(self) -> None:
        self._flushed = monotonic()
        if self._pending:
            lines, self._pending = self._pending, []
            self._file.append(lines)

    def _head(self) -> list[str]:
        return [self._header, *self._encoder.definitions()]


def header_of(ranks: int, start: float, facts: Mapping[str, Any]) -> str:
    """The first line of a recording that begins at `start`."""
    torch = sys.modules.get("torch")
    header = {
        "format": FORMAT,
        "version": VERSION,
        "started": time.time() - (monotonic() - start),
        "clock": start,
        "ranks": ranks,
        "python": platform.python_version(),
        "torch": str(getattr(torch, "__version__", "")),
        **facts,
    }
    return json.dumps(header, default=str)


def encoded_end(end: Mapping[str, Any]) -> str:
    """The last line: how the run ended."""
    return json.dumps({"end": dict(end)}, default=str)


class _RingTail:
    """What is new in a ring. Its lanes are read in one go each: ranks append meanwhile. Notes
    about calls are for checks alone, and are not recorded."""

    def __init__(self, ring: Ring) -> None:
        self._lanes = [
            _LaneTail(ring, "calls", "posted", ring.first),
            _LaneTail(ring, "flow", "flowed", 0),
            _LaneTail(ring, "rare", "added", 0),
        ]

    def take(self) -> tuple[list[Event], float, int]:
        """The events, how full the lanes were of them, and how many were lost."""
        events: list[Event] = []
        part, lost = 0.0, 0
        for lane in self._lanes:
            found, gone = lane.take()
            events += found
            lost += gone
            part = max(part, len(found) / lane.length)
        return events, part, lost


class _LaneTail:
    def __init__(self, ring: Ring, name: str, counter: str, seen: int) -> None:
        self._ring = ring
        self._name = name
        self._counter = counter
        self._seen = seen
        self._last: Event | None = None
        self.length: int = getattr(ring, name).maxlen

    def take(self) -> tuple[list[Event], int]:
        """Whoever appends counts first, or last: so the last event that was seen decides."""
        count = getattr(self._ring, self._counter)
        if count == self._seen and self._last is not None and self._newest() is self._last:
            return [], 0
        lane = getattr(self._ring, self._name)
        found = list(islice(reversed(lane), count - self._seen + 2))
        for place, event in enumerate(found):
            if event is self._last:
                del found[place:]
                break
        found.reverse()
        lost = max(0, count - self._seen - len(found)) if len(found) >= self.length else 0
        self._seen = count
        if found:
            self._last = found[-1]
        return found, lost

    def _newest(self) -> Event | None:
        lane = getattr(self._ring, self._name)
        return lane[-1] if lane else None
