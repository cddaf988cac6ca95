"""A black box for ranks of a real job: what they called, written down when they hang or crash.

>>> from phalanx import blackbox
>>> blackbox.install(folder="dumps", hang=60)  # doctest: +SKIP

It records on the rank's side only: no controller, no socket, about a microsecond a call. The
last calls of the rank and the stacks of all its threads go to `folder/rank_N.json`

- when the main thread, or a call, has stood still for `hang` seconds; then all ranks that see
  the folder write theirs, too;
- on a signal (SIGUSR2), and on SIGTERM before the process ends;
- at a crash, and at the end of the program.

`phalanx explain folder` says what happened. Without a change to the program:
`torchrun -m phalanx.blackbox train.py`; or PHALANX_BLACKBOX=1 where the program imports
phalanx anyway.
"""

from __future__ import annotations

import os
import signal
import threading
from pathlib import Path

from phalanx.blackbox.box_monitor import BoxMonitor
from phalanx.blackbox.box_writer import BoxWriter
from phalanx.blackbox.call_ring import CALLS, CallRing
from phalanx.errors import UsageError

__all__ = ["dump", "install", "is_installed", "uninstall"]

FOLDER = "phalanx-blackbox"
HANG = 60.0

_lock = threading.Lock()
_installed: tuple[CallRing, BoxWriter, BoxMonitor] | None = None


def install(
    folder: str | os.PathLike[str] | None = None,
    *,
    hang: float | None = None,
    calls: int = CALLS,
    on_signal: int | None = signal.SIGUSR2,
) -> None:
    """Begin to record the calls of this process on process groups; a second call does nothing.

    `folder` is where files go (PHALANX_BLACKBOX_DIR, or `phalanx-blackbox` here), `hang` the
    seconds after which a rank that stands still is written down (PHALANX_BLACKBOX_HANG, or 60;
    0: never), `calls` how many calls are kept, `on_signal` the signal that asks for a dump
    (None: none; there is none either outside the main thread).
    """
    global _installed
    where = Path(folder or os.environ.get("PHALANX_BLACKBOX_DIR") or FOLDER)
    seconds = float(os.environ.get("PHALANX_BLACKBOX_HANG", HANG)) if hang is None else hang
    if seconds < 0:
        raise UsageError(f"hang={hang!r}: seconds, or 0 for never")
    if calls < 1:
        raise UsageError(f"calls={calls!r}: give 1 or more")
    with _lock:
        if _installed is not None:
            return
        where.mkdir(parents=True, exist_ok=True)
        ring = CallRing(calls)
        writer = BoxWriter(ring, where.absolute())
        monitor = BoxMonitor(writer, seconds, on_signal)
        ring.start()
        try:
            writer.start()
            monitor.start()
        except BaseException:
            ring.stop()
            raise
        _installed = ring, writer, monitor


def uninstall() -> None:
    """Stop recording. Nothing is left: no replaced name, thread, handler or exit function.
    Files that are written stay."""
    global _installed
    with _lock:
        if _installed is None:
            return
        ring, writer, monitor = _installed
        _installed = None
        monitor.stop()
        writer.stop()
        ring.stop()


def is_installed() -> bool:
    return _installed is not None


def dump(reason: str = "asked") -> Path:
    """Write this rank's file now; its path."""
    if _installed is None:
        raise UsageError(
            "the black box is not installed: call phalanx.blackbox.install() first"
        )
    return _installed[1].write(reason)
