"""How a rank left its program without an error: by `sys.exit`, at the end of its script, in the
handler of a signal. `checks/call_paths.py` finds the `return`, where the source shows it.

Used by the engines when a rank ends.
"""

from __future__ import annotations

import signal
from types import CodeType, TracebackType
from typing import Any

from phalanx import callsite
from phalanx.model import Leave

ASKING_TO_END = frozenset({"SIGTERM", "SIGINT", "SIGHUP", "SIGQUIT", "SIGUSR1", "SIGUSR2"})
"""Signals by which programs are asked to end; a rank catches others in passing."""

_left: list[Leave] = []
"""In a rank that is a process."""


def left_by(end: BaseException) -> Leave:
    """The departure of a rank whose program ended by this, a `SystemExit` or `os._exit`."""
    how = "exit" if isinstance(end, SystemExit) else "os-exit"
    trace = end.__traceback__
    return Leave(how, callsite.raised_at(trace), _signal_in(trace))  # type: ignore[arg-type]


def note_departure(left: Leave) -> None:
    """In a rank that is a process: to be told with its end."""
    _left[:] = [left]


def take_departure() -> Leave | None:
    return _left.pop() if _left else None


def _signal_in(trace: TracebackType | None) -> str | None:
    """The signal whose handler a traceback goes through."""
    codes: set[CodeType] = set()
    while trace is not None:
        codes.add(trace.tb_frame.f_code)
        trace = trace.tb_next
    for each in signal.Signals:
        if _code_of(signal.getsignal(each)) in codes:
            return each.name
    return None


def _code_of(handler: Any) -> CodeType | None:
    handler = getattr(handler, "func", handler)  # a partial
    code = getattr(handler, "__code__", None)  # methods have that of their function
    return code if isinstance(code, CodeType) else None
