"""Random numbers of `random` and of NumPy's legacy functions, for each rank its own.

A rank that seeds draws from then on what a process of its own would. One that does not seed
draws other numbers than the others, as processes do, but the same in every run: they follow
from the caller's generator. Nothing is swapped until somebody draws or seeds. `switcher.py`
calls this at hand-overs; `strangers.py` is for threads that do not hold the baton.
"""

from __future__ import annotations

import hashlib
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import ModuleType
from typing import Any

from phalanx.backend.session import RankContext
from phalanx.running.isolation.twisters import Twister, numpy_twister, python_twister

NUMPY = "numpy.random.mtrand"
APART = "random apart"
"""In what a rank keeps: it has generators of its own."""

_live: dict[str, Twister] = {}
"""The process's generators, by the name of their module."""
_spares: dict[str, Twister] = {}
_lock = threading.RLock()
_script: list[int] = []
"""The seed of the run of a script that is going on."""


class Source:
    """One generator of the process during one run."""

    __slots__ = ("_outer", "live", "look", "mark", "name")

    def __init__(self, name: str, live: Twister) -> None:
        self.name = name
        self.live = live
        self.look = live.mark
        self.mark = live.mark()
        """As it was when the rank that runs got it."""
        self._outer = live.snapshot()

    def own(self, context: RankContext) -> Any:
        """Where the rank goes on; the first one to draw draws from the caller's."""
        found = context.saved.get(self.name)
        if found is None:
            with spare(self.name) as other:
                other.seed(hashlib.sha512(b"%d%a" % (context.rank, self._outer)).digest())
                found = context.saved[self.name] = other.snapshot()
            context.saved[APART] = True
        return found

    def save(self, context: RankContext) -> None:
        context.saved[self.name] = self.live.snapshot()
        context.saved[APART] = True

    def load(self, context: RankContext) -> None:
        self.live.put(self.own(context))
        self.mark = self.look()

    def restore(self) -> None:
        self.live.put(self._outer)


@contextmanager
def spare(name: str) -> Iterator[Twister]:
    """A generator of that kind that nobody else uses meanwhile."""
    with _lock:
        if name not in _spares:
            _spares[name] = _live[name].spare()
        yield _spares[name]


def sources() -> list[Source]:
    """For a run that begins now."""
    if "random" not in _live:
        _live["random"] = python_twister()
    if NUMPY not in _live and NUMPY in sys.modules:
        note_numpy(sys.modules[NUMPY])
    return [Source(name, live) for name, live in _live.items()]


def note_numpy(module: ModuleType) -> Source | None:
    """NumPy's generator is there, perhaps because a rank has just imported it."""
    if NUMPY not in _live:
        live = numpy_twister(module)
        if live is None:
            return None
        if _script:
            live.seed(_seed_of_script())
        _live[NUMPY] = live
    return Source(NUMPY, _live[NUMPY])


def begin_script(seed: int) -> None:
    """A script's ranks start from the seed of the run, not from what the system gave this
    process, so that a run can be repeated."""
    sources()
    _script.append(seed)
    for live in _live.values():
        live.seed(_seed_of_script())


def end_script() -> None:
    _script.pop()


def _seed_of_script() -> bytes:
    return hashlib.sha512(b"phalanx run --seed %d" % _script[-1]).digest()


def forget_numpy() -> Any:
    """For tests of what happens when a rank imports NumPy."""
    return _live.pop(NUMPY, None)
