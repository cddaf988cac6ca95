"""A process of a script that starts its ranks: a rank from its `init_process_group` on.

`Presence.install` has the processes that this one starts do the same (`SpawnedRun`), by any
start method. A process that makes a group of several ranks asks the launcher for the referee of
that world and announces its calls there, until it ends or makes its next group. Used by
`spawned_script.py` for the script itself.
"""

from __future__ import annotations

import functools
import inspect
import multiprocessing
import multiprocessing.context
import os
import signal
import sys
import threading
import time
from collections.abc import Mapping
from contextlib import suppress
from socket import socket
from typing import Any

import torch.distributed as dist
from torch.distributed import distributed_c10d as c10d

from phalanx.backend.evidence.departures import left_by, take_departure
from phalanx.emulation.children.spawn_rules import asked_place, asked_rank, asked_size
from phalanx.emulation.patch_installer import put_in
from phalanx.emulation.patch_table import RANK_PROCESS
from phalanx.engines.outcome import was_stopped
from phalanx.engines.remote.link import Link, attach_tcp
from phalanx.engines.spawned.spawned_messages import Joins, SpawnBase, connect, read_referee
from phalanx.errors import RankStopped, VerdictError
from phalanx.system import getpid

HELD = 10.0
"""Seconds for which a rank that was stopped lives on at most, until the one that failed has
ended: a program that waits for any of its processes finds that one first."""
NOTICE = 0.2
"""Seconds that the program then has to notice it."""

_KINDS = ("ForkProcess", "SpawnProcess", "ForkServerProcess")


class SpawnedRun:
    """Stands for `run` of a process object while the process is started, and is called in it.
    It travels with the object."""

    def __init__(self, base: SpawnBase, test: str | None, ancestors: tuple[int, ...]) -> None:
        self._base = base
        self._test = test
        self._ancestors = ancestors

    def __call__(self) -> None:
        process = multiprocessing.current_process()
        vars(process).pop("run", None)
        presence = _here[0] if _here else Presence(self._base)
        presence.test = self._test
        presence.install()
        presence.pids = (*self._ancestors, getpid())
        try:
            process.run()
        except BaseException as error:
            presence.leave(error)
            if isinstance(error, RankStopped):
                presence.failed_has_ended.wait(HELD)
                time.sleep(NOTICE)
                os.kill(getpid(), signal.SIGTERM)
            if isinstance(error, VerdictError):
                sys.exit(1)  # the launcher tells it once, for all ranks
            raise
        presence.leave(None)


class Presence:
    """This process, and the world that it is in. `install` first."""

    def __init__(self, base: SpawnBase) -> None:
        self._base = base
        self._link: Link | None = None
        self._line: socket | None = None
        self._last_line: socket | None = None
        """That of a rank which has failed. It closes when the process ends."""
        self.failed_has_ended = threading.Event()
        """Set when another rank has failed and its process has ended."""
        self._pid = 0
        self.pids: tuple[int, ...] = ()
        """This process and those that started it, without the script."""
        self.looked_at: set[int] = set()
        """Processes of which the program has read an exit code that is not 0."""
        self.test: str | None = None
        """That of pytest which this process belongs to, where pytest is the script."""

    def install(self) -> None:
        """From now on; also in a fork of a process that had it."""
        if _here or not self._base.checked:
            return
        _here.append(self)
        patches: list[tuple[Any, str, Any]] = [
            (owner, "init_process_group", self._initialising(c10d.init_process_group))
            for owner in (dist, c10d)
        ]
        for name in _KINDS:
            kind: Any = getattr(multiprocessing.context, name, None)
            if kind is not None:
                patches.append((kind, "_Popen", staticmethod(self._starting(kind._Popen))))
        put_in(RANK_PROCESS, patches)
        os.register_at_fork(after_in_child=self._close_lines)

    def begin_test(self, test: str) -> None:
        """The script, which is pytest, begins this one."""
        self.test = test
        if self._link is not None:
            self._link.tell_test(test)

    def _close_lines(self) -> None:
        """In a fork: they are to close when this process leaves."""
        for line in (self._line, self._last_line):
            if line is not None:
                line.close()

    def _starting(self, original: Any) -> Any:
        def start(process: Any) -> Any:
            process.run = SpawnedRun(self._base, self.test, self.pids)
            try:
                popen = original(process)
            finally:
                vars(process).pop("run", None)
            kind: Any = type(popen)
            with suppress(TypeError):  # a process of a kind of its own
                popen.__class__ = _watched(kind)
            return popen

        return start

    def _initialising(self, original: Any) -> Any:
        signature = inspect.signature(original)

        def init_process_group(*args: Any, **kwargs: Any) -> Any:
            with suppress(TypeError, ValueError):  # wrong arguments: torch says so
                given = signature.bind(*args, **kwargs).arguments
                if not dist.is_initialized():
                    self._enter(given)
            return original(*args, **kwargs)

        return init_process_group

    def _enter(self, given: Mapping[str, Any]) -> None:
        size, rank = asked_size(given, os.environ), asked_rank(given, os.environ)
        self.leave(None)
        if size < 2 or not 0 <= rank < size:
            return
        try:
            place = asked_place(given, os.environ)
            line = connect(self._base, Joins(rank, size, place, self.pids))
            referee = read_referee(line)
        except OSError:  # the launcher is gone: so is the terminal
            return
        line.settimeout(None)
        self._line, self._pid = line, getpid()
        threading.Thread(
            target=_end_with, args=(line, self), daemon=True, name="phalanx-line"
        ).start()
        kinds = self._base.kinds
        self._link = attach_tcp(
            "127.0.0.1", referee.port, token=referee.token, rank=rank, kinds=kinds
        )
        if self.test is not None:
            self._link.tell_test(self.test)

    def is_on(self, line: socket) -> bool:
        return self._line is line

    def leave(self, error: BaseException | None) -> None:
        """The process ends, by this error if it is one, or makes another group."""
        link, line, self._link, self._line = self._link, self._line, None, None
        if link is None or line is None:
            return
        if self._pid != getpid():  # a fork of the rank, which is none itself
            link.detach()
            return
        cause = _cause_of(error)
        if cause is None:
            left = left_by(error) if isinstance(error, SystemExit) else take_departure()
            link.tell_end("finished", left=left)
            link.tell_notes()
            link.flush()
            link.finished()
        else:
            if was_stopped(cause):
                link.tell_end("stopped")
            else:
                link.tell_end("failed", type(cause).__name__)
            link.tell_dropped()
            link.flush()
            if not isinstance(cause, (RankStopped, VerdictError)):
                link.failed(cause)
        link.detach()
        if cause is None:
            line.close()
        else:
            self._last_line = line


_here: list[Presence] = []


@functools.cache
def _watched(kind: Any) -> Any:
    """The same kind of started process, which notes that the program asks for its exit code."""

    def poll(self: Any, *flag: Any) -> Any:
        code = kind.poll(self, *flag)
        if code and sys._getframe(1).f_code.co_name == "exitcode":
            _here[0].looked_at.add(self.pid)
        return code

    return type(kind.__name__, (kind,), {"poll": poll, "__module__": kind.__module__})


def _cause_of(error: BaseException | None) -> BaseException | None:
    """What ended the rank. torch's `spawn` keeps the error and calls `sys.exit(1)`."""
    if not isinstance(error, SystemExit):
        return error
    if error.code in (None, 0):
        return None
    return error.__context__ or error


def _end_with(line: socket, presence: Presence) -> None:
    """The launcher closes the line to end the rank, or because it has ended itself."""
    with suppress(OSError):
        while line.recv(1):
            presence.failed_has_ended.set()
    if presence.is_on(line):
        sys.stdout.flush()
        os.kill(getpid(), signal.SIGKILL)
