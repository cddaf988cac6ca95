"""What the engine itself asks the system for, bound when it is loaded.

A program may replace the names in `time` and `os` for its own use, to freeze the time in a
test, say. In ranks that are threads that would be the engine's time as well.
"""

from __future__ import annotations

import os
import time

monotonic = time.monotonic
getpid = os.getpid
_getcwd = os.getcwd


def folder_here() -> str | None:
    """The current folder; None if somebody has removed it."""
    try:
        return _getcwd()
    except OSError:
        return None
