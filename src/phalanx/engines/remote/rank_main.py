"""The life of a rank that is a process, on processes and under torchrun.

Each of the two engines makes a `RemoteRank` of its own, which adds what differs: how it is told
what to run, how it reaches the referee, how it says what became of it. Here is what both do:
listen to the program that started it, answer where the main thread is, tell the referee what
only this process has seen, describe a failure, and end. Must never be used in the program that
starts ranks.
"""

from __future__ import annotations

import atexit
import ctypes
import os
import pickle
import signal
import sys
import threading
from collections.abc import Callable
from contextlib import suppress
from multiprocessing.connection import Connection
from types import FrameType
from typing import Any, TypeVar

import torch.distributed as dist
from torch.distributed import distributed_c10d as c10d

from phalanx import callsite
from phalanx.backend.evidence.departures import take_departure
from phalanx.backend.evidence.handled_errors import handling_of
from phalanx.backend.stores.store_keys import is_news
from phalanx.backend.torch_private.private_registries import calls_made
from phalanx.emulation.children.spawn_rules import asked_place, asked_size
from phalanx.emulation.patch_installer import put_in
from phalanx.emulation.patch_table import WATCHED
from phalanx.emulation.stdlib.rank_children import leave_if_forked
from phalanx.engines.outcome import trim_traceback, was_stopped
from phalanx.engines.process_table import kill_group
from phalanx.engines.remote.control_messages import (
    Asking,
    HowFar,
    Position,
    Progress,
    Raised,
    Where,
)
from phalanx.engines.remote.link import Link
from phalanx.engines.remote.store_watch import store_patches
from phalanx.engines.serialization.socket_wire import memories_of, receive, send
from phalanx.engines.terminal import attach_terminal
from phalanx.errors import text_of
from phalanx.matching.other_group import INIT
from phalanx.shown.folded_stack import error_text
from phalanx.system import current_exceptions, current_frames, getpid, monotonic

DIE_WITH_PARENT = 1  # PR_SET_PDEATHSIG of Linux
_libc = ctypes.CDLL(None)

T = TypeVar("T")


class RemoteRank:
    """One rank and its connection to the program that started it. The main thread runs the
    user's code; a second one listens."""

    def __init__(self, control: Connection, rank: int) -> None:
        self.rank = rank
        self.link: Link | None = None
        """To the referee, once the engine has attached it."""
        self._control = control
        self._pid = getpid()
        self._calls = 0
        self._moved_at = 0.0
        self._sending = threading.Lock()
        self.main_thread = threading.get_ident()

    # -- talking to the program ---------------------------------------------------------------

    def tell(self, message: Any) -> None:
        """From any thread. OSError if the program is gone."""
        data = pickle.dumps(message, pickle.HIGHEST_PROTOCOL)
        with self._sending:
            send(self._control, data, memories_of(message))

    def tell_own(self, message: Any) -> None:
        """The same, but not from a child that the rank has forked."""
        if getpid() == self._pid:
            self.tell(message)

    def is_telling(self) -> bool:
        """Whether a thread tells the program or the referee something now: a handler of signals
        that interrupts it must not."""
        return self._sending.locked() or (self.link is not None and self.link.is_sending)

    def listen(self) -> None:
        """Start the second thread. When the program is gone it ends the process together with
        its children: nobody else would ever stop them."""
        os.register_at_fork(after_in_child=self._control.close)
        threading.Thread(target=self._listen, daemon=True, name="phalanx-control").start()

    def _listen(self) -> None:
        with suppress(EOFError, OSError):
            while True:
                self.obey(receive(self._control))
        if os.getpgrp() == os.getpid():
            kill_group(os.getpid(), but=os.getpid())
        os.kill(os.getpid(), signal.SIGKILL)

    def obey(self, order: Any) -> None:
        if isinstance(order, HowFar):
            self.tell(self._progress())
        elif isinstance(order, Where):
            if self.link is not None:
                self.link.flush()  # the run may end before the rank does
            self.tell(self._position(order.number))
        else:
            self.take_order(order)

    def take_order(self, order: Any) -> None:
        """In the second thread: what else the program of this engine may say."""
        raise NotImplementedError

    def main_frame(self) -> FrameType | None:
        """Where the main thread is."""
        return current_frames().get(self.main_thread)

    def _progress(self) -> Progress:
        """Where nothing is checked, the numbers that torch gives to calls tell of these."""
        if self.link is not None:
            return Progress(self.rank, self.link.moved_at)
        made = calls_made()
        if made != self._calls:
            self._calls, self._moved_at = made, monotonic()
        return Progress(self.rank, self._moved_at)

    def notice_calls(self) -> None:
        """For a rank that is not checked: notice that it uses a store or has waited."""

        def note(kind: str, mark: object, *fields: Any) -> None:
            if is_news(kind, fields):
                self._moved_at = monotonic()

        def wait(work: Any, *timeout: Any, **named: Any) -> Any:
            done = original(work, *timeout, **named)
            self._moved_at = monotonic()
            return done

        original = dist.Work.wait
        put_in(WATCHED, [(dist.Work, "wait", wait), *store_patches(self.rank, note)])

    def _position(self, number: int) -> Position:
        frame = self.main_frame()
        handling = handling_of(current_exceptions().get(self.main_thread), frame)
        stack = callsite.user_stack(frame)
        return Position(self.rank, number, stack, _call_text(frame), handling)

    # -- running the user's code --------------------------------------------------------------

    def attach_terminal(self, given: dict[str, str]) -> None:
        """Let the user's code ask at the terminal; `given` says where standard input is."""
        attach_terminal(
            self.rank, given, lambda begins: self.tell_own(Asking(self.rank, begins))
        )

    def tell_test(self, test: str) -> None:
        """The program is pytest, and begins this test."""
        if self.link is not None:
            self.link.tell_test(test)

    def run(self, body: Callable[[], T], on_error: Callable[[BaseException], T]) -> T:
        """What the user's code returns, or what `on_error` makes of its error. A process that
        it has forked ends here. The referee is told what only this process has seen: everything
        if it ends well, and what it has dropped, which may be the reason, if it fails."""
        take_departure()
        try:
            result = body()
            leave_if_forked(self._pid)
            if self.link is not None:
                self.link.tell_end("finished", left=take_departure())
                self.link.tell_notes()
            return result
        except BaseException as error:
            leave_if_forked(self._pid, error)
            if self.link is not None:
                self._tell_end(self.link, error)
                self.link.tell_dropped()
            return on_error(error)
        finally:
            flush_streams()
            if self.link is not None:
                self.link.flush()

    def _tell_end(self, link: Link, error: BaseException) -> None:
        if was_stopped(error):
            link.tell_end("stopped")
        else:
            link.tell_end("failed", type(error).__name__)

    def describe_failure(
        self,
        error: BaseException,
        pickled: Callable[[BaseException], bytes | None],
        *,
        loading: bool = False,
    ) -> Raised:
        """`pickled` is how this engine makes an error travel."""
        when = monotonic()
        site, call = callsite.raised_at(error.__traceback__), _raising_call(error)
        invalid = None if self.link is None else self.link.judge_error(error)
        facts = None if self.link is None else self.link.facts_of(error)
        trim_traceback(error)
        return Raised(
            rank=self.rank,
            kind=type(error).__name__,
            message=text_of(error),
            trace=error_text(error),
            when=when,
            error=pickled(error),
            site=site,
            call=call,
            loading=loading,
            stopped=was_stopped(error),
            invalid=invalid,
            facts=facts,
        )

    def detach(self) -> None:
        """The user's code is watched no longer."""
        if self.link is not None:
            self.link.detach()
            self.link = None

    def end_program(self, *, leave_group: bool = True) -> None:
        """As at the end of a program: groups, then what modules asked for at exit. Gloo has
        nothing that outlives the process, and takes 30 ms to put its threads away."""
        with suppress(Exception):
            gloo = dist.Backend.GLOO
            if leave_group and dist.is_initialized() and dist.get_backend() != gloo:
                dist.destroy_process_group()
        run_at_exit: Callable[[], None] = atexit._run_exitfuncs
        with suppress(Exception):
            run_at_exit()


def die_with_parent(*, may_be_init: bool = False) -> None:
    """The rank ends with the process that started it, which in a container may be process 1;
    else that is whoever inherits orphans."""
    parent = os.getppid()
    if sys.platform == "linux":
        _libc.prctl(DIE_WITH_PARENT, signal.SIGKILL)
        if os.getppid() != parent or (parent == 1 and not may_be_init):
            os._exit(1)


def flush_streams() -> None:
    """Those of Python and of C."""
    for stream in (sys.stdout, sys.stderr):
        with suppress(Exception):
            stream.flush()
    _libc.fflush(None)


def torch_call(frame: FrameType | None) -> str | None:
    """The outermost public function of torch.distributed below the user's innermost frame."""
    found = None
    while frame is not None and callsite.is_library_file(frame.f_code.co_filename):
        name = frame.f_code.co_name
        if frame.f_globals.get("__name__") == c10d.__name__:
            found = name if name in c10d.__all__ else found
        frame = frame.f_back
    return found


def _call_text(frame: FrameType | None) -> str | None:
    """The same; for `init_process_group` with the place where the rank meets the others."""
    found = torch_call(frame)
    while found == INIT and frame is not None:
        if frame.f_code.co_name == INIT and "init_method" in frame.f_locals:
            given = {name: frame.f_locals.get(name) for name in ("init_method", "world_size")}
            if given["init_method"] is None:
                given["store"] = frame.f_locals.get("store")
            size = asked_size(given, os.environ)
            shown = "" if size < 0 else f", world_size={size}"
            return f"{INIT}({asked_place(given, os.environ)}{shown})"
        frame = frame.f_back
    return found


def _raising_call(error: BaseException) -> str | None:
    """The same, of the place where an error came up."""
    trace = error.__traceback__
    while trace is not None and trace.tb_next is not None:
        trace = trace.tb_next
    return None if trace is None else torch_call(trace.tb_frame)
