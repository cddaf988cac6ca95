"""The life of a rank that is a process: what runs in it after it was forked.

The preloaded parent (`fork_server_main.py`) calls `live`. The main thread carries out calls; a
second thread listens to the program, answers where the main thread is, and ends the process
together with its own children when the program is gone. Must never be used in the program.
"""

from __future__ import annotations

import atexit
import ctypes
import faulthandler
import importlib
import os
import pickle
import signal
import socket
import sys
import threading
import time
import traceback
from collections.abc import Callable, Sequence
from contextlib import suppress
from multiprocessing.connection import Connection
from queue import SimpleQueue
from types import FrameType
from typing import Any, TextIO

import torch
import torch.distributed as dist
from torch.distributed import distributed_c10d as c10d

from phalanx import callsite
from phalanx.backend.devices.cuda_streams import default_backend
from phalanx.emulation.patch_installer import put_in
from phalanx.emulation.patch_table import RANK_PROCESS
from phalanx.emulation.stdlib.rank_children import leave_if_forked
from phalanx.engines.outcome import trim_traceback, was_stopped
from phalanx.engines.processes import coverage_in_ranks
from phalanx.engines.processes.fork_server import preloadable
from phalanx.engines.processes.group_rendezvous import GroupRendezvous
from phalanx.engines.processes.inherited_settings import take_over
from phalanx.engines.processes.rank_beginning import Beginning, settle_in
from phalanx.engines.processes.rank_messages import (
    DUMP_SIGNAL,
    Asking,
    CallRequest,
    End,
    Heard,
    Interrupt,
    Note,
    Position,
    Raised,
    Returned,
    Start,
    Unsendable,
    Where,
)
from phalanx.engines.remote.link import Link, attach
from phalanx.engines.remote.shared_memory_path import FastPath
from phalanx.engines.serialization.serialization import pack_value, pickled_error, unpack_call
from phalanx.engines.serialization.socket_wire import memories_of, receive, send
from phalanx.engines.terminal import attach_terminal
from phalanx.errors import UsageError, text_of
from phalanx.system import current_frames, getpid, monotonic

DIE_WITH_PARENT = 1  # PR_SET_PDEATHSIG of Linux
_libc = ctypes.CDLL(None)


def live(control: int, more: Sequence[int]) -> None:
    """Be a rank until told to end. Never returns. `more` are sockets that the first message
    explains: the line to the referee, and that on which rank 0 serves the store."""
    code = 1
    try:
        _die_with_parent()
        _fresh_streams()
        with suppress(EOFError, OSError):
            _ProcessRank(Connection(control), more).serve()
        code = 0
    except BaseException:
        traceback.print_exc()
    finally:
        _flush()
        os._exit(code)


def _die_with_parent() -> None:
    parent = os.getppid()
    if sys.platform == "linux":
        _libc.prctl(DIE_WITH_PARENT, signal.SIGKILL)
        if os.getppid() != parent or parent == 1:
            os._exit(1)


def _fresh_streams() -> None:
    """Lines leave at once, so that none is lost when the rank dies."""
    out, err = _line_by_line(1), _line_by_line(2)
    streams = {"stdout": out, "__stdout__": out, "stderr": err, "__stderr__": err}
    put_in(RANK_PROCESS, [(sys, name, stream) for name, stream in streams.items()])
    faulthandler.enable(all_threads=False)
    faulthandler.register(DUMP_SIGNAL, all_threads=False)


def _line_by_line(fd: int) -> TextIO:
    return open(
        fd, "w", buffering=1, encoding="utf-8", errors="backslashreplace", closefd=False
    )


def _flush() -> None:
    for stream in (sys.stdout, sys.stderr):
        with suppress(Exception):
            stream.flush()
    _libc.fflush(None)


class _ProcessRank:
    """The two threads of a rank and what they share."""

    def __init__(self, control: Connection, more: Sequence[int]) -> None:
        self._control = control
        self._pid = getpid()
        self._answering = threading.Lock()
        self._inbox: SimpleQueue[CallRequest | End] = SimpleQueue()
        self._main_thread = threading.get_ident()
        self._start: Start = pickle.loads(control.recv_bytes())
        self._referee = more[0] if self._start.options.checked else None
        self._fast_path = more[1] if self._start.has_fast_path else None
        self._meeting = GroupRendezvous(
            self._start, more[-1] if self._start.rank == 0 else None
        )
        self._link: Link | None = None
        self._beginning: Beginning | None = None
        os.register_at_fork(after_in_child=control.close)
        _here.append(self)

    def serve(self) -> None:
        threading.Thread(target=self._listen, daemon=True, name="phalanx-control").start()
        while True:
            try:
                order = self._inbox.get()
                if isinstance(order, End):
                    self._leave()
                    return
                self._answer(self._carry_out(order))
            except KeyboardInterrupt:  # when there was nothing to interrupt any more
                continue

    # -- the second thread ------------------------------------------------------------------

    def _listen(self) -> None:
        with suppress(EOFError, OSError):
            while True:
                order = receive(self._control)
                if isinstance(order, Where):
                    self._answer(self._position(order.number))
                elif isinstance(order, Interrupt):
                    self._interrupt()
                else:
                    self._inbox.put(order)
        # The program is gone: nobody would ever stop us or what we started.
        os.killpg(os.getpgrp(), signal.SIGKILL)

    def _position(self, number: int) -> Position:
        frame = current_frames().get(self._main_thread)
        stack = callsite.user_stack(frame)
        return Position(self._start.rank, number, stack, _torch_call(frame))

    def _interrupt(self) -> None:
        """What blocks in Python, or computes, hears of it. A call of torch.distributed waits in
        native code, which no signal ends: there the next step of the main thread tells, when
        the rank that it waits for has ended."""
        rank, wanted = self._start.rank, callable(signal.getsignal(signal.SIGINT))
        waits = _torch_call(current_frames().get(self._main_thread)) is not None
        before = self._step()
        self._answer(Heard(rank, wanted and not waits))
        if wanted:
            signal.pthread_kill(self._main_thread, signal.SIGINT)
        if wanted and waits:
            threading.Thread(target=self._tell_heard, args=(before,), daemon=True).start()

    def _tell_heard(self, before: tuple[int, int]) -> None:
        while self._step() == before:
            time.sleep(0.005)
        with suppress(OSError):
            self._answer(Heard(self._start.rank))

    def _step(self) -> tuple[int, int]:
        frame = current_frames().get(self._main_thread)
        return (id(frame), -1 if frame is None else frame.f_lasti)

    # -- the main thread --------------------------------------------------------------------

    def _answer(
        self, message: Returned | Unsendable | Raised | Position | Heard | Note | Asking
    ) -> None:
        data = pickle.dumps(message, pickle.HIGHEST_PROTOCOL)
        with self._answering:
            send(self._control, data, memories_of(message))

    def leave_note(self, data: bytes) -> None:
        if getpid() == self._pid:  # and not in a child that the rank has forked
            self._answer(Note(self._start.rank, data))

    def _tell_asking(self, begins: bool) -> None:
        if getpid() == self._pid:
            self._answer(Asking(self._start.rank, begins))

    def _carry_out(self, call: CallRequest) -> Returned | Unsendable | Raised:
        rank, loading = self._start.rank, True
        try:
            self._prepare(call)
            fn, args, kwargs = unpack_call(call.serialized)
            loading = False
            if not call.bare:
                self._init()
            value = _value_of(fn, args, kwargs)
            leave_if_forked(self._pid)
            if self._link is not None:
                self._link.tell_notes()
        except BaseException as error:
            leave_if_forked(self._pid, error)
            if self._link is not None:
                self._link.tell_dropped()
            return self._raised(error, loading=loading)
        finally:
            _flush()
            coverage_in_ranks.save()
            if self._link is not None:
                self._link.flush()
        try:
            begun = self._beginning
            worn = self._meeting.is_worn or (
                begun is not None and begun.is_worn(fresh=call.fresh)
            )
            return Returned(rank, pack_value(value), preloadable(), worn)
        except UsageError as error:
            return Unsendable(rank, str(error))

    def _prepare(self, call: CallRequest) -> None:
        if self._beginning is not None:
            if call.fresh:
                self._beginning.come_back(call.inherited)
                self._meeting.begin_anew()
                if self._link is not None:
                    self._link.reset()
            return
        start = self._start
        settle_in(start)
        # Read by torch when it was loaded, which was before this rank had its environment.
        threads = start.environ.get("OMP_NUM_THREADS", "").partition(",")[0]
        if threads.isdigit() and int(threads) > 0:
            torch.set_num_threads(int(threads))
        dist.set_debug_level_from_env()  # type: ignore[attr-defined]
        for name in start.imports:
            importlib.import_module(name)
        if self._referee is not None:
            fast_path = (
                None
                if self._fast_path is None
                else FastPath(self._fast_path, start.options.ranks)
            )
            referee = socket.socket(fileno=self._referee)
            self._link = attach(
                referee, rank=start.rank, fast_path=fast_path, kinds=start.options.kinds
            )
        self._meeting.open()
        coverage_in_ranks.begin()
        attach_terminal(start.rank, start.input, self._tell_asking)
        self._beginning = Beginning(start)
        take_over(call.inherited)

    def _init(self) -> None:
        start = self._start
        if not start.options.init or dist.is_initialized():
            return
        if start.gpu is not None:
            torch.cuda.set_device(start.gpu)
        dist.init_process_group(
            start.options.backend or default_backend(),
            store=self._meeting.store_of_next_init(),
            rank=start.rank,
            world_size=start.options.ranks,
        )

    def _raised(self, error: BaseException, *, loading: bool) -> Raised:
        when = monotonic()
        site, call = callsite.raised_at(error.__traceback__), _raising_call(error)
        invalid = None if self._link is None else self._link.judge_error(error)
        facts = None if self._link is None else self._link.facts_of(error)
        trim_traceback(error)
        return Raised(
            rank=self._start.rank,
            kind=type(error).__name__,
            message=text_of(error),
            trace="".join(traceback.format_exception(error)),
            when=when,
            error=pickled_error(error),
            site=site,
            call=call,
            loading=loading,
            stopped=was_stopped(error),
            invalid=invalid,
            facts=facts,
        )

    def _leave(self) -> None:
        """As at the end of a program: groups, then what modules asked for at exit. Gloo has
        nothing that outlives the process, and takes 30 ms to put its threads away."""
        if self._link is not None:
            self._link.detach()
        with suppress(Exception):
            if dist.is_initialized() and dist.get_backend() != dist.Backend.GLOO:
                dist.destroy_process_group()
        run_at_exit: Callable[[], None] = atexit._run_exitfuncs
        with suppress(Exception):
            run_at_exit()


_here: list[_ProcessRank] = []


def leave_note(data: bytes) -> None:
    """In a rank: what the caller gets with the error if this call is not heard of any more."""
    for rank in _here:
        rank.leave_note(data)


def _value_of(fn: Any, args: Any, kwargs: Any) -> Any:
    """A program that ends by `sys.exit()` has succeeded, as with threads."""
    try:
        return fn(*args, **kwargs)
    except SystemExit as end:
        if end.code not in (None, 0):
            raise
        return None


def _torch_call(frame: FrameType | None) -> str | None:
    """The outermost public function of torch.distributed below the user's innermost frame."""
    found = None
    while frame is not None and callsite.is_library_file(frame.f_code.co_filename):
        name = frame.f_code.co_name
        if frame.f_globals.get("__name__") == c10d.__name__:
            found = name if name in c10d.__all__ else found
        frame = frame.f_back
    return found


def _raising_call(error: BaseException) -> str | None:
    """The same, of the place where an error came up."""
    trace = error.__traceback__
    while trace is not None and trace.tb_next is not None:
        trace = trace.tb_next
    return None if trace is None else _torch_call(trace.tb_frame)
