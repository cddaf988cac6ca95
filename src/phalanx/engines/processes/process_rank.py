"""A rank of the processes engine: what runs in it after it was forked.

The preloaded parent (`fork_server_main.py`) calls `live`. The main thread carries out calls of
the program; what every remote rank does is in `engines/remote/rank_main.py`. Must never be used
in the program.
"""

from __future__ import annotations

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
from collections.abc import Sequence
from contextlib import nullcontext, suppress
from multiprocessing.connection import Connection
from queue import SimpleQueue
from typing import Any, TextIO

import torch
import torch.distributed as dist

from phalanx.backend.devices.cuda_streams import default_backend
from phalanx.backend.evidence.departures import left_by, note_departure
from phalanx.backend.stores.store_keys import ports
from phalanx.emulation.patch_installer import put_in
from phalanx.emulation.patch_table import RANK_PROCESS, WATCHED
from phalanx.engines.processes import coverage_in_ranks
from phalanx.engines.processes.fork_server import preloadable
from phalanx.engines.processes.group_rendezvous import GroupRendezvous
from phalanx.engines.processes.inherited_settings import take_over
from phalanx.engines.processes.leaving_init import leaving_patches
from phalanx.engines.processes.rank_beginning import Beginning, settle_in
from phalanx.engines.processes.rank_messages import (
    CallRequest,
    End,
    Heard,
    Interrupt,
    Note,
    Returned,
    Start,
    Unsendable,
)
from phalanx.engines.real_faults.call_faults import CallFaults
from phalanx.engines.real_faults.rank_faults import RankFaults
from phalanx.engines.real_faults.silent_line import SilentLine
from phalanx.engines.remote.control_messages import DUMP_SIGNAL, Raised
from phalanx.engines.remote.idle_threads import threads_joined
from phalanx.engines.remote.link import attach
from phalanx.engines.remote.object_lifetimes import outliving_patches
from phalanx.engines.remote.rank_main import (
    RemoteRank,
    die_with_parent,
    flush_streams,
    torch_call,
)
from phalanx.engines.remote.shared_memory_path import FastPath
from phalanx.engines.remote.watcher import Watcher
from phalanx.engines.serialization.serialization import pack_value, pickled_error, unpack_call
from phalanx.errors import UsageError


def live(control: int, more: Sequence[int]) -> None:
    """Be a rank until told to end. Never returns. `more` are sockets that the first message
    explains: the line to the referee, and that on which rank 0 serves the store."""
    code = 1
    try:
        die_with_parent()
        _fresh_streams()
        with suppress(EOFError, OSError):
            _ProcessRank(Connection(control), more).serve()
        code = 0
    except BaseException:
        traceback.print_exc()
    finally:
        flush_streams()
        os._exit(code)


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


class _ProcessRank(RemoteRank):
    """Carries out one call after the other, until told to end."""

    def __init__(self, control: Connection, more: Sequence[int]) -> None:
        start: Start = pickle.loads(control.recv_bytes())
        super().__init__(control, start.rank)
        self._start = start
        self._inbox: SimpleQueue[CallRequest | End] = SimpleQueue()
        self._referee = more[0] if start.options.checked else None
        self._fast_path = more[1] if start.has_fast_path else None
        self._meeting = GroupRendezvous(
            start, more[-1] if start.rank == 0 and start.serves_store else None
        )
        self._beginning: Beginning | None = None
        self._faults = self._make_faults()
        _here.append(self)

    def serve(self) -> None:
        self.listen()
        while True:
            try:
                order = self._inbox.get()
                if isinstance(order, End):
                    self.detach()
                    self.end_program()
                    return
                self.tell(self._carry_out(order))
            except KeyboardInterrupt:  # when there was nothing to interrupt any more
                continue

    # -- the second thread ------------------------------------------------------------------

    def take_order(self, order: Any) -> None:
        if isinstance(order, Interrupt):
            self._interrupt()
        elif self._faults is None or not self._faults.obey(order):
            self._inbox.put(order)

    def _interrupt(self) -> None:
        """What blocks in Python, or computes, hears of it. A call of torch.distributed waits in
        native code, which no signal ends: there the next step of the main thread tells, when
        the rank that it waits for has ended."""
        wanted = callable(signal.getsignal(signal.SIGINT))
        waits = torch_call(self.main_frame()) is not None
        before = self._step()
        self.tell(Heard(self.rank, wanted and not waits))
        if wanted:
            signal.pthread_kill(self.main_thread, signal.SIGINT)
        if wanted and waits:
            threading.Thread(target=self._tell_heard, args=(before,), daemon=True).start()

    def _tell_heard(self, before: tuple[int, int]) -> None:
        while self._step() == before:
            time.sleep(0.005)
        with suppress(OSError):
            self.tell(Heard(self.rank))

    def _step(self) -> tuple[int, int]:
        frame = self.main_frame()
        return (id(frame), -1 if frame is None else frame.f_lasti)

    # -- the main thread --------------------------------------------------------------------

    def leave_note(self, data: bytes) -> None:
        self.tell_own(Note(self.rank, data))

    def _carry_out(self, call: CallRequest) -> Returned | Unsendable | Raised:
        loading, values = True, []

        def body() -> None:
            nonlocal loading
            self._prepare(call)
            fn, args, kwargs = unpack_call(call.serialized)
            loading = False
            if self._faults is not None:
                self._faults.begin(call.faults)
            if not call.bare:
                self._init()
            with nullcontext() if call.lingers else threads_joined():
                values.append(_value_of(fn, args, kwargs))

        def describe(error: BaseException) -> Raised:
            return self.describe_failure(error, pickled_error, loading=loading)

        try:
            failure: Raised | None = self.run(body, describe)
        finally:
            coverage_in_ranks.save()
        if failure is not None:
            return failure
        try:
            begun = self._beginning
            worn = self._meeting.is_worn or (
                begun is not None and begun.is_worn(fresh=call.fresh)
            )
            return Returned(self.rank, pack_value(values.pop()), preloadable(), worn)
        except UsageError as error:
            return Unsendable(self.rank, str(error))

    def _prepare(self, call: CallRequest) -> None:
        if self._beginning is not None:
            if call.fresh:
                self._beginning.come_back(call.inherited)
                self._meeting.begin_anew()
                if self.link is not None:
                    self.link.reset()
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
        put_in(WATCHED, leaving_patches())
        faults = None if self._faults is None else CallFaults(self._faults)
        if self._referee is not None:
            fast_path = (
                None
                if self._fast_path is None
                else FastPath(self._fast_path, start.options.ranks)
            )
            referee = socket.socket(fileno=self._referee)
            self.link = attach(
                referee,
                rank=start.rank,
                fast_path=fast_path,
                kinds=start.options.kinds,
                faults=faults,
            )
            if self._faults is not None:
                self._faults.flush = self.link.flush
        else:
            if start.options.timeout is not None:
                self.notice_calls()
            if faults is not None:
                self._watch_alone(faults)
            else:
                put_in(WATCHED, outliving_patches())
        self._meeting.open()
        coverage_in_ranks.begin()
        self.attach_terminal(start.input)
        self._beginning = Beginning(start)
        take_over(call.inherited)

    def _make_faults(self) -> RankFaults | None:
        options = self._start.options
        if not options.faults:
            return None
        return RankFaults(
            self.rank,
            self.tell_own,
            ports=lambda: {self._start.store_port, *ports},
            disconnect=self._meeting.disconnect,
            is_telling=self.is_telling,
        )

    def _watch_alone(self, faults: CallFaults) -> None:
        """Nothing is checked, and still the calls are counted."""
        Watcher(SilentLine(), self.rank, frozenset(), faults).start()

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


_here: list[_ProcessRank] = []


def leave_note(data: bytes) -> None:
    """In a rank: what the caller gets with the error if this call is not heard of any more."""
    for rank in _here:
        rank.leave_note(data)


def own_number() -> int:
    """The number of the rank that this process is."""
    return _here[0].rank


def tell_test(test: str) -> None:
    """In a rank: that its program is pytest, and begins this test."""
    for rank in _here:
        rank.tell_test(test)


def _value_of(fn: Any, args: Any, kwargs: Any) -> Any:
    """A program that ends by `sys.exit()` has succeeded, as with threads."""
    try:
        return fn(*args, **kwargs)
    except SystemExit as end:
        if end.code not in (None, 0):
            raise
        note_departure(left_by(end))
        return None
