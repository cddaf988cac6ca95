"""Standard input, `input()` and `breakpoint()` of ranks that are processes.

Standard input belongs to the program that started the ranks, and the program tells them where
it is. A rank that reads from a terminal opens it, one rank at a time, and reports that it
does: no stall is found while a user thinks. From a file each rank reads from the beginning, and
from a pipe what no other rank has read, as under torchrun. Must never change a rank that reads
nothing.
"""

from __future__ import annotations

import builtins
import io
import os
import pdb
import stat
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from functools import cached_property
from typing import Any, TextIO

from phalanx.emulation.patch_installer import Patch, put_in
from phalanx.emulation.patch_table import RANK_PROCESS
from phalanx.errors import UsageError

VARIABLE = "PHALANX_TERMINAL"
PIPED = "PHALANX_STDIN"
DEBUGGER = "PHALANX_DEBUGGER"
"""The name of the terminal, or where to read; of a terminal that is for debuggers only. So
called because the ranks of torchrun find them in the environment."""
NAMES = (VARIABLE, PIPED, DEBUGGER)

SETTLE = 0.3
"""Seconds in which what the rank has printed is shown before its prompt."""


_remembered: dict[str, str] = {}


def remember_terminal(descriptor: int) -> None:
    """Let ranks open their debuggers at this terminal, if it is one, where the program's
    standard input is none, as under pytest, which puts it away."""
    with suppress(OSError):
        _remembered[DEBUGGER] = os.ttyname(descriptor)


def find_input() -> dict[str, str]:
    """In the program: the variables that tell ranks where standard input is."""
    try:
        return {VARIABLE: os.ttyname(sys.stdin.fileno())}
    except (AttributeError, OSError, ValueError):  # standard input is no terminal, or closed
        place = f"/proc/{os.getpid()}/fd/0"
        piped = {PIPED: place} if _can_be_opened() and os.path.exists(place) else {}
        return {**piped, **_remembered}


def _can_be_opened() -> bool:
    """Not a socket; nor a terminal behind a `sys.stdin` that the program has replaced."""
    try:
        mode = os.fstat(0).st_mode
    except OSError:
        return False
    known = stat.S_ISREG(mode) or stat.S_ISFIFO(mode) or stat.S_ISCHR(mode)
    return known and not os.isatty(0)


def attach_terminal(
    rank: int, given: Mapping[str, str], on_asking: Callable[[bool], Any]
) -> None:
    """In a rank: let it read from the terminal, if there is one. `on_asking` is called when the
    rank begins to wait for the user, and when it has the answer."""
    terminal = _Terminal(rank, given.get(VARIABLE), on_asking)
    if PIPED in given:
        patches: list[Patch] = [(sys, "stdin", _Piped(given[PIPED]))]
    else:
        patches = [(sys, "stdin", _Input(terminal)), (builtins, "input", terminal.ask)]
    if DEBUGGER in given:
        terminal = _Terminal(rank, given[DEBUGGER], on_asking)
    usual = sys.breakpointhook

    def stop(*args: Any, **kwargs: Any) -> None:
        frame = sys._getframe(1)
        while frame.f_globals is globals() and frame.f_back is not None:
            frame = frame.f_back
        _Debugger(terminal).set_trace(frame)

    def stop_or_as_told(*args: Any, **kwargs: Any) -> Any:
        return (usual if os.environ.get("PYTHONBREAKPOINT") else stop)(*args, **kwargs)

    put_in(RANK_PROCESS, [*patches, (sys, "breakpointhook", stop_or_as_told)])
    if can_debug(given):
        set_trace[:] = [stop]


set_trace: list[Callable[..., Any]] = []
"""The function that opens the debugger at the terminal; empty without a terminal."""

on_quit: list[Callable[[], Any]] = []
"""What `q` at the debugger's prompt does, instead of ending the rank by an error."""


def can_debug(given: Mapping[str, str]) -> bool:
    return VARIABLE in given or DEBUGGER in given


class _Terminal:
    """The terminal of the program, as one rank uses it."""

    def __init__(self, rank: int, name: str | None, on_asking: Callable[[bool], Any]) -> None:
        self.rank = rank
        self.name = name
        self._on_asking = on_asking

    @contextmanager
    def held(self) -> Iterator[tuple[TextIO, TextIO]]:
        """Open the terminal, and keep the other ranks from it until the end."""
        import fcntl

        if self.name is None:
            raise UsageError(
                f"rank {self.rank} asks for input, but standard input is not a terminal, so "
                "ranks that are processes cannot read from it; run it from a terminal, or "
                "give the answer as an argument of the script"
            )
        reading = os.open(self.name, os.O_RDONLY | os.O_NOCTTY)
        writing = os.open(self.name, os.O_WRONLY | os.O_NOCTTY)
        with open(reading) as source, open(writing, "w") as sink:
            self._on_asking(True)
            try:
                fcntl.flock(reading, fcntl.LOCK_EX)
                yield source, sink
            finally:
                self._on_asking(False)

    def ask(self, prompt: object = "", /) -> str:
        """`input`, with the rank before the prompt."""
        sys.stdout.flush()
        with self.held() as (source, sink):
            time.sleep(SETTLE)
            sink.write(f"[{self.rank}] {prompt}")
            sink.flush()
            line = source.readline()
        if not line:
            raise EOFError("the terminal was closed")
        return line.rstrip("\n")


class _Input(io.TextIOBase):
    """`sys.stdin` of a rank."""

    def __init__(self, terminal: _Terminal) -> None:
        self._terminal = terminal

    def readline(self, size: int = -1, /) -> str:  # type: ignore[override]
        return self._terminal.ask() + "\n"

    def read(self, size: int | None = -1, /) -> str:
        return self.readline()

    def readable(self) -> bool:
        return True

    def isatty(self) -> bool:
        return self._terminal.name is not None

    def fileno(self) -> int:
        return 0


class _Piped(io.TextIOBase):
    """`sys.stdin` of a rank where it is a file or a pipe. It is opened by the first read."""

    def __init__(self, place: str) -> None:
        self._place = place

    @cached_property
    def _opened(self) -> TextIO:
        return open(self._place, encoding="utf-8", errors="surrogateescape")

    @property
    def buffer(self) -> Any:
        return self._opened.buffer

    @property
    def encoding(self) -> str:  # type: ignore[override]
        return self._opened.encoding

    def read(self, size: int | None = -1, /) -> str:
        return self._opened.read(-1 if size is None else size)

    def readline(self, size: int = -1, /) -> str:  # type: ignore[override]
        return self._opened.readline(size)

    def readable(self) -> bool:
        return True

    def fileno(self) -> int:
        return self._opened.fileno()

    def __getattr__(self, name: str) -> Any:
        """`reconfigure` and the like."""
        return getattr(self._opened, name)


class _Debugger(pdb.Pdb):
    """A debugger that keeps the terminal while its rank is stopped."""

    def __init__(self, terminal: _Terminal) -> None:
        super().__init__(nosigint=True)
        self._terminal = terminal
        self.prompt = f"[{terminal.rank}] (Pdb) "

    def do_quit(self, arg: str) -> bool | None:
        ends = super().do_quit(arg)
        for call in on_quit:
            call()
        return ends

    do_q = do_exit = do_quit

    def interaction(self, *args: Any, **kwargs: Any) -> None:
        sys.stdout.flush()
        usual = self.stdout
        with self._terminal.held() as (self.stdin, self.stdout):
            time.sleep(SETTLE)
            self.use_rawinput = False
            try:
                super().interaction(*args, **kwargs)
            finally:
                self.stdout = usual
