"""`phalanx look`: what the ranks of a run do at this moment, that was started without --live.

Asks (`engines/look/look_client.py`) and prints; imports no torch.
"""

from __future__ import annotations

import argparse
import os
import shutil
import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from phalanx.errors import UsageError

if TYPE_CHECKING:
    from phalanx.engines.look.look_client import SeenRun

DESCRIPTION = """\
Print once what the ranks of a running program do: state, number of calls, call, line, whom
they wait for and for how long, and their stacks. PID is the process of phalanx run, of a
Python program that calls phalanx.run, of pytest, or of a rank. Without PID: list the runs.
"""
EPILOG = "exit status: 0 printed; 2 no such process, another user's, or no run in it\n"
PIPE_WIDTH = 160
"""Columns where the output is no terminal."""


def add_parser(commands: Any) -> None:
    parser = commands.add_parser(
        "look",
        help="what do the ranks of a running program do now? with stacks",
        description=DESCRIPTION,
        epilog=EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    parser.add_argument("pid", nargs="?", metavar="PID", help="the process to look at")
    parser.set_defaults(handler=handle, parser=parser)


def handle(arguments: argparse.Namespace) -> int:
    from phalanx.engines.look.look_client import list_runs  # other commands need none of it

    try:
        lines = _listing(list_runs()) if arguments.pid is None else _pictures(arguments.pid)
    except UsageError as error:
        print(f"phalanx: {error}", file=sys.stderr)
        return 2
    try:
        sys.stdout.write("\n".join(lines) + "\n")
        sys.stdout.flush()
    except BrokenPipeError:  # `| head` has seen enough; nor may Python complain at its end
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    return 0


def _pictures(given: str) -> list[str]:
    if not (given.isascii() and given.isdigit() and 0 < int(given) < 1 << 31):
        raise UsageError(f"look {given}: give the number of a process, e.g. phalanx look 4711")
    from phalanx.engines.look.look_client import look_at

    lines: list[str] = []
    for run in look_at(int(given)):
        lines += [*([""] if lines else []), *picture(run)]
    return lines


def picture(run: SeenRun) -> list[str]:
    """All that one run said."""
    from phalanx.report.live.live_table import seconds_text, stack_lines, table_lines

    is_terminal = sys.stdout.isatty()
    width = shutil.get_terminal_size().columns if is_terminal else PIPE_WIDTH
    since = f"for {seconds_text(run.seconds)}"
    title = f"process {run.process}: {run.ranks} ranks on {run.engine}, {since}"
    lines = table_lines(run.rows, title, width=width, colours=is_terminal)
    return [*lines, *stack_lines(run.rows)]


def _listing(runs: Sequence[SeenRun]) -> list[str]:
    from phalanx.report.live.live_table import seconds_text

    if not runs:
        return ["no runs at present (a run is listed half a second after it begins)"]
    lines = [f"{'process':>8}  {'ranks':>5}  {'engine':9}  {'for':>11}  command"]
    for run in runs:
        since = seconds_text(run.seconds)
        lines.append(
            f"{run.process:>8}  {run.ranks:>5}  {run.engine:9}  {since:>11}  {run.command}"
        )
    return lines
