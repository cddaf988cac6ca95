"""What the ranks of a test print and log, kept apart by rank.

`Collected` receives `sys.stdout` and `sys.stderr` of ranks that are threads, and the output
pipes of ranks that are processes. Used by the pytest plugin.
"""

from __future__ import annotations

import io
import logging
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from typing import Any, NamedTuple, TextIO

import pytest

from phalanx.cli.folded_output import FoldingPrinter
from phalanx.cli.streams import RankStream
from phalanx.core.strand import here
from phalanx.emulation.patch_installer import Patch, put_in
from phalanx.emulation.patch_table import PYTEST
from phalanx.testing.pytest_compat import pytest_private as private


class Collected:
    """A printer that keeps each rank's text, or passes it on to one that shows it. A rank can
    take its own text for a while (`capsys`)."""

    def __init__(self, size: int) -> None:
        self.size = size
        self.texts: dict[int, io.StringIO] = {}
        self.takers: dict[int, list[OwnCapture]] = {}
        """Only of ranks that write, and that have `capsys`: in most tests there are none."""
        self.shown: FoldingPrinter | None = None
        self._keeps = True

    byte_errors = "surrogateescape"
    """So that a taker can have the bytes back."""

    def write(self, rank: int, text: str) -> None:
        if takers := self.takers.get(rank):
            takers[-1].write(text)
            if not takers[-1].tee:
                return
        if not text.isascii():
            text = _bytes_of(text).decode("utf-8", "replace")
        if self.shown is not None:
            self.shown.write(rank, text)
        if self._keeps:
            self.texts.setdefault(rank, io.StringIO()).write(text)

    def show_on(self, sink: TextIO, *, keep: bool) -> None:
        self.shown = FoldingPrinter(self.size, sink=sink)
        self._keeps = keep

    def tick(self) -> None:
        """Show what has waited long enough for other ranks to print the same."""
        if self.shown is not None:
            self.shown.tick()

    def prompt(self, rank: int) -> None:
        if self.shown is not None:
            self.shown.prompt(rank)

    def make_room(self, rank: int) -> None:
        if self.shown is not None:
            self.shown.make_room(rank)

    def close(self) -> None:
        if self.shown is not None:
            self.shown.close()

    def text(self, rank: int) -> str:
        return self.texts[rank].getvalue() if rank in self.texts else ""


def _bytes_of(text: str) -> bytes:
    """What a rank has written, also if it was no text to begin with."""
    try:
        return text.encode("utf-8", Collected.byte_errors)
    except UnicodeEncodeError:  # half a character that `print` was given
        return text.encode("utf-8", "replace")


class OwnCapture(io.StringIO):
    """The text that one rank captures for itself; with `tee`, it is shown as well."""

    def __init__(self, tee: bool) -> None:
        super().__init__()
        self.tee = tee


def show_live(config: Any, streams: Sequence[Collected]) -> bool:
    """Show what ranks print while they run, with their numbers: with `-s`, and, although it is
    captured as well, with `--capture=tee-sys`. Whether there is something to show."""
    capture = config.getoption("capture", "no")
    if capture not in ("no", "tee-sys"):
        return False
    capman = config.pluginmanager.get_plugin("capturemanager")
    with nullcontext() if capman is None else capman.global_and_fixture_disabled():
        sinks = sys.stdout, sys.stderr
    for collected, sink in zip(streams, sinks, strict=True):
        collected.show_on(sink, keep=capture == "tee-sys")
    return True


SHOW, KEEP = "\x1b_phalanx show\x1b\\", "\x1b_phalanx keep\x1b\\"
"""What a rank that is a process puts around what is to be shown at once (`capsys.disabled()`).
A terminal that should ever get one of them shows nothing."""


class Sieve:
    """Parts what comes out of one pipe of a rank: between the two marks, which may arrive in
    pieces, and all the rest."""

    def __init__(self, keep: Callable[[str], object], show: Callable[[str], object]) -> None:
        self._ways = (keep, show)
        self._showing = False
        self._held = ""

    def write(self, text: str) -> None:
        text = self._held + text
        while True:
            mark = KEEP if self._showing else SHOW
            text, found, after = text.partition(mark)
            cut = 0 if found else _beginning_of(mark, text)
            self._pass_on(text[: len(text) - cut])
            if not found:
                self._held = text[len(text) - cut :]
                return
            self._showing, text = not self._showing, after

    def close(self) -> None:
        held, self._held = self._held, ""
        self._pass_on(held)

    def _pass_on(self, text: str) -> None:
        if text:
            self._ways[self._showing](text)


def _beginning_of(mark: str, text: str) -> int:
    """How many characters at the end of the text may be the first of the mark."""
    return next((n for n in range(len(mark) - 1, 0, -1) if text.endswith(mark[:n])), 0)


class Streams:
    """`sys.stdout` and `sys.stderr` while ranks run as threads: collected, or shown as well
    where pytest captures nothing and `is_shown`."""

    def __init__(self, size: int, config: Any, *, is_shown: bool = True) -> None:
        self.collected = (Collected(size), Collected(size))
        self._config = config
        self._is_shown = is_shown
        self._streams: list[Patch] = []
        self._take_out: Callable[[], None] = _nothing

    def __enter__(self) -> None:
        out, err = self.collected
        if self._is_shown:
            show_live(self._config, self.collected)
        self._streams = [
            (sys, "stdout", RankStream(sys.stdout, out)),
            (sys, "stderr", RankStream(sys.stderr, err)),
        ]
        self.install()

    def __exit__(self, *error: object) -> None:
        self._take_out()
        for collected in self.collected:
            collected.close()

    def tick(self) -> None:
        for collected in self.collected:
            collected.tick()

    def install(self) -> None:
        """Also after a debugger has put pytest's own streams there."""
        self._take_out()
        self._take_out = put_in(PYTEST, self._streams)


def _nothing() -> None:
    pass


class CaptureResult(NamedTuple):
    """What `capsys.readouterr()` returns."""

    out: Any
    err: Any


class RankCapture:
    """`capsys` of a rank that is a thread."""

    def __init__(
        self,
        rank: int,
        streams: Streams,
        disabled: Callable[[], Any],
        *,
        binary: bool = False,
        tee: bool = False,
    ) -> None:
        self._rank = rank
        self._streams = streams
        self._disabled = disabled
        self._binary = binary
        self._own = (OwnCapture(tee), OwnCapture(tee))
        self._take()

    def _take(self) -> None:
        for collected, own in zip(self._streams.collected, self._own, strict=True):
            collected.takers.setdefault(self._rank, []).append(own)

    def _let_go(self) -> None:
        for collected, own in zip(self._streams.collected, self._own, strict=True):
            collected.takers[self._rank].remove(own)

    def readouterr(self) -> CaptureResult:
        texts: list[Any] = []
        for own in self._own:
            text = own.getvalue()
            own.seek(0)
            own.truncate()
            data = _bytes_of(text)
            texts.append(data if self._binary else data.decode("utf-8", "replace"))
        return CaptureResult(*texts)

    @contextmanager
    def disabled(self) -> Iterator[None]:
        """What is printed inside is shown at once."""
        self._let_go()
        try:
            with self._disabled():
                yield
        finally:
            self._streams.install()
            self._take()

    def close(self) -> None:
        """What was not read is shown if the test fails."""
        self._let_go()
        for collected, own in zip(self._streams.collected, self._own, strict=True):
            if not own.tee:
                collected.write(self._rank, own.getvalue())


class RankLogs:
    """Gives each record that reaches pytest's own handlers to the rank that logged it. One for
    a whole run of pytest, since handlers are dear to make."""

    def __init__(self, config: Any) -> None:
        self.handlers: list[tuple[private.LogCaptureHandler, private.LogCaptureHandler]] = []
        self.levels: dict[Any, int] = {}
        self._config = config
        self._turns = [
            (own, _ToRanks(self, index))
            for index, own in enumerate(private.log_handlers(config))
        ]

    @classmethod
    def of(cls, config: Any, size: int) -> RankLogs:
        """That of this run of pytest, empty, for so many ranks."""
        if _logs not in config.stash:
            config.stash[_logs] = cls(config)
        found: RankLogs = config.stash[_logs]
        found._begin(size)
        return found

    def _begin(self, size: int) -> None:
        while len(self.handlers) < size:
            made = private.new_log_handlers(self._config)
            if made is None:
                return
            self.handlers.append(made)
        self.levels.clear()
        for pair in self.handlers[:size]:
            for handler in pair:
                if handler.records:
                    handler.reset()

    def __enter__(self) -> None:
        for own, turn in self._turns:  # none if pytest runs without its logging plugin
            turn.level = own.level
            own.level = logging.NOTSET
            own.addFilter(turn)

    def __exit__(self, *error: object) -> None:
        for own, turn in self._turns:
            own.removeFilter(turn)
            own.level = turn.level
        for logger, level in self.levels.items():
            logger.setLevel(level)

    def text(self, rank: int) -> str:
        if not self.handlers or not self.handlers[rank][1].records:
            return ""
        text: str = self.handlers[rank][1].stream.getvalue()
        return text


_logs = pytest.StashKey[RankLogs]()


class _ToRanks:
    """A filter of one of pytest's handlers, which are at the root and, from pytest 9.2 on, at
    all loggers that pass nothing on: a rank's records turn off here, to the same handler of
    its own. That may want to see more than pytest's, whose level is therefore minded here."""

    def __init__(self, logs: RankLogs, index: int) -> None:
        self._logs = logs
        self._index = index
        self.level = logging.NOTSET

    def __call__(self, record: logging.LogRecord) -> bool:
        strand = here.strand
        if strand is None:
            return record.levelno >= self.level
        handler = self._logs.handlers[strand.rank][self._index]
        if record.levelno >= handler.level:
            handler.handle(record)
        return False
