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
from phalanx.journal.recording.recording_file import MAGIC, RecordingFile
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
        self._encoder = Encoder(journal.now())
        self._header = header_of(len(journal.rings), self._encoder.start, facts)
        check_target(path)
        try:
            self._file = RecordingFile(path, limit, self._head)
        except OSError as error:
            raise UsageError(
                f"record={os.fspath(path)!r}: {error.strerror or error}; name a file in a "
                "folder that exists and that you may write to"
            ) from None
        self._pending: list[str] = []
        self._lanes: list[_LaneTail] = []
        self._rings: list[Ring] = []
        self._next = [0] * len(journal.rings)
        """For each rank, how many calls of journals that have ended are recorded."""
        self._shifts = [0] * len(journal.rings)
        """What is added to the serials of each rank."""
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
        it must have ended. Serials go on in the recording, also where the journal counts from
        0 again, as it does after a run that failed."""
        with self._looking:
            if self._lanes:
                self._look()
                self._go_on(journal)
            self._rings = journal.rings
            self._lanes = [lane for ring in journal.rings for lane in lanes_of(ring)]

    def _go_on(self, journal: JournalWriter) -> None:
        for rank, ring in enumerate(self._rings):
            self._next[rank] = self._shifts[rank] + ring.posted
        if (ranks := len(journal.rings)) > len(self._next):
            more = [0] * (ranks - len(self._next))
            self._next, self._shifts = self._next + more, self._shifts + more
            self._header = json.dumps({**json.loads(self._header), "ranks": ranks})
            self._pending.append(json.dumps({"ranks": ranks}))
        for rank, ring in enumerate(journal.rings):
            self._shifts[rank] = self._next[rank] - ring.first
        self._encoder.shift_serials(self._shifts)

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
        """Encode what is new; how full the lane is that filled most."""
        filled = 0.0
        for lane in self._lanes:
            events, lost = lane.take()
            if lost:
                self._pending.append(f'{{"dropped":{lost},"rank":{events[0].rank}}}')
            if events:
                filled = max(filled, len(events) / lane.length)
                self._pending += self._encoder.encode(events)
        return filled

    def _flush(self) -> None:
        self._flushed = monotonic()
        if self._pending:
            lines, self._pending = self._pending, []
            self._file.append(lines)

    def _head(self) -> list[str]:
        return [self._header, *self._encoder.definitions()]


def check_target(path: str | os.PathLike[str]) -> None:
    """Raise `UsageError` if a file is there that is no recording, such as the script."""
    try:
        if not os.path.isfile(path) or not os.path.getsize(path):
            return
        with open(path, "rb") as file:
            first = file.read(2)
    except OSError:
        return  # whoever opens it to write says what is wrong
    if first != MAGIC:
        raise UsageError(
            f"record={os.fspath(path)!r}: there is a file of this name that is no recording; "
            "name another one, or remove it"
        )


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


def lanes_of(ring: Ring) -> list[_LaneTail]:
    """Notes about calls are for checks alone, and are not recorded."""
    return [
        _LaneTail(ring, "calls", "posted", ring.first),
        _LaneTail(ring, "flow", "flowed", 0),
        _LaneTail(ring, "rare", "added", 0),
    ]


class _LaneTail:
    """What is new in a lane of a ring. Ranks append meanwhile."""

    def __init__(self, ring: Ring, name: str, counter: str, seen: int) -> None:
        self._ring = ring
        self._name = name
        self._counter = counter
        self._seen = seen
        self._last: Event | None = None
        self.length: int = getattr(ring, name).maxlen

    def take(self) -> tuple[list[Event], int]:
        """The events, and how many were lost. Whoever appends counts first, or last: so the
        last event that was seen decides."""
        count = getattr(self._ring, self._counter)
        if count == self._seen and self._last is not None and self._newest() is self._last:
            return [], 0
        found = self._newest_first(count - self._seen + 2)
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

    def _newest_first(self, most: int) -> list[Event]:
        lane = getattr(self._ring, self._name)
        while True:
            try:
                return list(islice(reversed(lane), most))
            except RuntimeError:  # a rank had its turn between these calls, and appended
                pass

    def _newest(self) -> Event | None:
        lane = getattr(self._ring, self._name)
        return lane[-1] if lane else None
