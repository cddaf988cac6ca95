"""The configuration of Python's `logging`: each rank has its own.

Loggers are objects of the process, and libraries keep them. So the loggers stay, and what can
be configured about one is looked up by the calling thread: in a rank its own values, which
begin as the caller's. Two ranks that call `basicConfig` each get a handler, a level and a file
of their own. This lasts for one run of the rank; then the handlers that it made are closed, as
at the end of a process. Used by `run_patches.py` and the engine.

A lookup takes time, and loggers are read far more often than they are configured: by torch in
every rank, and by pytest some thousand times per test. So lookups begin when a rank first sets
something, and end with the run.
"""

from __future__ import annotations

import logging
import weakref
from collections.abc import Callable, Iterable
from contextlib import suppress
from typing import Any

from phalanx.backend.session import RankContext
from phalanx.core.strand import here
from phalanx.emulation.patch_installer import put_in
from phalanx.emulation.patch_table import THREADS

Patch = tuple[Any, str, Any]
OWN = "logging"
"""Where a rank keeps its values: by logger and name of the attribute."""
MADE = "log handlers"


class Changes:
    """Counts changes of the caller's own settings of loggers, and new loggers. Code that scans
    all loggers now and then can skip the scan if the count is unchanged."""

    count = 0


changes = Changes()


class Counted:
    """An attribute of loggers that counts its changes."""


class _PerRank(Counted):
    """An attribute of loggers. A rank's value is in the rank's state; the caller's is in the
    object itself, where Python keeps it."""

    def __init__(self, name: str, default: Callable[[], Any]) -> None:
        self._name = name
        self._default = default

    def __get__(self, logger: Any, kind: type | None = None) -> Any:
        strand = here.strand
        if logger is None:
            return self
        if strand is None:
            try:
                return logger.__dict__[self._name]
            except KeyError:
                return self._outer(logger)
        own = strand.local.saved.get(OWN)
        if own is None:
            own = strand.local.saved[OWN] = {}
        try:
            return own[logger, self._name]
        except KeyError:
            value = self._outer(logger)
            if isinstance(value, (list, dict)):
                value = own[logger, self._name] = value.copy() if self._name != "_cache" else {}
            return value

    def __set__(self, logger: Any, value: Any) -> None:
        strand = here.strand
        changes.count += 1
        if strand is None:
            vars(logger)[self._name] = value
            return
        vars(logger).setdefault(self._name, self._default())  # a new logger stays a whole one
        strand.local.saved.setdefault(OWN, {})[logger, self._name] = value

    def _outer(self, logger: Any) -> Any:
        try:
            return vars(logger)[self._name]
        except KeyError:
            return vars(logger).setdefault(self._name, self._default())


class _UntilSet(Counted):
    """The same attribute while no rank has a value of its own. It has no `__get__`, so Python
    reads the object itself, at its usual speed."""

    def __init__(self, owner: type, name: str, default: Callable[[], Any]) -> None:
        self.owner = owner
        self.name = name
        self.per_rank = _PerRank(name, default)
        self._default = default

    def __set__(self, logger: Any, value: Any) -> None:
        own = vars(logger)
        if here.strand is None or (self.name not in own and value == self._default()):
            changes.count += 1
            own[self.name] = value  # or a new logger, which belongs to no rank
        else:
            _look_up()
            self.per_rank.__set__(logger, value)


_quick = [
    _UntilSet(logging.Logger, "level", int),
    _UntilSet(logging.Logger, "propagate", lambda: True),
    _UntilSet(logging.Logger, "disabled", bool),
    _UntilSet(logging.Logger, "_cache", dict),
    _UntilSet(logging.Manager, "_disable", int),
]
in_use: list[Callable[[], None]] = []
"""Undoes the lookups, once they have begun."""


def _look_up() -> None:
    if not in_use:
        in_use.append(
            put_in(THREADS, [(each.owner, each.name, each.per_rank) for each in _quick])
        )


def relax() -> None:
    """After the last run: no rank has values of its own any more."""
    while in_use:
        in_use.pop()()


def log_patches() -> list[Patch]:
    """Patches for the attributes, and for the functions that close all handlers. Programs
    change lists in place, so lists are looked up from the start."""
    found: list[Patch] = [(each.owner, each.name, each) for each in _quick]
    found += [(logging.Logger, name, _PerRank(name, list)) for name in ("handlers", "filters")]
    found.append((logging, "_addHandlerRef", _noting(logging._addHandlerRef)))  # type: ignore[attr-defined]
    found.append((logging, "shutdown", _closing_own(logging.shutdown)))
    return found


def _noting(original: Any) -> Any:
    """Note which rank made a handler."""

    def add(handler: logging.Handler) -> None:
        original(handler)
        strand = here.strand
        if strand is not None:
            strand.local.saved.setdefault(MADE, []).append(weakref.ref(handler))

    return add


def _closing_own(original: Any) -> Any:
    """`dictConfig` closes all existing handlers before it makes new ones: here only those of
    the calling rank."""

    def shutdown(*given: Any, **named: Any) -> None:
        strand = here.strand
        if strand is None:
            original(*given, **named)
        else:
            original(strand.local.saved.get(MADE, []))

    return shutdown


def end(context: RankContext) -> None:
    """End the rank's configuration and close its handlers."""
    saved = context.saved
    if MADE in saved:
        _close(saved.pop(MADE))
    saved.pop(OWN, None)


def _close(handlers: Iterable[Any]) -> None:
    for made in reversed(list(handlers)):
        handler = made()
        if handler is None:
            continue
        with suppress(OSError, ValueError):  # what it writes to may be closed
            handler.acquire()
            try:
                handler.flush()
                handler.close()
            finally:
                handler.release()
