"""Which sources of chance a program asks, and where: evidence for what makes equal runs part.

In place for one run, made anew because two runs parted that should be equal. Python tells of
each call that the program makes, which is far too slow for other runs.
"""

from __future__ import annotations

import os
import random
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from types import CodeType, FrameType
from typing import Any

from phalanx import callsite
from phalanx.core.strand import here
from phalanx.explore.digests import digest_of
from phalanx.model import Site

MOST_NOTES = 6
_CLOCKS = ("time", "monotonic", "perf_counter", "process_time", "thread_time")
_NATIVE = {
    "time": {name: f"time.{name}" for each in _CLOCKS for name in (each, f"{each}_ns")},
    "posix": {"urandom": "os.urandom", "getrandom": "os.getrandom", "times": "os.times"},
    "builtins": {"id": "id", "hash": "hash"},
    "_thread": {
        "start_new_thread": "_thread.start_new_thread",
        "start_joinable_thread": "_thread.start_joinable_thread",
    },
    "_uuid": {"generate_time_safe": "uuid.uuid1"},
}
"""Functions of C, by module and name, with what the program calls them."""


class ChanceWatch:
    """What ranks have asked, with the program's lines."""

    def __init__(self) -> None:
        self._seen: dict[tuple[str, CodeType, int], None] = {}

    @contextmanager
    def watching(self) -> Iterator[None]:
        """Watch threads that are started meanwhile. Where somebody else watches, nothing."""
        if threading.getprofile() is not None:
            yield
            return
        threading.setprofile(self._look)
        try:
            yield
        finally:
            threading.setprofile(None)

    def asked(self) -> list[tuple[str, Site]]:
        """Source and line, in the order in which they were first asked."""
        return [(name, callsite.site_at(code, line)) for name, code, line in self._seen]

    def _look(self, frame: FrameType, event: str, arg: Any) -> None:
        if here.strand is None:
            return
        if event == "c_call":
            name = _NATIVE.get(getattr(arg, "__module__", None) or "", {}).get(arg.__name__)
        elif event == "call":
            name = _of_python(frame)
        else:
            return
        if name is not None and len(self._seen) < MOST_NOTES:
            asker = _asked_by(frame, name)
            if asker is not None:  # resolved later: to read a source here would be a step
                self._seen.setdefault((name, asker.f_code, asker.f_lineno or 0))


def _of_python(frame: FrameType) -> str | None:
    """A generator that seeds itself does so in C, and asks nobody that could be seen."""
    if frame.f_code is random.Random.seed.__code__ and frame.f_locals.get("a") is None:
        return "random.seed"
    return None


def _asked_by(frame: FrameType | None, name: str) -> FrameType | None:
    """The program's frame, if it is the program that asks, through the standard library or our
    clock at most. What torch asks for itself is its own affair."""
    while frame is not None:
        file = frame.f_code.co_filename
        if not callsite.is_library(file):
            return frame
        if callsite.is_own_file(file) and not file.endswith(_OUR_CLOCK):
            return None
        if f"{os.sep}torch{os.sep}" in file:
            return None
        if name in ("id", "hash"):
            return None
        frame = frame.f_back
    return None


_OUR_CLOCK = "virtual_time.py"


def hint_of(
    watch: ChanceWatch, make_run: Callable[[], object], kept: Callable[[], Mapping[str, Any]]
) -> str | None:
    """Make a run and say what it asked, and what of `kept`, by its name, it left changed."""
    before = {name: digest_of(value) for name, value in kept().items()}
    with watch.watching():
        make_run()
    changed = [name for name, value in kept().items() if before.get(name) != digest_of(value)]
    told = [
        f"{name} is another one after the run: runs find what others left" for name in changed
    ]
    by_name: dict[str, list[str]] = {}
    for name, site in watch.asked():
        by_name.setdefault(name, []).append(str(site))
    for name, sites in by_name.items():
        told.append(
            f"{name} is called at {', '.join(sites[:3])}, and gives another thing each time"
        )
    return "; ".join(told[:MOST_NOTES]) or None
