"""Standard input, `input()` and `breakpoint()` of ranks that are processes.

Used by the ranks of scripts. Standard input belongs to the program that started them; where it
is comes in the environment. A rank that asks a terminal opens it, one rank at a time. A file or
a pipe it reads itself: a file from its beginning, of a pipe what no other rank has read, as
under torchrun. Must never touch a rank that does not ask.
"""

from __future__ import annotations

import builtins
import io
import os
import pdb
import stat
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cached_property
from typing import Any, TextIO

from phalanx.errors import UsageError

VARIABLE = "PHALANX_TERMINAL"
PIPED = "PHALANX_STDIN"

SETTLE = 0.3
"""Seconds for what the rank printed before it asks to be shown."""


def terminal_name() -> dict[str, str]:
    """In the program: what to add to the ranks' environment."""
    try:
        return {VARIABLE: os.ttyname(sys.stdin.fileno())}
    except (AttributeError, OSError, ValueError):  # standard input is no terminal, or closed
        place = f"/proc/{os.getpid()}/fd/0"
        return {PIPED: place} if _can_be_opened() and os.path.exists(place) else {}


def _can_be_opened() -> bool:
    """Not a socket; nor a terminal behind a `sys.stdin` that the program has replaced."""
    try:
        mode = os.fstat(0).st_mode
    except OSError:
        return False
    known = stat.S_ISREG(mode) or stat.S_ISFIFO(mode) or stat.S_ISCHR(mode)
    return known and not os.isatty(0)


def attach_terminal(rank: int) -> None:
    """In a rank: let it ask the terminal, if there is one."""
    terminal = _Terminal(rank, os.environ.pop(VARIABLE, None))
    piped = os.environ.pop(PIPED, None)
    sys.stdin = _Input(terminal) if piped is None else _Piped(piped)
    if piped is None:
        builtins.input = terminal.ask
    usual = sys.breakpointhook

    def stop_here(*args: Any, **kwargs: Any) -> Any:
        if "PYTHONBREAKPOINT" in os.environ:
            return usual(*args, **kwargs)
        debugger = _Debugger(terminal)
        debugger.set_trace(sys._getframe(1))
        return None

    sys.breakpointhook = stop_here


class _Terminal:
    """The terminal of the program, as one rank uses it."""

    def __init__(self, rank: int, name: str | None) -> None:
        self.rank = rank
        self.name = name

    @contextmanager
    def held(self) -> Iterator[tuple[TextIO, TextIO]]:
        """Open, and for no other rank meanwhile."""
        import fcntl

        if self.name is None:
            raise UsageError(
                f"rank {self.rank} asks for input, but standard input is no terminal that "
                "ranks in processes of their own could ask; run it from a terminal, or give "
                "the answer as an argument of the script"
            )
        reading = os.open(self.name, os.O_RDONLY | os.O_NOCTTY)
        writing = os.open(self.name, os.O_WRONLY | os.O_NOCTTY)
        with open(reading) as source, open(writing, "w") as sink:
            fcntl.flock(reading, fcntl.LOCK_EX)
            yield source, sink

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
    """`sys.stdin` of a rank where it is a file or a pipe, opened when somebody reads."""

    def __init__(self, place: str) -> None:
        self._place = place

    @cached_property
    def _opened(self) -> TextIO:
        return open(self._place, encoding="utf-8", errors="surrogateescape")

    @property
    def buffer(self) -> Any:
        return self._opened.buffer

    def read(self, size: int | None = -1, /) -> str:
        return self._opened.read(-1 if size is None else size)

    def readline(self, size: int = -1, /) -> str:  # type: ignore[override]
        return self._opened.readline(size)

    def readable(self) -> bool:
        return True

    def fileno(self) -> int:
        return self._opened.fileno()

    def __getattr__(self, name: str) -> Any:
        """`reconfigure`, `encoding` and the like."""
        return getattr(self._opened, name)


class _Debugger(pdb.Pdb):
    """Holds the terminal while it is stopped, so that two ranks do not talk across."""

    def __init__(self, terminal: _Terminal) -> None:
        super().__init__(nosigint=True)
        self._terminal = terminal
        self.prompt = f"[{terminal.rank}] (Pdb) "

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
