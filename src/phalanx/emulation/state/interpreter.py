"""Names of Python's own modules that programs replace: `sys.stdout`, `builtins.print`, ...

A rank that replaces one does so for itself. An assignment gives no notice, so the names are
compared at hand-overs; a name that no rank has replaced costs one comparison. Used by
`switcher.py`.
"""

from __future__ import annotations

import builtins
import logging
import multiprocessing
import multiprocessing.process
import sys
import tempfile
import threading
from typing import Any

from phalanx.backend.session import RankContext

KEPT = "names"
TORCH = "torch.distributed.distributed_c10d"

_starting: Any = multiprocessing.context._default_context
_chosen = "_actual_context"  # what `set_start_method` sets, once per process
_process: Any = multiprocessing.process.current_process()
_logging: Any = logging
_of_sys = vars(sys)
LIMIT = "tracebacklimit"


class _Traceback:
    """`sys.tracebacklimit`, which exists only after it was set."""

    @property
    def limit(self) -> Any:
        return _of_sys.get(LIMIT)

    @limit.setter
    def limit(self, value: Any) -> None:
        _of_sys.pop(LIMIT, None) if value is None else _of_sys.update({LIMIT: value})


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
    (sys, "displayhook"),
    (sys, "unraisablehook"),
    (sys, "dont_write_bytecode"),
    (_Traceback(), "limit"),
    (_process, "_name"),
    (logging, "_logRecordFactory"),
    (logging, "_loggerClass"),
)
_PLACES = tuple(zip(*PLACES, strict=True))


def without_torch(hook: Any) -> Any:
    """`init_process_group` wraps `sys.excepthook` in a hook of torch's: the hook inside of
    it."""
    while getattr(hook, "__module__", None) == TORCH:
        inside = [cell.cell_contents for cell in hook.__closure__ or ()]
        hook = next((each for each in inside if callable(each)), None)
    return hook


class Names:
    """The caller's values, for one run."""

    def __init__(self) -> None:
        self._outer = tuple(map(getattr, *_PLACES))
        self._usual, self._unusual = self._outer[:9], self._outer[9:]
        self._path = sys.path
        self._entries = list(sys.path)

    def changed(self) -> bool:
        """Whether the running rank may have replaced one. Written out, because every hand-over
        calls it."""
        out, err, inp, hook, show, ask, thread_hook, folder, chosen = self._usual
        display, unraisable, no_bytecode, limit, process_name, record, logger = self._unusual
        return (
            sys.stdout is not out
            or sys.stderr is not err
            or builtins.print is not show
            or sys.excepthook is not hook
            or tempfile.tempdir is not folder
            or sys.stdin is not inp
            or builtins.input is not ask
            or threading.excepthook is not thread_hook
            or _starting._actual_context is not chosen
            or sys.displayhook is not display
            or sys.unraisablehook is not unraisable
            or sys.dont_write_bytecode is not no_bytecode
            or _process._name is not process_name
            or _logging._logRecordFactory is not record
            or _logging._loggerClass is not logger
            or LIMIT in _of_sys
            or limit is not None
            or sys.path is not self._path
            or self._path != self._entries
        )

    def save(self, context: RankContext) -> None:
        """Keep what the rank has replaced, and put the caller's back."""
        context.saved.pop(KEPT, None)
        if self.changed():
            self._save_names(context)
            self._save_path(context)

    def _save_names(self, context: RankContext) -> None:
        own = []
        for (owner, name), outer in zip(PLACES, self._outer, strict=True):
            value = getattr(owner, name)
            if value is outer:
                continue
            setattr(owner, name, outer)
            value = without_torch(value)
            if value is not None and value is not outer:
                own.append((owner, name, value))
        if own:
            context.saved[KEPT] = own

    def _save_path(self, context: RankContext) -> None:
        """`sys.path` stays the same list, because programs and importers keep it; its contents
        are swapped."""
        if sys.path is self._path and self._path == self._entries:
            return
        entries = list(sys.path)
        sys.path = self._path
        sys.path[:] = self._entries
        context.saved.setdefault(KEPT, []).append((sys, "path", entries))

    def load(self, context: RankContext) -> None:
        for owner, name, value in context.saved[KEPT]:
            if name == "path":
                sys.path[:] = value
            else:
                setattr(owner, name, value)

    def restore(self) -> None:
        if not self.changed():
            return
        for (owner, name), outer in zip(PLACES, self._outer, strict=True):
            if getattr(owner, name) is not outer:
                setattr(owner, name, outer)
        sys.path = self._path
        if self._path != self._entries:
            self._path[:] = self._entries
