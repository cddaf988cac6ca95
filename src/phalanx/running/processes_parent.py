"""The preloaded parent: a small clean process that imports torch once and forks ranks.

`processes_nursery` starts it and talks to it over a socket: fixed-size requests, some with file
descriptors. It has one thread, runs no code of the user's, and when the program is gone it
kills every rank that is left and ends. Must never be imported by the program.
"""

from __future__ import annotations

import contextlib
import gc
import importlib
import os
import signal
import socket
import struct
import sys
import warnings
import weakref
from collections.abc import Sequence

from phalanx.running.processes_nursery import BURY, FORK, MOST_FDS, READY, REPLY, REQUEST


def main(fd: int, preload: Sequence[str]) -> None:
    """Serve one program until its end of the socket is closed."""
    from phalanx.running.processes_rank import live  # the costly import

    for name in preload:
        with contextlib.suppress(Exception):
            importlib.import_module(name)
    # What torch would undo object by object at the end of each rank ends with the process.
    for each in list(getattr(weakref.finalize, "_registry", ())):
        each.atexit = False
    # Objects that live as long as this process stay out of the collector, so that a rank's
    # first collection does not copy the pages they are on.
    gc.collect()
    gc.freeze()
    with socket.socket(fileno=fd) as program:
        ranks: set[int] = set()
        try:
            program.sendall(struct.pack(REPLY, READY))
            while True:
                request = _receive(program)
                if request is None:
                    break
                kind, pid, fds = request
                if kind == FORK:
                    answer = os.getpid()
                    try:
                        answer = _fork()
                    except OSError as error:
                        answer = -(error.errno or 1)
                    if answer == 0:
                        program.close()
                        _become_rank(fds)
                        live(fds[0], fds[3] if len(fds) > 3 else None)
                    if answer > 0:
                        ranks.add(answer)
                        with contextlib.suppress(OSError):  # the rank does it too
                            os.setpgid(answer, answer)
                    for each in fds:
                        os.close(each)
                else:
                    assert kind == BURY
                    answer = _bury(pid) if pid in ranks else 0
                    ranks.discard(pid)
                program.sendall(struct.pack(REPLY, answer))
        except (BrokenPipeError, ConnectionResetError):
            pass
        finally:
            for pid in ranks:
                _bury(pid)


def _receive(program: socket.socket) -> tuple[int, int, list[int]] | None:
    size = struct.calcsize(REQUEST)
    data, fds, _, _ = socket.recv_fds(program, size, MOST_FDS)
    while data and len(data) < size:
        more = program.recv(size - len(data))
        data = data + more if more else b""
    if not data:
        return None
    kind, pid = struct.unpack(REQUEST, data)
    return kind, pid, list(fds)


def _fork() -> int:
    with warnings.catch_warnings():
        # Python 3.12 warns of threads; those here are numpy's, which survive a fork.
        warnings.simplefilter("ignore", DeprecationWarning)
        return os.fork()


def _become_rank(fds: Sequence[int]) -> None:
    """A process group of its own, so that it can be killed with all that it starts."""
    os.setpgid(0, 0)
    os.dup2(fds[1], sys.stdout.fileno())
    os.dup2(fds[2], sys.stderr.fileno())
    os.close(fds[1])
    os.close(fds[2])


def _bury(pid: int) -> int:
    """Kill the rank and everything in its group, and say how it ended. A rank that is dead
    already keeps the status it died with, and its number until we have asked for it."""
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(pid, signal.SIGKILL)
    return os.waitpid(pid, 0)[1]
