"""`phalanx run SCRIPT` without a number of ranks: the script starts its ranks itself.

Used by `run.py`. Such a script may run several worlds, one after the other. Each has a printer
of its own. The errors of the worlds and of the script become text and an exit status.
"""

from __future__ import annotations

import os
import shlex
import sys
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Any, TextIO

from phalanx.cli.folded_output import FoldingPrinter
from phalanx.cli.streams import OutputLost
from phalanx.errors import HazardError, RankExited, UsageError, VerdictError
from phalanx.report.layout import visible
from phalanx.shown.folded_stack import error_text
from phalanx.shown.secret_words import fold_secrets


class WorldsPrinter:
    """A printer for the ranks of the world that runs at present."""

    def __init__(self, sink: TextIO, only: frozenset[int] | None) -> None:
        self._sink = sink
        self._only = only
        self._printer: FoldingPrinter | None = None

    def begin(self, size: int) -> None:
        """A world of this size begins."""
        self.close()
        only = None if self._only is None else self._only & frozenset(range(size))
        self._printer = FoldingPrinter(size, sink=self._sink, only=only)

    def finish(self, rank: int) -> None:
        if self._printer is not None:
            self._printer.finish(rank)

    def write(self, rank: int, text: str) -> Any:
        if self._printer is not None:
            self._printer.write(rank, text)

    def prompt(self, rank: int) -> None:
        if self._printer is not None:
            self._printer.prompt(rank)

    def make_room(self, rank: int) -> None:
        if self._printer is not None:
            self._printer.make_room(rank)

    def tick(self) -> None:
        if self._printer is not None:
            self._printer.tick()

    def close(self) -> None:
        if self._printer is not None:
            self._printer.close()
            self._printer = None


class WorldsPrinters:
    """The printers of both streams. `run_launched` calls it when a world begins or ends."""

    def __init__(self, printers: Sequence[Any], tell: Callable[[BaseException], int]) -> None:
        self._printers = [each for each in printers if isinstance(each, WorldsPrinter)]
        self._tell = tell

    def begin(self, size: int) -> None:
        for printer in self._printers:
            printer.begin(size)

    def finish(self, rank: int) -> None:
        with suppress(BrokenPipeError):
            for printer in self._printers:
                printer.finish(rank)

    def end(self, world: Any) -> None:
        """Print at once the errors of ranks that no `spawn` waits for, as processes do: the
        script may wait for something that these ranks will never send. A rank that ends by
        `sys.exit` prints nothing; the script sees its exit code."""
        with suppress(BrokenPipeError):
            for printer in self._printers:
                printer.close()
        is_told = world.by_spawn or _is_exit(world.error)
        is_told = is_told or isinstance(world.error, OutputLost)
        if world.error is not None and not is_told:
            world.status = self._tell(world.error)


def _is_exit(error: BaseException | None) -> bool:
    cause = None if error is None else error.__cause__
    return isinstance(cause, (SystemExit, RankExited))


def tell_launch(launch: Any, script: str, tell: Callable[[BaseException], int]) -> int:
    """Print what went wrong and return the exit status; `tell` prints the error of a world."""
    error, failed = launch.error, [w for w in launch.worlds if w.error is not None]
    if isinstance(error, KeyboardInterrupt):
        return 130
    says_nothing = _ends_well(launch) or _is_about_ranks(error)
    if failed and says_nothing and not _is_settled(launch):
        return max(tell(w.error) if w.status is None else w.status for w in failed)
    for world in failed:
        if world.status is None:
            _show_messages(world.error)
    if isinstance(error, SystemExit):
        return _status(error)
    if isinstance(error, UsageError):
        raise error
    if error is not None:
        _show(error)
        return 1
    if not launch.worlds and launch.launched:
        raise UsageError(
            f"{script} starts its ranks by torch's own launcher, so they ran as processes of "
            f"their own and nothing was checked; give phalanx what is started: "
            f"{_command(launch.launched)}"
        )
    if not launch.worlds and not launch.worlds_of_one:
        raise UsageError(
            f"{script} ended without starting any ranks; say how many are to run it: "
            f"phalanx run -n 4 {script}"
        )
    return 0


def alone_line(command: str) -> str:
    """The last line for a program that was only ever a world of one; `command` is the one that
    runs it on a rank."""
    return (
        "phalanx: the program was a world of one on torch's own backend, and not checked; "
        f"checked as a rank: {command}"
    )


def tell_spawned(done: Any, tell: Callable[[BaseException], int]) -> int:
    """The same for ranks that are processes of the script, which has printed what it has to say
    but for an error about a rank. What was found is told once, here."""
    told = [tell(error) for error in _errors_to_tell(done)]
    how, text = (done.end.how, done.end.text) if done.end is not None else ("", "")
    if how == "error" or (how == "ranks" and not told):
        print(text, end="", file=sys.stderr)
    if done.error is not None:
        return max(told)
    status: int = done.status if done.status >= 0 else 128 - done.status
    if how not in ("end", "exit"):
        return max(told, default=status)
    if done.is_suite:
        return status or (3 if done.untold else 0)
    return status or _status_of_unknown(done, tell)


def _status_of_unknown(done: Any, tell: Callable[[BaseException], int]) -> int:
    """The script says that all is well. It may have expected what ranks came to, if it has
    looked at the exit codes of those that failed."""
    unknown = [world for world in done.worlds if world.error is not None and not world.is_known]
    return max((3 if world.has_report else tell(world.error) for world in unknown), default=0)


def _errors_to_tell(done: Any) -> list[BaseException]:
    """Of the worlds, those with a report, each report once; and that of a standstill."""
    found: dict[str, BaseException] = {}
    for error in (*(world.error for world in done.worlds), done.error):
        if isinstance(error, (VerdictError, HazardError)):
            found.setdefault(str(error), error)
    return list(found.values())


def _show_messages(error: BaseException) -> None:
    """Print the messages of ranks that ended by `sys.exit("message")`. No report has them."""
    for rank, end in getattr(error, "failures", {}).items():
        if isinstance(end, SystemExit) and not isinstance(end.code, int):
            print(f"[{rank}]   {end.code}", file=sys.stderr)


def _command(launched: Sequence[Any]) -> str:
    """What to write instead; by the commands of ranks if there are any."""
    from phalanx.emulation.children.spawn_rules import is_launcher

    first = launched[0]
    if not isinstance(first, (list, tuple)) or is_launcher(first):
        return "phalanx run -n 4 SCRIPT"
    words = [str(word) for word in first]
    words = [word for word in words[1:2] if word != "-u"] + words[2:]
    alike = sum(1 for each in launched if each == first)
    words = [_shorter(word) for word in words]
    return f"phalanx run -n {alike} {shlex.join(fold_secrets(words))}"


def _shorter(word: str) -> str:
    return min(word, os.path.relpath(word), key=len) if os.path.isabs(word) else word


def _is_settled(launch: Any) -> bool:
    """Whether the script was told of the ranks that failed and still ended without an error."""
    return _ends_well(launch) and bool(launch.observed)


def _ends_well(launch: Any) -> bool:
    """`sys.exit(main())` says no more than the end of the script. In a suite each test says
    what it expects."""
    error = launch.error
    if isinstance(error, SystemExit) and not launch.is_suite:
        return error.code in (None, 0)
    return error is None


def _is_about_ranks(error: BaseException | None) -> bool:
    """Whether it is an error of torch's `spawn`, which says less than the report here."""
    return any(kind.__name__ == "ProcessException" for kind in type(error).__mro__)


def _status(end: SystemExit) -> int:
    if end.code is None or isinstance(end.code, int):
        return end.code or 0
    print(end.code, file=sys.stderr)
    return 1


def _show(error: BaseException) -> None:
    from phalanx.engines.outcome import trim_traceback

    trim_traceback(error)
    print(visible(error_text(error)), end="", file=sys.stderr)
