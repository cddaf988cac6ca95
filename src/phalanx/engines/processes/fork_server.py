"""The program's handle on the preloaded parent from which ranks are forked.

There is one for the whole program, started when the first world of processes is made, ended
at exit. It dies with the program: its socket closes. Used by `rank_processes.py`; the parent
itself (`fork_server_main.py`) takes the words of their language from here.
"""

from __future__ import annotations

import atexit
import contextlib
import errno
import json
import multiprocessing.spawn
import os
import select
import socket
import struct
import subprocess
import sys
import threading
from collections.abc import Sequence

from phalanx.engines.machine_limits import limits_named
from phalanx.engines.process_table import LOOK, Work, is_stopped, kill_group, named
from phalanx.engines.processes.coverage_in_ranks import VARIABLES
from phalanx.errors import PhalanxError
from phalanx.system import monotonic

REQUEST = "!Bi"
REPLY = "!i"
FORK, REAP, LOAD = 1, 2, 3
READY = 1
MOST_FDS = 6

LONG = 300.0
"""Seconds without any sign of life after which the parent is given up."""

PATIENCE = 5.0
"""Seconds the parent has to end by itself when the program does."""

_PRELOADABLE = (
    "numpy",
    "pytest",
    "hypothesis",
    "torch._dynamo",  # by name only: DistributedDataParallel and others load it on first use
    "torch.distributed.tensor",
    "torch.distributed.tensor.debug",
    "torch.distributed.tensor.parallel",
    "torch.distributed.fsdp",
    "torch.distributed.checkpoint",
    "torch.distributed.pipelining",
    "torch.distributed.optim",
    "torch.profiler",
    "torch.testing._internal.common_utils",  # the base of torch's test classes
    "phalanx.testing.torch_compat.continuous",
    "phalanx.testing.pytest.in_rank",
    "phalanx.testing.torch_compat.multi_process",
)
"""Costly modules that programs and tests use, which start no thread and keep no state: if the
program has one or a rank came to load it, the parent loads it too, and later ranks have it."""


def preloadable() -> tuple[str, ...]:
    """Those that this process has."""
    return tuple(name for name in _PRELOADABLE if name in sys.modules)


_BOOT = (
    "import sys; sys.path = [each for each in sys.path if each]; import json; "
    "sys.path[:], preload = json.loads(sys.stdin.readline()); "
    "from phalanx.engines.processes.fork_server_main import main; "
    "main(int(sys.argv[1]), preload)"
)


def _environ() -> dict[str, str]:
    """Of the parent. Looking for GPUs must not open the driver, nor is coverage to be begun:
    neither survives a fork."""
    kept = {name: value for name, value in os.environ.items() if name not in VARIABLES}
    return {**kept, "PYTORCH_NVML_BASED_CUDA_CHECK": "1"}


class ForkServerSilent(PhalanxError):
    """The parent neither answers nor works."""

    def __init__(self, seconds: float, awaited: str) -> None:
        super().__init__(f"waited {seconds:g} s for {awaited}")
        self.seconds = seconds
        self.awaited = awaited


class ForkServer:
    """A running parent. Requests of several threads take turns."""

    def __init__(self) -> None:
        ours, theirs = socket.socketpair()
        self._socket = ours
        self._lock = threading.Lock()
        self._ready = False
        self._abandoned: list[int] = []
        with theirs, contextlib.ExitStack() as failed:
            failed.callback(ours.close)
            flags = subprocess._args_from_interpreter_flags()  # type: ignore[attr-defined]
            self._process = subprocess.Popen(
                [_executable(), *flags, "-c", _BOOT, str(theirs.fileno())],
                env=_environ(),
                stdin=subprocess.PIPE,
                stdout=subprocess.DEVNULL,
                pass_fds=[theirs.fileno()],
                start_new_session=True,  # Ctrl-C is for the program, which ends the ranks
            )
            failed.pop_all()
        assert self._process.stdin is not None
        preload = preloadable()
        self._preloaded = set(preload)
        with contextlib.suppress(BrokenPipeError), self._process.stdin as stdin:
            stdin.write(json.dumps([sys.path, preload]).encode() + b"\n")

    @property
    def pid(self) -> int:
        return self._process.pid

    def preload(self, names: Sequence[str], patience: float = LONG) -> None:
        """Have the parent load these before it forks again. Does not wait for it."""
        if self._preloaded.issuperset(names):
            return
        text = "\n".join(name for name in names if name not in self._preloaded).encode()
        self._preloaded.update(names)
        with self._lock, contextlib.suppress(OSError):  # the next request says it better
            self._await_ready(patience)
            self._socket.sendall(struct.pack(REQUEST, LOAD, len(text)) + text)

    def fork(self, fds: Sequence[int], patience: float = LONG) -> int:
        """Fork a rank that gets these file descriptors: control, output, error, perhaps the
        line to the referee, the fast path, the socket that the store is to be served on. Its
        process number. `ForkServerSilent` after so many seconds in which the parent neither
        answers nor computes."""
        while self._abandoned:
            self.reap(self._abandoned.pop(), patience)
        self.preload(preloadable(), patience)
        pid = self._ask(FORK, 0, fds, patience)
        if pid < 0:
            raise OSError(-pid, f"cannot start a rank: {os.strerror(-pid)}")
        return pid

    def reap(self, pid: int, patience: float = LONG) -> int:
        """Kill a rank with all that it started, unless it is dead; its wait status. Raises as
        `fork` does; then only what it started is killed."""
        try:
            return self._ask(REAP, pid, (), patience)
        except PhalanxError:  # the rank ends with its parent
            kill_group(pid)
            raise

    def abandon(self, pid: int) -> None:
        """Reap it when next a rank is started. For the garbage collector, which may come by
        in the middle of a request."""
        self._abandoned.append(pid)

    def close(self) -> None:
        self._socket.close()
        if not self._ready or is_stopped(self._process.pid):
            self._process.kill()  # it may still be loading torch, or will not hear of the end
        try:
            self._process.wait(PATIENCE)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()

    def forget(self) -> None:
        """In a forked child of the program: the parent is not ours."""
        self._socket.close()
        self._process.returncode = 0

    def _ask(self, kind: int, pid: int, fds: Sequence[int], patience: float) -> int:
        with self._lock:
            try:
                self._await_ready(patience)
                socket.send_fds(self._socket, [struct.pack(REQUEST, kind, pid)], list(fds))
                return self._reply(patience)
            except OSError as error:
                _give_up(self)
                raise PhalanxError(
                    "the process from which ranks are started has ended (status "
                    f"{self._process.returncode}); what it wrote to standard error may say why"
                ) from error
            except BaseException:  # Ctrl-C: an answer that nobody read would be the next one's
                _give_up(self)
                raise

    def _await_ready(self, patience: float) -> None:
        if not self._ready:
            self._ready = self._reply(patience) == READY

    def _await_answer(self, patience: float) -> None:
        """Until there is one. To load torch takes long at times, but it takes a core, too."""
        since, work = monotonic(), Work(lambda: [self.pid])
        answer = select.poll()
        answer.register(self._socket, select.POLLIN)
        while not answer.poll(LOOK * 1000):
            now = monotonic()
            if not work.is_time_to_look():
                continue
            if work.goes_on():
                since = now
            elif now - since > patience:
                what = named("the process from which ranks are started", self.pid)
                raise ForkServerSilent(now - since, what)

    def _reply(self, patience: float) -> int:
        data = b""
        while len(data) < struct.calcsize(REPLY):
            self._await_answer(patience)
            more = self._socket.recv(struct.calcsize(REPLY) - len(data))
            if not more:
                raise OSError(errno.EPIPE, os.strerror(errno.EPIPE))
            data += more
        (value,) = struct.unpack(REPLY, data)
        return int(value)


def _executable() -> str:
    found = multiprocessing.spawn.get_executable()
    return os.fsdecode(found) if found else sys.executable


_one: ForkServer | None = None
_starting = threading.Lock()


def fork_server() -> ForkServer:
    """The program's parent of ranks; started if there is none. Does not wait for it."""
    global _one
    with _starting:
        if _one is None:
            with limits_named("the ranks could not be started"):
                _one = ForkServer()
        return _one


def _give_up(broken: ForkServer) -> None:
    """The next world gets a new one."""
    global _one
    if _one is broken:
        _one = None
    broken.close()


def _end() -> None:
    global _one
    if _one is not None:
        _one.close()
        _one = None


def _forget() -> None:
    global _one, _starting
    _starting = threading.Lock()
    if _one is not None:
        _one.forget()
        _one = None


atexit.register(_end)
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forget)
