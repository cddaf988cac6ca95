"""Calls of Python's own that a rank must not make as they are, and what it makes instead.

They block (`time.sleep`, `Condition.wait`, `Thread.join`), poll, would end or leave the process
(`os._exit`, `fork`), or start threads that belong to the rank. `call_patches` lists them all
for `run_patches.py` to install during runs; threads that belong to no rank get the originals.
"""

from __future__ import annotations

import inspect
import logging
import multiprocessing.connection
import multiprocessing.util
import os
import selectors
import subprocess
import sys
import threading
import time
from contextlib import suppress
from functools import cache, partial
from typing import Any

from phalanx.backend.devices import device_mode
from phalanx.backend.session import RankContext
from phalanx.backend.torch_private import private
from phalanx.backend.work import profiler_events
from phalanx.callsite import near_frames
from phalanx.core.strand import Strand, here
from phalanx.core.thread_pool import no_daemon
from phalanx.emulation.random.helper_thread_rng import as_helper
from phalanx.emulation.state.exits import FINALIZERS, FUNCTIONS
from phalanx.emulation.state.rank_output import child_streams
from phalanx.emulation.stdlib import blocking
from phalanx.emulation.stdlib.blocking import (
    SERVICES,
    Blocked,
    come_back,
    is_on_virtual_clock,
    known_to_wait,
    main_strand,
    starting,
    wait_on_clock,
    wait_sliced,
)
from phalanx.emulation.stdlib.executor_pools import is_pool_thread, note_thread, pool_patches
from phalanx.emulation.stdlib.rank_children import note_program, process_patches
from phalanx.emulation.stdlib.signals import signal_patches
from phalanx.errors import RankExited, RankStopped

LOOKS = ("stat", "listdir", "scandir")
POLLS = 50
"""How many looks at one and the same file count as polling: then the others get a turn."""
PLACES = 1000
"""Who looks at more files than this is not polling."""

_PARAMETERS = list(inspect.signature(subprocess.Popen).parameters)
_ENV_PLACE, _STREAMS_PLACE = _PARAMETERS.index("env"), _PARAMETERS.index("stdout")


def call_patches() -> list[tuple[Any, str, Any]]:
    """(owner, attribute, replacement) for everything replaced in Python itself."""
    return [
        (_torch_logger, "filters", [*_torch_logger.filters, _outside_of_ranks]),
        (time, "sleep", _sleeping(time.sleep)),
        *((os, name, _polling(getattr(os, name))) for name in LOOKS),
        (os, "_exit", _exiting("os._exit", os._exit)),
        (os, "abort", _exiting("os.abort", os.abort)),
        (subprocess.Popen, "__init__", _inheriting(subprocess.Popen.__init__)),
        *_affinity_patches(),
        *((owner, name, _stepping_out(getattr(owner, name))) for owner, name in _NATIVE_WAITS),
        (os, "system", _in_a_shell(os.system)),
        (threading.Condition, "wait", blocking.waiting(threading.Condition.wait)),
        (threading.Thread, "join", blocking.joining(threading.Thread.join)),
        (threading.Thread, "start", _adopting(threading.Thread.start)),
        (threading, "main_thread", _main_thread_of_rank),
        *((kind, "select", _selecting(kind.select)) for kind in _SELECTORS),
        *process_patches(),
        *signal_patches(),
        *pool_patches(enter_thread),
    ]


_torch_logger = logging.getLogger("c10d-NullHandler-default")
"""torch logs every exception that leaves a collective here, the whole report and all, for
nobody; pytest would show it once per rank."""


def _outside_of_ranks(record: logging.LogRecord) -> bool:
    return here.strand is None


def _sleeping(original: Any) -> Any:
    def sleep(seconds: float) -> None:
        strand = here.strand
        if strand is None or (strand.helper and not is_on_virtual_clock(strand)):
            original(seconds)
            return
        if seconds < 0:
            raise ValueError("sleep length must be non-negative")
        if strand.helper:
            wait_on_clock(strand, Blocked("time.sleep"), seconds)
        else:
            strand.baton.sleep(strand, seconds, Blocked("time.sleep"))

    return sleep


@cache
def _polling(original: Any) -> Any:
    """A rank that looks for files in a tight loop must let the others run: one of them is
    to write them. The standard library asks sets of functions what these can do."""

    def look(*args: Any, **kwargs: Any) -> Any:
        strand = main_strand()
        if strand is not None and _is_polling(strand, str(args[:1])):
            strand.baton.give_way(strand)
        return original(*args, **kwargs)

    for able in (os.supports_dir_fd, os.supports_fd, os.supports_follow_symlinks):
        if original in able:
            able.add(look)
    return look


def _is_polling(strand: Strand, place: str) -> bool:
    looks = strand.local.saved.setdefault("looks", {})
    looks[place] = looks.get(place, 0) + 1
    if looks[place] <= POLLS and len(looks) <= PLACES:
        return False
    often = looks[place] > POLLS
    looks.clear()
    return often and not _is_importing_or_quoting()


def _is_importing_or_quoting() -> bool:
    """Whether the calling thread is inside an import, so that another rank that imports the
    same module would block natively; or reads source lines for a traceback, which torch does
    while it holds locks (`torch.manual_seed`)."""
    return any(
        frame.f_code.co_filename == "<frozen importlib._bootstrap>"
        or frame.f_globals.get("__name__") == "linecache"
        for frame in near_frames(sys._getframe(1))
    )


def _exiting(how: str, original: Any) -> Any:
    """`os._exit` in a rank would end all ranks and the caller without a word. As in a process,
    what was asked for at the end does not happen, and no thread is waited for."""

    def leave(code: int = 134) -> None:
        strand = here.strand
        if strand is None:
            original(code) if how == "os._exit" else original()
            return
        for key in (FUNCTIONS, FINALIZERS):
            strand.local.saved.pop(key, None)
        for thread in strand.local.helpers:
            thread._daemonic = True
        raise RankExited(how, code)

    return leave


def _inheriting(original: Any) -> Any:
    """A program that a rank starts inherits the rank's environment, not the launcher's, may
    use all cores, and prints where the rank prints."""

    def construct(self: Any, *args: Any, **kwargs: Any) -> None:
        strand = here.strand
        if strand is not None:
            strand.baton.affinity.step_out()
            if len(args) <= _ENV_PLACE and kwargs.get("env") is None:
                kwargs["env"] = dict(strand.local.environ)
            if len(args) <= _STREAMS_PLACE:
                kwargs |= child_streams(strand, kwargs)
        original(self, *args, **kwargs)
        note_program(self)

    return construct


_SELECTORS = [
    getattr(selectors, name)
    for name in ("SelectSelector", "PollSelector", "EpollSelector")
    if hasattr(selectors, name)
]


def _selecting(original: Any) -> Any:
    """What asyncio and `subprocess` wait with, in slices: a stop would not reach it in C. On a
    virtual clock it waits by that if only threads of this process can end the wait."""

    def select(self: Any, timeout: float | None = None) -> Any:
        strand = here.strand
        if strand is None or (timeout is not None and timeout <= 0):
            return original(self, timeout)
        if is_on_virtual_clock(strand) and _waits_for_threads(self):
            waits = partial(_finds_nothing, original, self)
            if timeout is not None:
                wait_on_clock(strand, Blocked("select"), timeout, waits)
                return original(self, 0)
            with known_to_wait(strand, waits):
                return select_natively(strand, self, None)
        return select_natively(strand, self, timeout)

    def select_natively(strand: Strand, self: Any, timeout: float | None) -> Any:
        if strand.helper:
            return original(self, timeout)
        found: list[Any] = []

        def attempt(seconds: float) -> bool:
            found[:] = original(self, seconds)
            return bool(found)

        wait_sliced(strand, attempt, timeout)
        return found

    return select


def _finds_nothing(original: Any, selector: Any) -> bool:
    return not original(selector, 0)


def _waits_for_threads(selector: Any) -> bool:
    """Whether nothing is registered but the pipe by which threads wake an asyncio loop."""
    events = sys.modules.get("asyncio.selector_events")
    wake = getattr(getattr(events, "BaseSelectorEventLoop", None), "_read_from_self", None)
    for key in (selector.get_map() or {}).values():
        reader = key.data[0] if isinstance(key.data, tuple) and key.data else None
        callback = getattr(reader, "_callback", None)
        if wake is None or getattr(callback, "__func__", None) is not wake:
            return False
    return True


_main_thread = threading.main_thread


def _main_thread_of_rank() -> threading.Thread:
    """A rank's own thread, in it and in those that it started: many programs ask before they
    set a handler for a signal, and asyncio before it makes a loop."""
    strand = here.strand
    if strand is None:
        return _main_thread()
    idents = {each.ident for each in _main_strands_of(strand)}
    return next(
        (each for each in threading.enumerate() if each.ident in idents), _main_thread()
    )


def _main_strands_of(strand: Strand) -> list[Strand]:
    if not strand.helper:
        return [strand]
    strands = list(strand.baton.strands)
    return [each for each in strands if each.rank == strand.rank and not each.helper]


_NATIVE_WAITS = [
    (subprocess.Popen, "wait"),
    (subprocess.Popen, "communicate"),
    (multiprocessing.connection.Connection, "recv_bytes"),
    (multiprocessing.connection.Connection, "poll"),
    (multiprocessing.connection, "wait"),
]


def _stepping_out(original: Any) -> Any:
    """Common waits for other processes. The monitor would notice them too, but then the rank
    goes on without the baton when they end."""

    def wait(*args: Any, **kwargs: Any) -> Any:
        strand = main_strand()
        if strand is None:
            return original(*args, **kwargs)
        strand.why = Blocked(original.__qualname__)
        strand.baton.leave(strand)
        try:
            return original(*args, **kwargs)
        finally:
            strand.why = None
            strand.baton.rejoin(strand)

    return wait


def _in_a_shell(original: Any) -> Any:
    """`os.system` reads the environment of the process; `subprocess` takes the rank's."""

    def system(command: str) -> int:
        if here.strand is None:
            return int(original(command))
        return subprocess.call(command, shell=True) << 8

    return system


def _affinity_patches() -> list[tuple[Any, str, Any]]:
    """A rank that asks how many cores it may use must hear of all."""
    original = getattr(os, "sched_getaffinity", None)
    if original is None:
        return []

    def ask(pid: int, /) -> set[int]:
        strand = here.strand
        if strand is None:
            return set(original(pid))
        strand.baton.affinity.step_out()
        return strand.baton.affinity.without_ours(pid, original(pid))

    return [(os, "sched_getaffinity", ask)]


def _adopting(original: Any) -> Any:
    """A thread that a rank starts belongs to that rank."""

    def start(self: threading.Thread) -> None:
        strand = here.strand
        if strand is not None and _is_service(self):
            here.strand = None  # such threads belong to no rank
            try:
                original(self)
            finally:
                here.strand = strand
            if is_pool_thread(self):
                note_thread(strand.local, self)
            else:
                come_back(strand)
            return
        if strand is None or self.ident is not None:
            original(self)
            return
        context: RankContext = strand.local
        child = strand.baton.add(strand.rank, context, helper=True)
        child.thread = self
        self.run = _as_helper(child, self, self.run)  # type: ignore[method-assign]
        self.daemon = True
        context.helpers.append(self)
        starting.now = True
        try:
            original(self)
        except BaseException:
            strand.baton.finish(child)
            here.strand = strand
            raise
        finally:
            starting.now = False
        come_back(strand)

    return start


def _is_service(thread: threading.Thread) -> bool:
    target = getattr(thread, "_target", None)
    return (
        getattr(target, "__module__", None) in SERVICES
        or type(thread).__module__ in SERVICES
        or is_pool_thread(thread)
    )


def _as_helper(strand: Strand, thread: threading.Thread, body: Any) -> Any:
    is_daemon = thread.daemon

    def run() -> None:
        if not is_daemon:
            no_daemon(thread)
        strand.baton.adopt(strand)
        enter_thread(strand.local)
        try:
            with suppress(RankStopped), as_helper(strand):
                body()
        except BaseException as error:
            # Told here and not by Python's own code, which would no longer know the rank.
            trace = error.__traceback__.tb_next if error.__traceback__ is not None else None
            args = (type(error), error.with_traceback(trace), trace, thread)
            threading.excepthook(threading.ExceptHookArgs(args))
        finally:
            with suppress(RankStopped):
                profiler_events.leave_thread()
                private.unregister_groups()
                strand.baton.finish(strand)
            with suppress(ValueError):
                strand.local.helpers.remove(thread)

    return run


def enter_thread(context: RankContext) -> None:
    """What torch keeps per thread and a thread of a rank needs: its groups by name, a
    backward pass that stays in the thread, so that hooks know which rank they are, and the
    GPUs that it may name."""
    private.keep_backward_in_thread()
    if context.session.devices is not None:
        device_mode.enter_thread(context.session.devices)
    for group, name in context.torch_state.pg_names.items():
        private.register_group(name, group)
    if context.strikes is not None:
        context.strikes.enter_thread()
