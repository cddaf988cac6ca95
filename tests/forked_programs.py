"""Run Python programs in forks of a process that has imported torch.

The import takes most of the time of a small program. A program that must be seen to begin
alone, or that a signal from outside ends, is started with `subprocess` instead.
"""

from __future__ import annotations

import atexit
import functools
import json
import os
import select
import signal
import subprocess
import sys
import tempfile
import threading
from collections.abc import Mapping, Sequence
from pathlib import Path

READ_AT_START = ("PYTHON", "LD_", "OMP_", "MKL_", "TORCH", "TMPDIR")
"""Variables that the interpreter, torch and their libraries read only once."""


def run_forked(
    command: Sequence[str],
    *,
    cwd: Path | None = None,
    env: Mapping[str, str] | None = None,
    input: str | None = None,
    timeout: float,
    merged: bool = False,
    fresh: bool = False,
    imported: Sequence[str] = ("torch.distributed",),
) -> subprocess.CompletedProcess[str]:
    """What `subprocess.run` returns for this command, which begins with `sys.executable` and
    has no options of Python but `-m` and `-c`. With `merged`, stdout has also what the program
    writes to stderr. The program finds these modules `imported`; a `fresh` one is started anew
    and finds none. Raises `TimeoutExpired` as `subprocess.run` does."""
    assert command[0] == sys.executable
    environ = dict(os.environ if env is None else env)
    if fresh or _read_at_start(environ) != _read_at_start(os.environ):
        return subprocess.run(
            command,
            cwd=cwd,
            env=environ,
            input=input,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT if merged else subprocess.PIPE,
            text=True,
            timeout=timeout,
        )
    with tempfile.TemporaryDirectory() as place:
        given, out, err = (Path(place, name) for name in ("in", "out", "err"))
        given.write_text(input or "")
        out.touch()
        err.touch()
        request = {
            "command": list(command[1:]),
            "folder": str(cwd or Path.cwd()),
            "environ": environ,
            "in": str(given),
            "out": str(out),
            "err": None if merged else str(err),
        }
        status = _server(tuple(imported)).run(request, timeout)
        return subprocess.CompletedProcess(command, status, out.read_text(), err.read_text())


def _read_at_start(environ: Mapping[str, str]) -> dict[str, str]:
    return {key: value for key, value in environ.items() if key.startswith(READ_AT_START)}


class _Server:
    """A process that forks. It starts with the first program and ends with this process."""

    def __init__(self, imported: Sequence[str]) -> None:
        self._imported = imported
        self._lock = threading.Lock()
        self._process: subprocess.Popen[str] | None = None

    def run(self, request: Mapping[str, object], timeout: float) -> int:
        with self._lock:
            process = self._process
            if process is None or process.poll() is not None:
                process = self._process = self._start()
            assert process.stdin and process.stdout
            print(json.dumps(request), file=process.stdin, flush=True)
            child = int(process.stdout.readline())
            if select.select([process.stdout], [], [], timeout)[0]:
                return os.waitstatus_to_exitcode(int(process.stdout.readline()))
            os.killpg(child, signal.SIGKILL)
            process.stdout.readline()
            raise subprocess.TimeoutExpired(str(request["command"]), timeout)

    def _start(self) -> subprocess.Popen[str]:
        process = subprocess.Popen(
            [sys.executable, str(Path(__file__).with_name("fork_main.py")), *self._imported],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            bufsize=1,
        )
        atexit.register(process.communicate)
        return process


@functools.cache
def _server(imported: tuple[str, ...]) -> _Server:
    return _Server(imported)
