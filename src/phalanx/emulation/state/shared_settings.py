"""Settings of the process that ranks share, because programs set them once and all alike.

What one rank sets, all have; after the run they are as before it. Whoever needs them for each
rank takes `--engine processes`. Settings that programs change for a moment, in a `with` block
around a collective, are each rank's own (`rank_settings.py`). Used by `switcher.py`.
"""

from __future__ import annotations

import gc
import logging
import os
import socket
import sys
from collections.abc import Callable
from functools import cache
from typing import Any

import torch.multiprocessing

from phalanx.backend.torch_private import private_settings

Setting = tuple[Callable[[], Any], Callable[[Any], Any]]


class SharedSettings:
    """What they are when a run begins."""

    def __init__(self) -> None:
        self._before = [read() for read, _ in _settings()]

    def restore(self) -> None:
        for (read, write), before in zip(_settings(), self._before, strict=True):
            if read() != before:
                write(before)


@cache
def _settings() -> tuple[Setting, ...]:
    """Bound now: a test may replace the names."""
    enable, disable, set_threshold = gc.enable, gc.disable, gc.set_threshold
    return (
        (sys.getrecursionlimit, sys.setrecursionlimit),
        (gc.isenabled, lambda on: enable() if on else disable()),
        (gc.get_threshold, lambda value: set_threshold(*value)),
        (socket.getdefaulttimeout, socket.setdefaulttimeout),
        (
            torch.multiprocessing.get_sharing_strategy,
            torch.multiprocessing.set_sharing_strategy,
        ),
        (read_mask, os.umask),
        (_level_names, _set_level_names),
        *private_settings.shared_settings(),
    )


_umask = os.umask


def read_mask() -> int:
    """The file mode mask, which can only be read by setting it: to a strict one meanwhile."""
    mask = _umask(0o077)
    _umask(mask)
    return mask


_tables: tuple[dict[Any, Any], ...] = tuple(
    vars(logging)[name] for name in ("_levelToName", "_nameToLevel")
)


def _level_names() -> list[dict[Any, Any]]:
    return [dict(table) for table in _tables]


def _set_level_names(names: list[dict[Any, Any]]) -> None:
    for table, before in zip(_tables, names, strict=True):
        table.clear()
        table.update(before)
