"""Names of Python's own modules that programs replace: `sys.stdout`, `builtins.print`, ...

A rank that replaces one does so for itself. Nothing tells when that happens, so they are
compared at hand-overs; what nobody has replaced costs a comparison. Used by `switcher.py`.
"""

from __future__ import annotations

import builtins
import multiprocessing
import sys
import tempfile
import threading
from typing import Any

from phalanx.backend.session import RankContext

KEPT = "names"
PATH = "search path"
TORCH = "torch.distributed.distributed_c10d"

_starting: Any = multiprocessing.context._default_context
_chosen = "_actual_context"  # what `set_start_method` sets, once per process

PLACES: tuple[tuple[Any, str], ...] = (
    (sys, "stdout"),
    (sys, "stderr"),
    (sys, "stdin"),
    (sys, "excepthook"),
    (builtins, "print"),
    (builtins, "input"),
    (threading, "excepthook"),
    (tempfile, "tempdir"),
    (_starting, _chosen),
)


class Names:
    """What the caller has, for one run."""

    def __init__(self) -> None:
        self._outer = tuple(getattr(owner, name) for owner, name in PLACES)
        self._path = sys.path
        self._entries = list(sys.path)

    def save(self, context: RankContext) -> None:
        """The rank gives the baton away: if it has replaced anything, keep that for it and
        put the caller's back."""
        out, err, inp, hook, show, ask, thread_hook, folder, chosen = self._outer
        if (
            sys.stdout is not out
            or sys.stderr is not err
            or builtins.print is not show
            or sys.excepthook is not hook
            or tempfile.tempdir is not folder
            or sys.stdin is not inp
            or builtins.input is not ask
            or threading.excepthook is not thread_hook
            or _starting._actual_context is not chosen
        ):
            self._save_names(context)
        elif KEPT in context.saved:
            del context.saved[KEPT]
        if sys.path is not self._path or self._path != self._entries:
            self._save_path(context)
        elif PATH in context.saved:
            del context.saved[PATH]

    def _save_names(self, context: RankContext) -> None:
        own = []
        for (owner, name), outer in zip(PLACES, self._outer, strict=True):
            value = getattr(owner, name)
            if value is outer:
                continue
            setattr(owner, name, outer)
            if getattr(value, "__module__", None) != TORCH:  # torch puts a hook there
                own.append((owner, name, value))
        if own:
            context.saved[KEPT] = own
        else:
            context.saved.pop(KEPT, None)

    def _save_path(self, context: RankContext) -> None:
        context.saved[PATH] = list(sys.path)
        sys.path = self._path
        sys.path[:] = self._entries

    def load(self, context: RankContext) -> None:
        saved = context.saved
        if KEPT in saved:
            for owner, name, value in saved[KEPT]:
                setattr(owner, name, value)
        if PATH in saved:
            sys.path[:] = saved[PATH]

    def restore(self) -> None:
        for (owner, name), outer in zip(PLACES, self._outer, strict=True):
            if getattr(owner, name) is not outer:
                setattr(owner, name, outer)
        sys.path = self._path
        if self._path != self._entries:
            self._path[:] = self._entries
