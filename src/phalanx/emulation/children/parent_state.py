"""The state that a program keeps after it was a rank.

Used by `parent_rank.py`. Environment, modules, settings, generators and processes of a rank end
with the rank, or are put back. A program that was a rank goes on afterwards, so it keeps them.
"""

from __future__ import annotations

import atexit
import logging
import multiprocessing.queues
import os
import random
import signal
import sys
import threading
import time
import warnings
from collections import deque
from contextlib import suppress
from typing import Any

import torch

from phalanx.backend.session import RankContext
from phalanx.emulation.modules.module_tables import KEY
from phalanx.emulation.random.randomness import NUMPY
from phalanx.emulation.state import exits, logs, rank_settings
from phalanx.emulation.state.interpreter import PLACES, without_torch
from phalanx.emulation.state.warning_filters import settle
from phalanx.emulation.stdlib.rank_children import PROCESSES, QUEUES, end_processes
from phalanx.system import monotonic

SENDING = 5.0
"""Seconds for sending what was put into a queue."""

_LOGGING, _HANDLERS = "logging", "signal handlers"
"""The keys under which `logs.py` and `signals.py` keep what a rank has changed."""


class ParentState:
    """Made in the rank, which holds the baton; put in place when its world has ended."""

    def __init__(self, context: RankContext, *, but: Any) -> None:
        """`but` is a handler of signals that is not the program's."""
        saved = context.saved
        self._context = context
        self._environ = dict(os.environ)
        self._modules = dict(saved[KEY].modules)
        self._settings = [(setting, setting.read()) for setting in rank_settings.in_use]
        self._torch, self._python = torch.get_rng_state(), random.getstate()
        numpy: Any = sys.modules.get(NUMPY)
        self._numpy = None if numpy is None else (numpy, numpy.get_state())
        self._names = [(owner, name, getattr(owner, name)) for owner, name in PLACES]
        self._path = list(sys.path)
        self._filters = list(warnings.filters)
        self._handlers = {
            number: handler
            for number, handler in saved.get(_HANDLERS, {}).items()
            if handler != but
        }
        self._at_exit = saved.pop(exits.FUNCTIONS, [])
        saved.pop(exits.FINALIZERS, None)  # Python knows them too
        self._loggers = {
            (owner, name): value
            for (owner, name), value in saved.pop(_LOGGING, {}).items()
            if isinstance(owner, (logging.Logger, logging.Manager))
        }
        saved.pop(logs.MADE, None)
        for queue in saved.pop(QUEUES, ()):
            _renew(queue)
        self._processes = {key: saved.pop(key) for key in PROCESSES if key in saved}

    def put_in_place(self) -> None:
        """In the program's thread, which belongs to no rank."""
        put_environ(self._environ)
        for name, module in self._modules.items():
            sys.modules[name] = module
        for setting, value in self._settings:
            setting.write(value)
        torch.set_rng_state(self._torch)
        random.setstate(self._python)
        if self._numpy is not None:
            module, state = self._numpy
            module.set_state(state)
        self._put_names()
        for number, handler in self._handlers.items():
            with suppress(ValueError):  # no main thread
                signal.signal(number, handler)
        for function, args, named in self._at_exit:
            atexit.register(function, *args, **named)
        for (logger, name), value in self._loggers.items():
            setattr(logger, name, value)

    def _put_names(self) -> None:
        for owner, name, value in self._names:
            own = without_torch(value)
            if own is not None and getattr(owner, name) is not own:
                setattr(owner, name, own)
        sys.path[:] = self._path
        if warnings.filters != self._filters:
            filters: Any = warnings.filters
            filters[:] = self._filters
            settle()

    def hand_on(self, context: RankContext) -> None:
        """The program is a rank again: processes that it has started belong to that rank."""
        context.saved.update(self._processes)
        self._processes = {}

    def end(self) -> None:
        """The program has ended outside of ranks."""
        self.hand_on(self._context)
        end_processes(self._context, failed=False)


def is_feeder(thread: threading.Thread) -> bool:
    """Whether the thread sends the contents of a queue to other processes."""
    target: Any = getattr(thread, "_target", None)
    return getattr(target, "__module__", None) == multiprocessing.queues.__name__


def _renew(queue: Any) -> None:
    """Block until everything in the queue is sent: its sending thread ends with the rank. The
    next `put` makes a new thread."""
    limit = monotonic() + SENDING
    while monotonic() < limit and not _has_sent(queue):
        time.sleep(0.001)
    if queue._closed or queue._thread is None or not _has_sent(queue):
        return
    thread, notempty, buffer = queue._thread, queue._notempty, queue._buffer
    queue._notempty = threading.Condition(threading.Lock())
    queue._buffer = deque()
    queue._thread = None
    with notempty:
        buffer.append(_End())
        notempty.notify()
    thread.join(SENDING)


class _End:
    """Ends the sending thread when that pickles it, and leaves the pipe open."""

    def __reduce__(self) -> Any:
        raise SystemExit


def _has_sent(queue: Any) -> bool:
    with queue._notempty:
        waits = bool(queue._notempty._waiters)
        return queue._thread is None or (waits and not queue._buffer)


def put_environ(environ: dict[str, str]) -> None:
    """Set the variables of the process to these."""
    for name in set(os.environ) - set(environ):
        del os.environ[name]
    os.environ.update(environ)
