"""The end of `phalanx run`: what a run came to, as text and as the exit status.

Used by `run.py`, for all engines. Must never import torch: a wrong command line ends here, too.
"""

from __future__ import annotations

import shlex
import sys
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from phalanx.cli.folded_output import FoldingPrinter
from phalanx.cli.streams import OutputLost
from phalanx.errors import (
    HazardError,
    InvalidCallError,
    RankDied,
    RankFailedError,
    UsageError,
    VerdictError,
    WrongCommand,
)
from phalanx.model import Restart, Tally, Verdict
from phalanx.options import Options
from phalanx.report.closing import (
    render_closing,
    render_faults,
    render_restart,
    render_restarts,
    sum_up,
)
from phalanx.report.layout import count, visible
from phalanx.report.text import render_kind
from phalanx.shown.folded_stack import error_text

if TYPE_CHECKING:
    from phalanx.backend.devices.device_map import DeviceMap
    from phalanx.engines.program import Program
    from phalanx.engines.run_recording import RunRecording


def outcome_of(run: Callable[[], bool]) -> tuple[bool, BaseException | None]:
    """What `run` returns, and the error that it raises if it is one of those with a report."""
    try:
        return run(), None
    except (RankFailedError, VerdictError, HazardError, KeyboardInterrupt) as error:
        return True, error


def end_recording(
    recording: RunRecording,
    error: BaseException | None,
    findings: Sequence[Verdict],
    *,
    quiet: bool = False,
) -> str:
    """The run is over; the line that says how to look at it, if it failed or was recorded.
    With `quiet` nothing is said of one that was right."""
    recording.found(findings)
    name = recording.path if error is None else recording.failed(error)
    recording.close()
    if name is None or (quiet and error is None):
        return ""
    from phalanx.engines.run_recording import timeline_line

    if error is not None:
        return timeline_line(name)
    return f"phalanx: the run is recorded; phalanx report {shlex.quote(name)} shows it"


def print_findings(findings: Sequence[Verdict]) -> None:
    for finding in findings:
        print(f"{finding.severity} {render_kind(finding)}\n", file=sys.stderr)


def print_error(error: BaseException | None, initialised: bool, script: str) -> int:
    """Print the error, if there is one; the exit status. Raises `UsageError` for a script that
    never formed a group."""
    if error is None:
        if initialised:
            return 0
        raise UsageError(
            f"{script} ended without a call of init_process_group: its ranks never "
            "formed a group, each ran on its own. Is this the right script?"
        )
    if isinstance(error, OutputLost):
        raise error
    if isinstance(error, KeyboardInterrupt):
        return 130
    if isinstance(error, (VerdictError, HazardError)):
        print(f"{type(error).__name__}: {error}", file=sys.stderr)
        return 3
    assert isinstance(error, RankFailedError)
    if isinstance(error, InvalidCallError):
        print(f"{type(error).__name__}: {error}", file=sys.stderr)
        return 3
    if isinstance(error.__cause__, WrongCommand):
        raise error.__cause__
    if error.__cause__ is not None and not isinstance(error.__cause__, (SystemExit, RankDied)):
        # An error of another process comes as text.
        text = getattr(error.__cause__.__cause__, "text", None)
        if text is None:
            text = error_text(error.__cause__)
        if text:  # the text of another machine stays there
            print(visible(text), file=sys.stderr)
    print(f"{type(error).__name__}: {error}", file=sys.stderr)
    return 1


def print_closing(
    tally: Tally, findings: Sequence[Verdict], error: BaseException | None, options: Options
) -> None:
    """The last line: how much was checked, and what came of it. Nothing where a rank failed by
    itself, or where there was nothing to check."""
    verdict = getattr(error, "verdict", None)
    if isinstance(error, HazardError):
        findings, verdict = list(error.findings), None
    elif error is not None and verdict is None:
        return
    if not (tally.groups != 0 or findings or verdict or tally.raised):
        return
    if options.checked or tally.raised:
        line = render_closing(tally, findings, verdict, kinds=options.kinds)
    else:
        line = f"phalanx: {count(tally.ranks, 'rank')}, not checked (--checks none)"
    print(line, file=sys.stderr)


def print_faults(options: Options, tallies: Sequence[Tally]) -> None:
    if options.faults:
        print(render_faults(options.faults, tallies), file=sys.stderr)


def print_closing_of_worlds(
    ends: Sequence[tuple[Tally, BaseException | None]],
    findings: Sequence[Verdict],
    options: Options,
) -> None:
    """The same for all worlds of a script that starts its ranks itself."""
    if len(ends) == 1:
        print_closing(ends[0][0], findings, ends[0][1], options)
    if len(ends) < 2:
        return
    found, tallies = list(findings), []
    for tally, error in ends:
        ours = verdicts_of(error)
        found += ours
        tallies.append(replace(tally, raised=()) if ours else tally)
    if any(not isinstance(error, RankFailedError) for _, error in ends) or found:
        print_closing(sum_up(tallies), found, None, options)


def print_unchecked_pool() -> None:
    """For a suite without a world that keeps a pool, whose workers may form a group."""
    from phalanx.emulation.stdlib.rank_children import has_started_pool

    if has_started_pool():
        print(
            "phalanx: the workers of multiprocessing.Pool stayed processes, and what they did "
            "was not checked; phalanx.testing.Pool has the same methods on ranks",
            file=sys.stderr,
        )


def verdicts_of(error: BaseException | None) -> Sequence[Verdict]:
    """What an error of ours is about."""
    if isinstance(error, HazardError):
        return error.findings
    verdict = getattr(error, "verdict", None)
    is_ours = isinstance(error, (VerdictError, InvalidCallError))
    return [verdict] if is_ours and isinstance(verdict, Verdict) else []


def with_caught(status: int, tallies: Sequence[Tally], options: Options) -> int:
    """Under --strict an error of ours fails the run even if the program has caught it."""
    caught = options.strict and any(tally.raised for tally in tallies)
    return 3 if status == 0 and caught else status


def sharing_lines(maps: Sequence[tuple[DeviceMap, int]]) -> list[str]:
    """A line for each world whose ranks named GPUs that are not there: what they stood for."""
    used = [(devices, ranks) for devices, ranks in maps if devices.used]
    if not used:
        return []
    from phalanx.backend.devices.device_map import render_sharing

    return [f"phalanx: {render_sharing(devices, ranks)}" for devices, ranks in used]


class RestartsShown:
    """Takes `Settings.on_restart`: prints the report of each attempt that failed as that of a
    run, and all restarts at the end."""

    def __init__(self, script: str, printers: Sequence[Any]) -> None:
        self.restarts: list[Restart] = []
        self._script = script
        self._printers = printers

    def tell(self, restart: Restart, error: BaseException) -> None:
        self.restarts.append(restart)
        for printer in self._printers:
            if isinstance(printer, FoldingPrinter):
                printer.begin_anew(restart.ranks)
        print_error(error, True, self._script)
        print(render_restart(restart), file=sys.stderr, flush=True)

    def print_end(self) -> None:
        if self.restarts:
            print(render_restarts(self.restarts), file=sys.stderr)


def check_restarts(options: Options, program: Program | None) -> None:
    """Refuse restarts of what torchrun's agent would not start."""
    if not options.max_restarts:
        return
    given = f"--max-restarts {options.max_restarts}"
    if program is None:
        raise UsageError(
            f"{given} without a number of ranks: what starts again are ranks that torchrun "
            "would start, so say how many, e.g. -n 4; or leave it out"
        )
    if program.is_pytest:
        raise UsageError(
            f"{given} with pytest: tests that fail do not end their rank, so there is nothing "
            "to start again; leave it out"
        )
