"""Processes that a rank starts: data loaders' workers, pools, `multiprocessing`, `subprocess`.

They are real processes that belong to the rank as if it were a process itself: they get its
environment, are its `active_children`, have a fork server of its own, and end as the children
of a process do. The engine calls `end_processes` when a rank ends. A program without a number
of ranks registers its `SpawningProgram` here, which then receives the processes that it starts.
Installed by `replaced_calls.py`.
"""

from __future__ import annotations

import multiprocessing
import multiprocessing.context
import multiprocessing.forkserver
import multiprocessing.process
import multiprocessing.util
import os
import select
import signal
import sys
import time
import traceback
import weakref
from collections.abc import Iterator
from concurrent.futures import process as process_pools
from contextlib import suppress
from multiprocessing.queues import Queue
from threading import get_ident
from typing import Any

import torch.multiprocessing

from phalanx.backend.session import RankContext, context_here
from phalanx.backend.torch_private.private_loaders import LoaderIterator, shut_down
from phalanx.core.strand import here
from phalanx.emulation.children.spawn_rules import is_torch_spawn
from phalanx.emulation.state.environ import seen_by_c, show_to_c
from phalanx.emulation.stdlib.blocking import wait_sliced
from phalanx.errors import RankStopped, WrongCommand
from phalanx.system import getpid, monotonic

GRACE = 0.5
"""Seconds between asking a rank's processes to end and ending them."""

_CHILDREN, _PROGRAMS, _FORKED = "children", "programs", "forked"
_LOADERS, _SERVER = "loaders", "fork server"
QUEUES = "queues"
"""The keys under which a rank keeps its processes, in `RankContext.saved`."""
PROCESSES = (_CHILDREN, _PROGRAMS, _FORKED, _LOADERS, QUEUES, _SERVER)

_sleep = time.sleep
_queue: Any = Queue

_family: Any = None
as_processes = False
"""Whether children of a rank that has no group are just processes: `--children processes`."""


_POOL_WORKERS = ("multiprocessing.pool", "torch.multiprocessing.pool")
_pools: list[Any] = []
"""A worker of a pool that the program has started; one is enough."""


def set_family(family: Any) -> None:
    global _family
    _family = family
    if family is not None:
        _pools.clear()


def has_started_pool() -> bool:
    """Whether the program has started a pool of `multiprocessing`. Its workers are no ranks:
    they begin before anything says whether they will form a group."""
    return bool(_pools)


def take_observed() -> bool:
    """Whether the program has looked at the exit code of a rank that failed, since this was
    asked the last time."""
    observed = _family is not None and _family.observed
    if observed:
        _family.observed = False
    return observed


def process_patches() -> list[tuple[Any, str, Any]]:
    """(owner, attribute, replacement) for what starts processes and counts them."""
    active = _active_children(multiprocessing.process.active_children)
    server, util = multiprocessing.forkserver, multiprocessing.util
    return [
        *_popen_patches(),
        (util, "spawnv_passfds", _with_environ(util.spawnv_passfds)),
        (util, "get_temp_dir", _as_nobody(util.get_temp_dir)),
        (multiprocessing.process, "active_children", active),
        (multiprocessing, "active_children", active),
        (torch.multiprocessing, "active_children", active),
        *((server, name, _by_own_server(name)) for name in _SERVER_CALLS),
        (Queue, "_start_thread", _noting(_queue._start_thread)),
        (LoaderIterator, "__init__", _noting_loader(LoaderIterator.__init__)),
        (LoaderIterator, "__del__", _finalising(LoaderIterator.__del__)),
        (os, "fork", _forking(os.fork)),
        (os, "waitpid", _waiting(os.waitpid)),
    ]


def _popen_patches() -> Iterator[tuple[Any, str, Any]]:
    for name in ("ForkProcess", "SpawnProcess", "ForkServerProcess"):
        kind = getattr(multiprocessing.context, name, None)
        if kind is not None:
            forked = name == "ForkProcess"
            yield kind, "_Popen", staticmethod(_starting(kind._Popen, forked=forked))


def _starting(original: Any, *, forked: bool) -> Any:
    def start(process: Any) -> Any:
        context = context_here()
        if context is not None and _family is not None and _family.takes_back(process):
            context = None
        if context is None:
            if _family is None:
                return original(process)
            target: Any = getattr(process, "_target", None)
            if getattr(target, "__module__", None) in _POOL_WORKERS:
                _pools[:] = [process.name]
            return _family.start(process, original, forked=forked)
        _check_nested(process, context)
        found = original(process)
        _remember(context, _CHILDREN, process, lambda each: each.exitcode is None)
        return found

    return start


def _check_nested(process: Any, context: RankContext) -> None:
    """A rank without a group that starts numbered processes: the program was meant to start
    its ranks itself."""
    if as_processes or context.initialised or not is_torch_spawn(process):
        return
    raise WrongCommand(
        "the program calls torch.multiprocessing.spawn before init_process_group, so it starts "
        "its ranks itself: leave the number of ranks out (phalanx run SCRIPT), then the "
        "processes that it starts become the ranks. If they are to be plain processes of each "
        "rank, write --children processes"
    )


def _remember(context: RankContext, key: str, new: Any, is_alive: Any) -> None:
    """Keep the process, and drop those that have ended: a data loader starts some in every
    epoch."""
    known = context.saved.setdefault(key, [])
    if len(known) >= 16:
        known[:] = [each for each in known if is_alive(each)]
    known.append(new)


def note_program(program: Any) -> None:
    """A `subprocess.Popen` of a rank's, or of a program that starts its ranks itself."""
    context = context_here()
    if context is not None:
        _remember(context, _PROGRAMS, program, lambda each: each.returncode is None)
    elif _family is not None:
        _family.programs.add(program)


def _forking(original: Any) -> Any:
    def fork() -> int:
        strand = here.strand
        if strand is not None:
            strand.baton.affinity.step_out()
        pid = int(original())
        if pid and strand is not None:
            _remember(strand.local, _FORKED, pid, _is_own_child)
        return pid

    return fork


def _waiting(original: Any) -> Any:
    def waitpid(pid: int, options: int, /) -> Any:
        strand = here.strand
        if strand is None or strand.helper or options & os.WNOHANG:
            return original(pid, options)
        found: list[Any] = []
        with _ProcessEnd(pid) as watch:

            def attempt(seconds: float) -> bool:
                watch.wait(seconds)
                found[:] = original(pid, options | os.WNOHANG)
                return bool(found[0])

            wait_sliced(strand, attempt)
        return tuple(found)

    return waitpid


class _ProcessEnd:
    """Waits until a process has ended; where the system cannot report that, for a moment."""

    MOMENT = 0.005

    def __init__(self, pid: int) -> None:
        self._descriptor: int | None = None
        with suppress(AttributeError, OSError, OverflowError):  # no Linux, or no such process
            self._descriptor = os.pidfd_open(pid) if pid > 0 else None

    def __enter__(self) -> _ProcessEnd:
        return self

    def wait(self, seconds: float) -> None:
        if self._descriptor is None:
            _sleep(min(seconds, self.MOMENT))
        else:
            poll = select.poll()
            poll.register(self._descriptor, select.POLLIN)
            poll.poll(1000 * seconds)

    def __exit__(self, *error: Any) -> None:
        if self._descriptor is not None:
            os.close(self._descriptor)


def _noting(original: Any) -> Any:
    """Note the queues of a rank when they get their sending thread."""

    def start_thread(self: Any) -> Any:
        context = context_here()
        if context is not None:
            _remember(context, QUEUES, self, lambda each: not each._closed)
        return original(self)

    return start_thread


def _noting_loader(original: Any) -> Any:
    def construct(self: Any, *args: Any, **kwargs: Any) -> None:
        context = context_here()
        if context is not None:
            alive = context.saved.setdefault(_LOADERS, weakref.WeakSet())
            alive.add(self)
        original(self, *args, **kwargs)

    return construct


def _finalising(original: Any) -> Any:
    """A finaliser that, in a rank that unwinds, neither waits for a turn nor reports an
    error."""

    def finalise(self: Any) -> None:
        strand = here.strand
        if strand is None or not strand.baton.stopping:
            with suppress(RankStopped):  # meanwhile
                original(self)
                return
        here.strand = None
        try:
            with suppress(Exception, RankStopped):
                original(self)
        finally:
            here.strand = strand

    return finalise


def _shut_down_loaders(context: RankContext) -> None:
    for loader in list(context.saved.pop(_LOADERS, ())):
        with suppress(Exception):
            shut_down(loader)


_alive: dict[int, Any] = {}
"""The objects kept, by thread: several may fork at the same time."""


def _keep_loaders() -> None:
    """Before a rank forks: in the child, what other ranks iterate with must not be finalised,
    as it would be with their modules: its workers are no children of that process."""
    strand = here.strand
    if strand is not None:
        contexts = [each.local for each in strand.baton.strands]
        _alive[get_ident()] = [[*each.saved.get(_LOADERS, ())] for each in contexts]


def _after_fork() -> None:
    _alive.pop(get_ident(), None)


if hasattr(os, "register_at_fork"):
    os.register_at_fork(before=_keep_loaders, after_in_parent=_after_fork)


def close_queues(context: RankContext) -> None:
    """Block until what was put into its queues is sent, as at the end of a process."""
    for queue in context.saved.pop(QUEUES, ()):
        with suppress(Exception):
            queue.close()
            if not queue._joincancelled:
                queue.join_thread()


def _with_environ(original: Any) -> Any:
    """A program that is started this way gets the environment that C code sees."""

    def spawn(path: Any, args: Any, passfds: Any) -> Any:
        strand = here.strand
        if strand is None:
            return original(path, args, passfds)
        strand.baton.affinity.step_out()
        own, outer, shown = strand.local.environ, _process_environ(), dict(seen_by_c)
        differing = {key for key in own.keys() | outer.keys() if own.get(key) != outer.get(key)}
        new = differing - shown.keys()
        show_to_c(own, differing)
        try:
            return original(path, args, passfds)
        finally:
            show_to_c(outer, new)
            for key in new:
                del seen_by_c[key]

    return spawn


def _as_nobody(original: Any) -> Any:
    """All ranks and their processes share the folder for sockets: it must not go with the rank
    that happened to ask for it first."""

    def find() -> Any:
        outer, here.strand = here.strand, None
        try:
            return original()
        finally:
            here.strand = outer

    return find


def _process_environ() -> dict[str, str]:
    data = os.environ._data  # type: ignore[attr-defined]
    return {os.fsdecode(key): os.fsdecode(value) for key, value in data.items()}


def _active_children(original: Any) -> Any:
    def active_children() -> list[Any]:
        found = original()
        context = context_here()
        if context is None:
            return list(found)
        own = context.saved.get(_CHILDREN, ())
        return [each for each in found if any(each is mine for mine in own)]

    return active_children


_SERVER_CALLS = ("connect_to_new_process", "ensure_running")


def _by_own_server(name: str) -> Any:
    """Each rank has a fork server of its own, made in its environment."""
    original = getattr(multiprocessing.forkserver, name)

    def call(*args: Any) -> Any:
        context = context_here()
        if context is None:
            return original(*args)
        server = context.saved.get(_SERVER)
        if server is None:
            server = context.saved[_SERVER] = multiprocessing.forkserver.ForkServer()
        return getattr(server, name)(*args)

    return call


# -- the end of a rank -------------------------------------------------------------------


def end_pools(context: RankContext) -> None:
    """Shut down the rank's pools of processes, as Python does when a program has returned."""
    for thread in list(context.helpers):
        if isinstance(thread, process_pools._ExecutorManagerThread):
            executor = thread.executor_reference()
            if executor is not None:
                executor.shutdown(wait=False)


def end_processes(context: RankContext, *, failed: bool) -> None:
    """As multiprocessing does at the end of a process: daemons are ended, others waited for.
    Where the rank had no chance to see to its processes, all of them are ended."""
    saved = context.saved
    if saved.keys().isdisjoint(PROCESSES):
        return
    outer = here.strand
    if failed:
        here.strand = None  # a thread that unwinds must not wait for a turn
    try:
        with suppress(RankStopped):
            if failed:
                _end_children(saved.pop(_CHILDREN, ()), failed=True)
            _shut_down_loaders(context)
            close_queues(context)
            _end_children(saved.pop(_CHILDREN, ()), failed=failed)
        if failed:
            end_programs(saved.pop(_PROGRAMS, ()))
            _kill_forked(saved.pop(_FORKED, ()))
        if _SERVER in saved:
            with suppress(OSError, RankStopped):
                saved.pop(_SERVER)._stop()
    finally:
        here.strand = outer


def _end_children(children: Any, *, failed: bool) -> None:
    children = [child for child in children if child._popen is not None]
    doomed = [child for child in children if failed or child.daemon]
    with suppress(OSError, ValueError):
        for child in doomed:
            child.terminate()
    for child in children:
        with suppress(OSError, ValueError, AssertionError):
            child.join(GRACE if child in doomed else None)
            if child.is_alive():
                child.kill()
                child.join(GRACE)


def kill_processes(context: RankContext) -> None:
    """End the processes of a rank that was given up, at once and from another thread."""
    for child in context.saved.pop(_CHILDREN, ()):
        with suppress(OSError, ValueError, AttributeError):
            child.kill()
    for program in context.saved.pop(_PROGRAMS, ()):
        with suppress(OSError):
            program.kill()
    _kill_forked(context.saved.pop(_FORKED, ()))


def end_programs(programs: Any) -> None:
    """Terminate them; kill those that do not end."""
    alive = [program for program in programs if program.poll() is None]
    for program in alive:
        with suppress(OSError):
            program.terminate()
    limit = monotonic() + GRACE
    while alive and monotonic() < limit:
        alive = [program for program in alive if program.poll() is None]
        _sleep(0.01)
    for program in alive:
        with suppress(OSError):
            program.kill()
            program.wait(GRACE)


def _kill_forked(pids: Any) -> None:
    for pid in pids:
        if _is_own_child(pid):
            with suppress(OSError):
                os.kill(pid, signal.SIGKILL)
                os.waitpid(pid, 0)


def _is_own_child(pid: int) -> bool:
    """Whether it still runs, and no other process has got its number."""
    try:
        with open(f"/proc/{pid}/stat", "rb") as stat:
            state, parent = stat.read().rpartition(b") ")[2].split()[:2]
    except OSError:
        return False
    return int(parent) == getpid() and state != b"Z"


def leave_if_forked(pid: int, error: BaseException | None = None) -> None:
    """At the end of a rank's program: if this is a process that the rank forked, it ends here,
    as a process does, and not in the launcher of its parent."""
    if getpid() == pid:
        return
    code: Any = 0
    if isinstance(error, SystemExit):
        code = error.code or 0
        if not isinstance(code, int):
            print(code, file=sys.stderr)
            code = 1
    elif error is not None:
        traceback.print_exception(error)
        code = 1
    for stream in (sys.stdout, sys.stderr):
        with suppress(Exception):
            stream.flush()
    os._exit(code & 0xFF)
