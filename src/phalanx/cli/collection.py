"""Garbage collection while the command line starts.

Importing torch makes half a million objects that stay. Python looks through them again and
again while they are made, and once more when it ends: together that takes longer than all our
own imports. So a command starts without collection, and `resume` takes what is there by then
out of it for good.
"""

from __future__ import annotations

import gc

_paused = False


def pause() -> None:
    """No collection from here on. Call it only in a process that is ours alone."""
    global _paused
    _paused = gc.isenabled()
    gc.disable()


def resume() -> None:
    """Collect what is made from here on. Does nothing unless `pause` was called before."""
    global _paused
    if _paused:
        _paused = False
        gc.freeze()
        gc.enable()
