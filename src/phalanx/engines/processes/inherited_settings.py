"""What a rank that is a process has from the program, as one that is a thread has anyway.

Settings of torch and Python for a whole process, so that a test file's `set_default_dtype`
holds in its tests, and random numbers, which go on from the program's. `processes_engine.py`
looks at them where the program is, `rank_beginning.py` takes them over in a rank that begins
anew. What belongs to a thread stays where it is, but for the default device.
"""

from __future__ import annotations

import ctypes
import logging
import random
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from functools import cache
from importlib import import_module
from typing import Any, NamedTuple

import torch
import torch.multiprocessing

from phalanx.backend.torch_private.private_modes import default_device
from phalanx.backend.torch_private.private_settings import torch_settings


class Inherited(NamedTuple):
    """Travels with a call. Numbers as `random`, `numpy.random` (if loaded) and torch's CPU
    generator have them."""

    settings: tuple[Any, ...] = ()
    random: Any = None
    numpy: Any = None
    torch: bytes = b""


NOTHING = Inherited()


def look() -> Inherited:
    """In the program, when a call begins."""
    numpy_random = sys.modules.get("numpy.random")
    state = torch.get_rng_state()
    return Inherited(
        settings=read_settings(),
        random=random.getstate(),
        numpy=None if numpy_random is None else numpy_random.get_state(legacy=False),
        torch=ctypes.string_at(state.data_ptr(), state.nbytes),
    )


def take_over(given: Inherited) -> None:
    """In a rank that begins."""
    write_settings(given.settings)
    random.setstate(given.random)
    torch.set_rng_state(torch.frombuffer(bytearray(given.torch), dtype=torch.uint8))
    if given.numpy is not None or "numpy.random" in sys.modules:
        numpy_random = import_module("numpy.random")
        numpy_random.seed()  # or all ranks would draw what the parent would
        with suppress(TypeError, ValueError):  # that of another kind of generator, or none
            numpy_random.set_state(given.numpy)


class _Setting(NamedTuple):
    read: Callable[[], Any]
    write: Callable[[Any], Any]


def read_settings() -> tuple[Any, ...]:
    return tuple(setting.read() for setting in _all_settings())


def write_settings(values: Sequence[Any]) -> None:
    """As they were read by the same version of torch."""
    for setting, value in zip(_all_settings(), values, strict=True):
        if setting.read() != value:
            with suppress(RuntimeError):  # one that torch keeps and does not like
                setting.write(value)


@cache
def _all_settings() -> tuple[_Setting, ...]:
    return (
        *(_Setting(each.read, each.write) for each in torch_settings()),
        *_other_settings(),
    )


def _other_settings() -> Iterator[_Setting]:
    yield _Setting(default_device, torch.set_default_device)
    sharing = torch.multiprocessing
    yield _Setting(sharing.get_sharing_strategy, sharing.set_sharing_strategy)
    yield _Setting(sys.getrecursionlimit, sys.setrecursionlimit)
    root = logging.root
    yield _Setting(lambda: root.manager.disable, logging.disable)
    yield _Setting(lambda: root.level, root.setLevel)
