"""The current folder and the file mode mask: each rank has its own.

Where the system allows it (Linux, without any rights; some containers forbid it), a rank's
thread stops sharing the folder and the file mode mask with the process, and so do the threads
that it starts. Elsewhere the folder is swapped with the baton like any setting, and a thread
that does not hold the baton finds the folder of the rank that runs; the mask is then shared.
Used by `switcher.py` when a rank begins, and by `rank_settings.py`.
"""

from __future__ import annotations

import ctypes
import os
import sys
import threading
from contextlib import suppress
from functools import cache
from typing import Any

from phalanx.system import folder_here

CLONE_FS = 0x200


@cache
def can_be_own() -> bool:
    """Whether threads may stop sharing the folder. Tried in a thread of its own."""
    if not sys.platform.startswith("linux"):
        return False
    found: list[bool] = []
    trial = threading.Thread(target=lambda: found.append(_unshare()))
    start = getattr(threading.Thread.start, "__wrapped__", threading.Thread.start)
    start(trial)
    trial.join()
    return found == [True]


def _unshare() -> bool:
    try:
        return bool(_libc().unshare(CLONE_FS) == 0)
    except (AttributeError, OSError):
        return False


@cache
def _libc() -> Any:
    return ctypes.CDLL(None, use_errno=True)


def begin(folder: str | None, mask: int) -> None:
    """In a rank's main thread, before anything of the program: start where the caller is, with
    the caller's file mode mask. The thread may have been another rank's before."""
    if not (can_be_own() and _unshare()):
        return
    os.umask(mask)
    if folder is not None and folder_here() != folder:
        with suppress(OSError):
            os.chdir(folder)


def as_setting() -> tuple[Any, ...]:
    """The folder as a setting: how to read and write it, and the functions that change it."""
    chdir = os.chdir

    def write(folder: str | None) -> None:
        if folder is not None and folder != folder_here():
            with suppress(OSError):
                chdir(folder)

    return folder_here, write, ((os, "chdir"), (os, "fchdir"))
