"""Random numbers of torch, `random` and NumPy's legacy functions: each rank has its own.

A rank that sets a seed draws the same numbers as a process of its own would. A rank that does
not continues from the caller's generators, all ranks alike, as forked processes do. The ranks
of a script are like processes that were started: each draws other numbers, which follow from
the run's seed. Nothing is swapped until a rank draws or sets a seed. `switcher.py` calls this
at hand-overs; `helper_thread_rng.py` is for threads that do not hold the baton.
"""

from __future__ import annotations

import hashlib
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import ModuleType
from typing import Any

import torch

from phalanx.backend.session import RankContext
from phalanx.backend.torch_private import private_generators
from phalanx.emulation.random.generator_memory import (
    Generator,
    numpy_generator,
    python_generator,
)

NUMPY = "numpy.random.mtrand"
PYTHON = "generator of random"
TORCH = "generator of torch"
APART = "random apart"
"""The key by which a rank notes that it has generators of its own."""

_live: dict[str, Generator] = {}
"""The process's generators, by the name of their module."""
_spares: dict[str, Generator] = {}
lock: Any = threading.RLock()
_script: list[int] = []
"""The seed of the script that runs now."""


class RandomSource:
    """One generator of the process during one run."""

    __slots__ = ("_outer", "apart", "in_script", "live", "look", "mark", "name")

    def __init__(self, name: str, live: Generator, *, in_script: bool = False) -> None:
        self.name = name
        self.live = live
        self.look = live.mark
        self.mark = live.mark()
        """The mark at the time when the running rank got it."""
        self.apart = False
        """Whether any rank has used it, so that it must be swapped."""
        self.in_script = in_script
        """Whether the ranks are those of a script, and not of a run inside one."""
        self._outer = live.snapshot()

    def own(self, context: RankContext) -> Any:
        """The state from which the rank continues."""
        found = context.saved.get(self.name)
        if found is not None:
            return found
        if not self.in_script:
            return self._outer
        with spare(self.name) as other:
            other.seed(_seed_of_script(context.rank))
            context.saved[self.name] = other.snapshot()
        return context.saved[self.name]

    def save(self, context: RankContext) -> None:
        self.apart = context.saved[APART] = True
        context.saved[self.name] = self.live.snapshot()

    def load(self, context: RankContext) -> None:
        self.apart = True
        self.live.put(self.own(context))
        self.mark = self.look()

    def restore(self) -> None:
        if self.apart:
            self.live.put(self._outer)


@contextmanager
def spare(name: str) -> Iterator[Generator]:
    """A generator of that kind for exclusive use inside the block."""
    with lock:
        if name not in _spares:
            _spares[name] = _live[name].spare()
        yield _spares[name]


def sources(*, nested: bool = False) -> list[RandomSource]:
    """The sources for a run that begins now."""
    if not _live:
        _live[TORCH] = TorchGenerator(torch.default_generator)
        _live[PYTHON] = python_generator()
    if NUMPY not in _live and NUMPY in sys.modules:
        note_numpy(sys.modules[NUMPY])
    in_script = bool(_script) and not nested
    return [RandomSource(name, live, in_script=in_script) for name, live in _live.items()]


def note_numpy(module: ModuleType, *, nested: bool = False) -> RandomSource | None:
    """Add NumPy's generator, which exists now, perhaps because a rank has just imported it."""
    if NUMPY not in _live:
        live = numpy_generator(module)
        if live is None:
            return None
        if _script:
            live.seed(_seed_of_script())
        _live[NUMPY] = live
    return RandomSource(NUMPY, _live[NUMPY], in_script=bool(_script) and not nested)


@contextmanager
def script(seed: int) -> Iterator[None]:
    """Around the run of a script. Every rank has a seed of its own, which follows from the seed
    of the run, so it can be repeated."""
    before = sources()
    _script.append(seed)
    try:
        for source in before:
            source.live.seed(_seed_of_script())
        yield
    finally:
        _script.pop()
        for source in before:
            source.apart = True
            source.restore()


def _seed_of_script(rank: int | str = "") -> bytes:
    return hashlib.sha512(f"phalanx run --seed {_script[-1]} {rank}".encode()).digest()


class TorchGenerator(Generator):
    """torch's CPU generator."""

    def __init__(self, owner: torch.Generator) -> None:
        self.owner = owner
        look = private_generators.look_at_cpu_generator(owner)
        self.mark = look if look is not None else object  # else: used, as far as we know

    def snapshot(self) -> Any:
        return self.owner.get_state()

    def put(self, snapshot: Any) -> None:
        self.owner.set_state(snapshot)

    def spare(self) -> Generator:
        return TorchGenerator(torch.Generator())

    def seed(self, seed: bytes) -> None:
        self.owner.manual_seed(int.from_bytes(seed[:8], "big") >> 1)
