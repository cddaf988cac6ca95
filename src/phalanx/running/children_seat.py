"""The program itself as a rank, among those that it has started.

Used by `launched.py` when a program that starts its ranks calls `init_process_group` itself.
"""

from __future__ import annotations

import os
import signal
import sys
import threading
import time
from contextlib import suppress
from types import CodeType, ModuleType
from typing import Any

import torch

from phalanx.backend import private
from phalanx.backend.session import RankContext
from phalanx.core.baton import Strand, here
from phalanx.running.calls import enter_thread
from phalanx.running.modules.isolating import own_main


class ParentSeat:
    """The program itself as one of the ranks. A thread of the world's holds its place; the
    program's own thread acts for it, from its first call of `init_process_group` on."""

    def __init__(
        self, main: ModuleType, code: CodeType, modules: dict[str, ModuleType]
    ) -> None:
        """`modules` are those of the program's that it has imported so far."""
        self._main, self._code, self._modules = main, code, modules
        self._strand: Strand | None = None
        self._ready = threading.Lock()
        self._done = threading.Lock()
        self._ready.acquire()
        self._done.acquire()
        self._error: BaseException | None = None
        self._thread = threading.current_thread()
        self._environ = dict(os.environ)
        self._handler: Any = None

    def sit(self, context: RankContext) -> None:
        """In the world's thread: hand over, and wait for the end of the program."""
        strand = here.strand
        assert strand is not None
        strand.ident = self._thread.ident or 0
        strand.native = self._thread.native_id or 0
        with suppress(AttributeError):
            strand.cpu_clock = time.pthread_getcpuclockid(strand.ident)
        context.environ.clear()
        context.environ.update(self._environ)
        own_main(context, self._main, self._code)
        for name, module in self._modules.items():
            sys.modules[name] = module
        self._strand = strand
        self._ready.release()
        self._done.acquire()
        if self._error is not None:
            raise self._error

    def take(self) -> None:
        """In the program's thread: be this rank from now on."""
        self._ready.acquire()
        strand = self._strand
        assert strand is not None
        here.strand = strand
        enter_thread(strand.local)
        with suppress(ValueError):  # Ctrl-C must not raise in the middle of a hand-over
            self._handler = signal.signal(signal.SIGINT, self._interrupt)

    def leave(self, error: BaseException | None) -> None:
        """The program has ended."""
        here.strand = None
        private.unregister_groups()
        torch.autograd.set_multithreading_enabled(True)
        if self._handler is not None:
            signal.signal(signal.SIGINT, self._handler)
        self._error = error
        self._done.release()

    def _interrupt(self, number: int, frame: Any) -> None:
        assert self._strand is not None
        self._strand.baton.stop(at_once=True)
