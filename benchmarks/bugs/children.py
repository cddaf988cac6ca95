"""Run programs in processes of their own, forked from this one, which has torch loaded: a
program that hangs or crashes costs nobody else anything, and each starts from the same state.

Used by the runner. This process itself must stay without threads, or forking were unsafe.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

Task = Callable[[], dict[str, Any]]
"""What a child does; what it returns is written down as JSON."""

GRACE = 1.0
"""Seconds for processes to end after all of them have told their result."""


@dataclass
class Child:
    """One forked process. `result` is None if it told none: killed, crashed, or hung."""

    pid: int
    folder: Path
    code: int | None = None

    @property
    def result(self) -> dict[str, Any] | None:
        path = self.folder / "result.json"
        return json.loads(path.read_text()) if path.exists() else None

    @property
    def output(self) -> str:
        return (self.folder / "output").read_text(errors="replace")


@dataclass
class Job:
    """The children of one program."""

    label: str
    tasks: Sequence[Task]
    limit: float
    children: list[Child] = field(default_factory=list)
    seconds: float = 0.0
    hung: bool = False
    _begun: float = 0.0
    _told: float | None = None
    _folder: tempfile.TemporaryDirectory[str] | None = None

    def begin(self) -> None:
        self._begun = time.perf_counter()
        self._folder = tempfile.TemporaryDirectory()
        for index, task in enumerate(self.tasks):
            folder = Path(self._folder.name, str(index))
            folder.mkdir()
            self.children.append(Child(_fork(task, folder), folder))

    def is_over(self) -> bool:
        """Whether all children have ended; ends them when their time is up."""
        now = time.perf_counter()
        for child in self.children:
            if child.code is None:
                pid, status = os.waitpid(child.pid, os.WNOHANG)
                if pid:
                    child.code = os.waitstatus_to_exitcode(status)
        running = [child for child in self.children if child.code is None]
        if not running:
            self.seconds = now - self._begun
            return True
        if self._told is None and all(child.result is not None for child in running):
            self._told = now
        if now - self._begun > self.limit or (self._told and now - self._told > GRACE):
            self.hung = self._told is None
            for child in running:
                os.killpg(child.pid, signal.SIGKILL)
                os.waitpid(child.pid, 0)
                child.code = -signal.SIGKILL
            self.seconds = now - self._begun
            return True
        return False

    def clean(self) -> None:
        if self._folder is not None:
            self._folder.cleanup()


def run_jobs(jobs: Iterable[Job], *, at_once: int) -> Iterator[Job]:
    """Run them, some at a time; each as it ends. Its files are gone after that."""
    waiting, running = iter(jobs), list[Job]()
    while True:
        while len(running) < at_once and (job := next(waiting, None)) is not None:
            job.begin()
            running.append(job)
        if not running:
            return
        for job in [job for job in running if job.is_over()]:
            running.remove(job)
            yield job
            job.clean()
        time.sleep(0.005)


def _fork(task: Task, folder: Path) -> int:
    sys.stdout.flush()
    sys.stderr.flush()
    pid = os.fork()
    if pid:
        return pid
    try:
        os.setpgid(0, 0)
        output = os.open(folder / "output", os.O_WRONLY | os.O_CREAT, 0o600)
        os.dup2(output, 1)
        os.dup2(output, 2)
        told = task()
        part = folder / "part.json"
        part.write_text(json.dumps(told))
        part.rename(folder / "result.json")
        sys.stdout.flush()
        sys.stderr.flush()
        if told.get("leave") == "by exit":
            _exit_as_programs_do()
    finally:
        os._exit(0)


def _exit_as_programs_do() -> None:
    """With destructors of C++, some of which say what was never waited for."""
    import ctypes

    ctypes.CDLL(None).exit(0)
