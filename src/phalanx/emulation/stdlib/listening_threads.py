"""Threads of ranks that serve others: they wait in `accept` until somebody connects.

A virtual clock does not wait for such a thread, and ranks that wait for each other are in a
deadlock beside it, provided that it has nothing to do with torch. Used by the baton's engine,
in the launcher's thread.
"""

from __future__ import annotations

import selectors
import socket
import socketserver
import sys
from collections.abc import Iterator
from types import CodeType, FrameType, FunctionType, ModuleType
from typing import Any

from phalanx.callsite import is_library
from phalanx.core.strand import Strand
from phalanx.emulation.stdlib import replaced_calls
from phalanx.system import current_frames

_ACCEPT: CodeType = socket.socket.accept.__code__
_SERVE: CodeType = socketserver.BaseServer.serve_forever.__code__
_SELECT = (selectors.__file__, replaced_calls.__file__)
MOST_MODULES = 2000


def serves(strand: Strand) -> bool:
    """Whether it is a thread that a rank has started, in `accept` or in `serve_forever`."""
    frame = current_frames().get(strand.ident) if strand.helper else None
    return frame is not None and _is_listening(frame)


def is_accepting(frame: FrameType) -> bool:
    """Whether a thread waits in `accept`."""
    return frame.f_code is _ACCEPT


def knows_torch(frame: FrameType) -> bool:
    """Whether torch can be reached from the modules of the functions that wait there. If not,
    what a connection makes the thread do frees no rank. It takes some milliseconds."""
    return any(map(_leads_to_torch, _homes_of(frame)))


def _is_listening(frame: FrameType) -> bool:
    if is_accepting(frame):
        return True
    at: FrameType | None = frame
    while at is not None and at.f_code.co_filename in _SELECT:
        at = at.f_back
    return at is not None and at.f_code is _SERVE


def _homes_of(frame: FrameType) -> Iterator[dict[str, Any]]:
    """Of the program and of packages: the globals of the functions that have called."""
    at: FrameType | None = frame
    while at is not None:
        if not is_library(at.f_code.co_filename):
            yield at.f_globals
        at = at.f_back


def _leads_to_torch(home: dict[str, Any]) -> bool:
    """Whether torch can be reached from there by what modules have imported. Where that cannot
    be seen it can."""
    first = str(home.get("__name__", ""))
    seen, open_ends = {first}, [home]
    knows = first in ("", "__main__")
    while open_ends and not knows:
        for value in list(open_ends.pop().values()):
            name, further = _home_of(value)
            if name.partition(".")[0] in _WITHOUT or name in seen:
                continue
            seen.add(name)
            knows |= further is None or name.partition(".")[0] == "torch"
            open_ends.append(further or {})
        knows |= len(seen) > MOST_MODULES
    return knows


_WITHOUT = sys.stdlib_module_names | {"builtins", "", "pygments"}
"""Packages that know nothing of torch: Python's own, and one that pytest has, whose modules are
of a kind of their own and could import anything by themselves."""


def _home_of(value: Any) -> tuple[str, dict[str, Any] | None]:
    """The module that this is, or comes from, and what it has; None: that cannot be told."""
    if isinstance(value, ModuleType):
        return value.__name__, vars(value) if type(value) is ModuleType else None
    if isinstance(value, FunctionType):
        return str(value.__module__), value.__globals__
    if isinstance(value, type):
        module = sys.modules.get(value.__module__)
        plain = type(module) is ModuleType
        return str(value.__module__), vars(module) if plain else None
    return "", {}
