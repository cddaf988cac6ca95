"""The preloaded parent: a small clean process that imports torch once and forks ranks.

`fork_server.py` starts it and talks to it over a socket: fixed-size requests, some with file
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

from phalanx.engines.process_table import kill_group
from phalanx.engines.processes.fork_server import (
    FORK,
    LOAD,
    MOST_FDS,
    READY,
    REAP,
    REPLY,
    REQUEST,
)


def main(fd: int, preload: Sequence[str]) -> None:
    """Serve one program until its end of the socket is closed."""
    from phalanx.engines.processes.process_rank import live  # the costly import
    from phalanx.engines.remote.c10d_arguments import load_operators

    _load(["phalanx.engines.world", *preload])  # which programs and tests import, too
    load_operators()
    ranks: set[int] = set()
    with socket.socket(fileno=fd) as program:
        try:
            program.sendall(struct.pack(REPLY, READY))
            while (request := _receive(program)) is not None:
                kind, number, fds = request
                if kind == LOAD:
                    _load(_exactly(program, number).decode().splitlines())
                    continue
                if kind == FORK:
                    answer = _fork()
                    if answer == 0:
                        program.close()
                        _become_rank(fds)
                        live(fds[0], fds[3:])
                    ranks.update([answer] if answer > 0 else [])
                    for each in fds:
                        os.close(each)
                else:
                    assert kind == REAP
                    answer = _reap(number) if number in ranks else 0
                    ranks.discard(number)
                program.sendall(struct.pack(REPLY, answer))
        except (BrokenPipeError, ConnectionResetError):
            pass
        finally:
            for pid in ranks:
                _reap(pid)
            os._exit(0)  # at once: the program waits for us when it ends


def _load(names: Sequence[str]) -> None:
    """Import these, and make what is loaded cheap to have for ranks."""
    for name in names:
        with contextlib.suppress(Exception):
            importlib.import_module(name)
    # What torch would undo object by object at the end of each rank ends with the process.
    for each in list(getattr(weakref.finalize, "_registry", ())):
        each.atexit = False
    # Objects that live as long as this process stay out of the collector, so that a rank's
    # first collection does not copy the pages they are on.
    gc.collect()
    gc.freeze()


def _receive(program: socket.socket) -> tuple[int, int, list[int]] | None:
    size = struct.calcsize(REQUEST)
    data, fds, _, _ = socket.recv_fds(program, size, MOST_FDS)
    if not data:
        return None
    kind, number = struct.unpack(REQUEST, data + _exactly(program, size - len(data)))
    return kind, number, list(fds)


def _exactly(program: socket.socket, size: int) -> bytes:
    data = b""
    while len(data) < size:
        more = program.recv(size - len(data))
        if not more:
            raise ConnectionResetError
        data += more
    return data


def _fork() -> int:
    """The child's number, 0 in the child, or an error's number below 0."""
    try:
        with warnings.catch_warnings():
            # Python 3.12 warns of threads; those here are numpy's, which survive a fork.
            warnings.simplefilter("ignore", DeprecationWarning)
            pid = os.fork()
    except OSError as error:
        return -(error.errno or 1)
    if pid > 0:
        with contextlib.suppress(OSError):  # the rank does it too
            os.setpgid(pid, pid)
    return pid


def _become_rank(fds: Sequence[int]) -> None:
    """A process group of its own, so that it can be killed with all that it starts."""
    os.setpgid(0, 0)
    os.dup2(fds[1], sys.stdout.fileno())
    os.dup2(fds[2], sys.stderr.fileno())
    os.close(fds[1])
    os.close(fds[2])


def _reap(pid: int) -> int:
    """Kill the rank and everything in its group, and say how it ended. A rank that is dead
    already keeps the status it died with, and its number until we have asked for it; the number
    of its group is nobody else's while the group has a member."""
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.kill(pid, signal.SIGKILL)
    status = os.waitpid(pid, 0)[1]
    kill_group(pid)
    return status
