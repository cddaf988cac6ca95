"""`sys.stdout` and `sys.stderr` during a run: what a rank writes goes to its printer.

Used by `phalanx run` and by the pytest plugin. Threads that belong to no rank write to the
original stream.
"""

from __future__ import annotations

import codecs
import io
import os
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from functools import partial
from typing import Any, Protocol, TextIO

from phalanx.cli.child_output import ChildPipes
from phalanx.core.strand import here
from phalanx.emulation.patch_installer import put_in
from phalanx.emulation.patch_table import COMMAND_LINE


class Printer(Protocol):
    """Where the ranks' text goes, such as `FoldingPrinter`."""

    def write(self, rank: int, text: str) -> Any: ...

    def prompt(self, rank: int) -> Any:
        """Show at once what the rank has written."""

    def make_room(self, rank: int) -> Any:
        """Show what waits: the rank is about to write to the terminal by itself."""

    def close(self) -> Any: ...


Sink = Callable[[bytes], object]


class OutputLost(Exception):
    """What the command prints can be written no more. No `OSError`: programs catch those."""

    def __init__(self, error: OSError) -> None:
        super().__init__(error.strerror or str(error))
        self.is_closed = isinstance(error, BrokenPipeError)
        """Whether the reader has gone, as `| head` does, which is no fault."""


class Outlet:
    """Standard output or error as printers write to them. When it can be written no more, the
    rank that happens to print is not to blame: the text is dropped, and `check`, which those
    ask who wait for the ranks, raises `OutputLost`, once: they still wait for the ranks to be
    stopped."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream
        self._lost: OutputLost | None = None
        self._is_told = False

    def write(self, text: str) -> int:
        self._do(lambda: self._stream.write(text))
        return len(text)

    def flush(self) -> None:
        self._do(self._stream.flush)

    def _do(self, action: Callable[[], object]) -> None:
        if self._lost is not None:
            return
        try:
            action()
        except OSError as error:
            self._lost = OutputLost(error)

    def check(self) -> None:
        if self._lost is not None and not self._is_told:
            self._is_told = True
            raise self._lost

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)


def open_missing_streams() -> None:
    """Give the process the standard streams that it was started without (`>&-`): otherwise the
    next file that is opened gets their number, and what is printed."""
    for number, name, mode in ((0, "stdin", "r"), (1, "stdout", "w"), (2, "stderr", "w")):
        try:
            os.fstat(number)
        except OSError:
            if os.open(os.devnull, os.O_RDWR) == number:
                os.set_inheritable(number, True)
                stream = open(number, mode, closefd=False)  # noqa: SIM115 - it is the process's
                setattr(sys, name, stream)
                setattr(sys, f"__{name}__", stream)


LOST, READER_GONE = 1, 141
"""Exit statuses: 141 is that of tools that SIGPIPE ends, as a shell tells it."""


def end_without_output(error: Exception) -> int:
    """The exit status of a command whose output can be written no more, said in a sentence
    unless its reader has only seen enough."""
    drop_output()
    if isinstance(error, BrokenPipeError) or getattr(error, "is_closed", False):
        return READER_GONE
    with suppress(OSError, ValueError):
        why = getattr(error, "strerror", None) or error
        print(
            f"phalanx: the output cannot be written: {why}; the command was ended. Make room "
            "where it goes, or send it elsewhere",
            file=sys.stderr,
            flush=True,
        )
    return LOST


def drop_output() -> None:
    """What is still to be printed goes nowhere, or Python complains when it exits."""
    nowhere = os.open(os.devnull, os.O_WRONLY)
    for stream in (sys.stdout, sys.stderr):
        with suppress(OSError, ValueError):
            try:
                stream.flush()
            except OSError:
                os.dup2(nowhere, stream.fileno())
    os.close(nowhere)


class _Forked:
    """In a process that a rank has forked: the number of that rank."""

    rank: int | None = None


_forked = _Forked()


def _become_a_process() -> None:
    if here.strand is not None:
        _forked.rank = here.strand.rank


if hasattr(os, "register_at_fork"):  # before the rank itself is forgotten there
    os.register_at_fork(after_in_child=_become_a_process)


class RankStream(io.TextIOBase):
    """Passes text on to the printer, as that of the rank that writes; drops it without one."""

    def __init__(
        self,
        original: TextIO,
        printer: Printer | None,
        children: ChildPipes | None = None,
        moved: Callable[[], Sink | None] | None = None,
    ) -> None:
        """`moved` tells where else the calling rank has sent this stream, by `os.dup2`."""
        self._original = original
        self.printer = printer
        self._children = children
        self._moved = moved
        self._unfinished = ""
        self._decoders: dict[int | None, Any] = {}
        """Decoders of bytes, by rank: a character may come in pieces."""
        self._closed_by: set[int] = set()
        """The ranks that have closed it."""

    def write(self, text: str) -> int:
        if not isinstance(text, str):
            raise TypeError(f"write() argument must be str, not {type(text).__name__}")
        strand = here.strand
        if strand is None:
            if _forked.rank is not None:
                self._write_labelled(text, f"[{_forked.rank}] ")
                return len(text)
            return self._original.write(text)
        self._check_open(strand.rank)
        sink = self.sink()
        strand.baton.progress += 1
        if sink is None:
            self.show(strand.rank, text)
        else:
            sink(text.encode(self.encoding or "utf-8", self.errors or "strict"))
        return len(text)

    def sink(self) -> Sink | None:
        """What takes the calling rank's bytes, if not this stream's printer."""
        return None if self._moved is None else self._moved()

    def show(self, rank: int, text: str) -> None:
        if self._children is not None:
            self._children.drain(rank)
        if self.printer is not None:
            self.printer.write(rank, text)

    @property
    def buffer(self) -> _Bytes:
        """Made on demand, because it and the stream refer to each other."""
        return _Bytes(self, self._decoders)

    def reconfigure(self, **options: Any) -> None:
        """Lines are shown when they are complete, in the encoding of the original."""

    line_buffering = True
    mode = "w"

    @property
    def name(self) -> str:
        return str(getattr(self._original, "name", ""))

    def _write_labelled(self, text: str, label: str) -> None:
        """In a process that a rank forked: whole lines, as the rank's own are shown."""
        if self.printer is None:
            return
        *lines, self._unfinished = (self._unfinished + text).split("\n")
        if lines:
            self._original.write("".join(f"{label}{line}\n" for line in lines))
            self._original.flush()

    def flush(self) -> None:
        if _forked.rank is not None and self._unfinished:
            self.write("\n")
        strand = here.strand
        if strand is None:
            self._original.flush()
            return
        self._check_open(strand.rank)
        if self.printer is not None and self._original.isatty():
            self.printer.prompt(strand.rank)

    def close(self) -> None:
        """For the calling rank; others go on, and who is no rank closes nothing."""
        if here.strand is not None:
            self._closed_by.add(here.strand.rank)

    @property
    def closed(self) -> bool:
        """Whether the calling rank has closed it."""
        return here.strand is not None and here.strand.rank in self._closed_by

    def _check_open(self, rank: int) -> None:
        if rank in self._closed_by:
            raise ValueError("I/O operation on closed file.")

    def fileno(self) -> int:
        """`input` asks for it, and then writes its prompt without this object."""
        strand = here.strand
        if strand is not None and self.printer is not None and self._original.isatty():
            self.printer.make_room(strand.rank)
        return self._original.fileno()

    def isatty(self) -> bool:
        return False

    def writable(self) -> bool:
        return True

    @property
    def encoding(self) -> str:  # type: ignore[override]
        return self._original.encoding

    @property
    def errors(self) -> str | None:  # type: ignore[override]
        return self._original.errors


class _Bytes(io.BufferedIOBase):
    """`sys.stdout.buffer`, for programs that write bytes or wrap it anew."""

    def __init__(self, stream: RankStream, decoders: dict[int | None, Any]) -> None:
        self._stream = stream
        self._decoders = decoders

    def write(self, data: Any) -> int:
        rank = here.strand.rank if here.strand is not None else None
        raw = bytes(data)
        sink = None if rank is None else self._stream.sink()
        if sink is not None:
            sink(raw)
            return len(raw)
        if rank not in self._decoders:
            printer = None if rank is None else self._stream.printer
            errors = getattr(printer, "byte_errors", "replace")
            self._decoders[rank] = codecs.getincrementaldecoder("utf-8")(errors)
        text = self._decoders[rank].decode(raw)
        if text:
            self._stream.write(text)
        return len(raw)

    @property
    def raw(self) -> _Bytes:
        """Nothing is buffered here either."""
        return self

    def flush(self) -> None:
        self._stream.flush()

    def writable(self) -> bool:
        return True

    def fileno(self) -> int:
        return self._stream.fileno()

    def close(self) -> None:
        """Does nothing: the stream stays open."""


@contextmanager
def redirected(out: Printer | None, err: Printer | None) -> Iterator[None]:
    """Send the ranks' output to the printers, also what they write to descriptors 1 and 2 and
    what processes print that they start; close the printers and put the streams back. What C
    code prints goes past all this."""
    from phalanx.emulation.state import rank_output  # this imports torch

    children = ChildPipes({1: out, 2: err})
    write = os.write

    def moved(place: int) -> Sink | None:
        strand = here.strand
        there = place if strand is None else rank_output.destination(strand, place)
        if strand is None or there == place:
            return None
        if there == rank_output.A_FILE:
            return partial(rank_output.write_to_file, strand, place)
        return lambda data: streams[there].show(strand.rank, data.decode("utf-8", "replace"))

    streams = {
        1: RankStream(sys.stdout, out, children, partial(moved, 1)),
        2: RankStream(sys.stderr, err, children, partial(moved, 2)),
    }

    def write_as_rank(fd: int, data: Any, /) -> int:
        if here.strand is None or fd not in streams:
            return write(fd, data)
        return streams[fd].buffer.write(data)

    names = {1: ("stdout", "__stdout__"), 2: ("stderr", "__stderr__")}
    take_out = put_in(
        COMMAND_LINE,
        [
            *((sys, name, streams[place]) for place in names for name in names[place]),
            (os, "write", write_as_rank),
        ],
    )
    rank_output.for_children.append(children.descriptor)
    try:
        yield
    finally:
        rank_output.for_children.remove(children.descriptor)
        children.close()
        streams.clear()  # they refer to each other
        take_out()
        for printer in (out, err):
            if printer is not None:
                printer.close()
