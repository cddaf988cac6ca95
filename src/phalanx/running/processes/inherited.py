"""What a rank that is a process has from the program, as one that is a thread has anyway.

Settings of torch and Python for a whole process: a test file's `set_default_dtype` holds in its
tests. `engine.py` reads them where the program is, `beginning.py` writes them in a rank
that begins anew. What belongs to a thread stays where it is, but for the default device.
"""

from __future__ import annotations

import logging
import sys
from collections.abc import Callable, Iterator, Sequence
from functools import cache
from typing import Any, NamedTuple

import torch
import torch.multiprocessing

from phalanx.backend.private_settings import torch_settings


class _Setting(NamedTuple):
    read: Callable[[], Any]
    write: Callable[[Any], Any]


def read_settings() -> tuple[Any, ...]:
    """In the program, when a call begins."""
    return tuple(setting.read() for setting in _all_settings())


def write_settings(values: Sequence[Any]) -> None:
    """In a rank, which has the same version of torch."""
    for setting, value in zip(_all_settings(), values, strict=True):
        if setting.read() != value:
            setting.write(value)


@cache
def _all_settings() -> tuple[_Setting, ...]:
    return (
        *(_Setting(each.read, each.write) for each in torch_settings()),
        *_other_settings(),
    )


def _other_settings() -> Iterator[_Setting]:
    yield _Setting(torch.get_default_device, _set_default_device)
    sharing = torch.multiprocessing
    yield _Setting(sharing.get_sharing_strategy, sharing.set_sharing_strategy)
    yield _Setting(sys.getrecursionlimit, sys.setrecursionlimit)
    root = logging.root
    yield _Setting(lambda: root.manager.disable, logging.disable)
    yield _Setting(lambda: root.level, root.setLevel)


def _set_default_device(device: torch.device) -> None:
    """For the CPU there is nothing to set: that it is one costs time in each call of torch."""
    torch.set_default_device(None if device == torch.device("cpu") else device)
