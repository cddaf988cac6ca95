"""Install what runs need to replace, once for all open worlds; put it back after the last.

Used by the engines. What is replaced stands in `replaced_calls.py` and
`backend/torch_patches.py`.
"""

from __future__ import annotations

import os
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

from phalanx.backend.torch_patches import install
from phalanx.backend.torch_private import private
from phalanx.emulation.state.installing import install_isolation
from phalanx.emulation.state.torch_attributes import AttributeFinder
from phalanx.emulation.stdlib.replaced_calls import call_patches

_lock: Any = threading.RLock()
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_lock._at_fork_reinit)
_depth = 0
_undo: list[Callable[[], Any]] = []


@contextmanager
def patched() -> Iterator[None]:
    """Everything that must be replaced is, while any caller is inside."""
    hold()
    try:
        yield
    finally:
        release()


def hold() -> None:
    """As `patched`, until `release`."""
    global _depth
    with _lock:
        if _depth == 0:
            try:
                _install()
            except BaseException:
                _uninstall()
                raise
        _depth += 1


def release() -> None:
    global _depth
    with _lock:
        _depth -= 1
        if _depth == 0:
            _uninstall()


def _install() -> None:
    excepthook = sys.excepthook  # torch wraps it anew at every init_process_group
    _undo.append(partial(setattr, sys, "excepthook", excepthook))
    _undo.append(install())
    finder = AttributeFinder()
    finder.install()
    _undo.append(finder.uninstall)
    _undo.append(install_isolation())
    for owner, name, replacement in call_patches():
        _undo.append(_putting_back(owner, name))
        setattr(owner, name, replacement)


def _putting_back(owner: Any, name: str) -> Callable[[], None]:
    """As it stands there: a `staticmethod` is one, and what a class inherits it has not."""
    if name in vars(owner):
        return partial(setattr, owner, name, vars(owner)[name])
    return partial(delattr, owner, name)


def _uninstall() -> None:
    while _undo:
        _undo.pop()()


_runs = 0


def keep_groups_by_thread(now: bool) -> None:
    """Keep torch's map from names to groups per thread, for as long as a run lasts and not
    longer: the surrounding program may have groups of its own in the common one."""
    global _runs
    _runs += 1 if now else -1
    if now or _runs == 0:
        private.set_thread_isolation(now)
