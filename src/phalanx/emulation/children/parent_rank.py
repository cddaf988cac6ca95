"""The program itself as a rank, among the ranks that it has started.

Used by `self_spawning_scripts.py` when a program that starts its ranks calls
`init_process_group` itself. It may do so several times: when its group and the other ranks are
gone and it starts processes again, it leaves this `ParentRank` and gets another one in the next
world.
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

from phalanx.backend.devices import device_mode
from phalanx.backend.session import RankContext
from phalanx.backend.torch_private import private
from phalanx.backend.work import buffer_modes
from phalanx.core.strand import Strand, here
from phalanx.emulation.children.parent_state import ParentState, is_feeder
from phalanx.emulation.modules.isolating import own_main
from phalanx.emulation.stdlib.replaced_calls import enter_thread


class ParentRank:
    """The program itself as one of the ranks. A thread of the world stands for it; the
    program's own thread acts in its place, from its first call of `init_process_group` on."""

    def __init__(
        self,
        main: ModuleType,
        code: CodeType,
        modules: dict[str, ModuleType],
        before: ParentState | None,
    ) -> None:
        """`modules` are the program's modules that it has imported so far, `before` its state
        from a time when it was a rank of an earlier world."""
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
        self._before = before
        self.children: list[Any] = []
        """The other ranks of its world."""
        self.is_overdue = False
        """Whether the program started processes again before it could leave this rank."""
        self.world_is_over = threading.Event()

    def sit(self, context: RankContext) -> None:
        """In the world's thread: let the program begin, and block until it has ended."""
        strand = here.strand
        assert strand is not None
        _note_thread(strand, self._thread)
        context.environ.clear()
        context.environ.update(self._environ)
        own_main(context, self._main, self._code)
        for name, module in self._modules.items():
            sys.modules[name] = module
        if self._before is not None:
            self._before.hand_on(context)
        self._strand = strand
        self._ready.release()
        self._done.acquire()
        _note_thread(strand, threading.current_thread())
        if self._error is not None:
            raise self._error

    def take(self) -> None:
        """In the program's thread: act as this rank from now on. Blocks until the rank has the
        baton."""
        self._ready.acquire()
        strand = self._strand
        assert strand is not None
        here.strand = strand
        enter_thread(strand.local)
        with suppress(ValueError):  # Ctrl-C must not raise in the middle of a hand-over
            self._handler = signal.signal(signal.SIGINT, self._interrupt)

    def is_here(self) -> bool:
        """Whether the calling thread is the program's own."""
        return here.strand is not None and here.strand is self._strand

    def is_free(self) -> bool:
        """Whether the program has made its group and destroyed it."""
        if not self.is_here() or self._strand is None:
            return False
        context: RankContext = self._strand.local
        return context.initialised and not context.torch_state.pg_names

    def is_alone(self) -> bool:
        """Whether no other rank runs, and no thread that the program has started as a rank."""
        assert self._strand is not None
        threads = self._strand.local.helpers
        ended = all(child.has_ended() for child in self.children)
        return ended and all(is_feeder(each) or not each.is_alive() for each in threads)

    def give_up(self) -> ParentState:
        """End the rank while the program goes on. Returns the state that the program keeps."""
        strand = self._strand
        assert strand is not None
        strand.baton.rejoin(strand)
        strand.baton.affinity.step_out()
        found = ParentState(strand.local, but=self._interrupt)
        self.leave(None)
        self.world_is_over.wait()
        found.put_in_place()
        return found

    def leave(self, error: BaseException | None) -> None:
        """The program has ended, or is not a rank any more."""
        strand, here.strand = here.strand, None
        if strand is not None and strand.local.session.devices is not None:
            device_mode.leave_thread()
        buffer_modes.leave_thread()
        private.unregister_groups()
        torch.autograd.set_multithreading_enabled(True)
        if self._handler is not None:
            signal.signal(signal.SIGINT, self._handler)
        self._error = error
        self._done.release()

    def _interrupt(self, number: int, frame: Any) -> None:
        assert self._strand is not None
        self._strand.baton.stop(at_once=True)


def _note_thread(strand: Strand, thread: threading.Thread) -> None:
    strand.ident, strand.native = thread.ident or 0, thread.native_id or 0
    with suppress(AttributeError):
        strand.cpu_clock = time.pthread_getcpuclockid(strand.ident)
