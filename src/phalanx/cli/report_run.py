"""`phalanx report`: a recorded run on one screen, as a page, a trace, or for programs.

Finds the recording, reads it and writes what was asked for; what is shown is made in
`phalanx/report/timeline/`.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

from phalanx.errors import UsageError

if TYPE_CHECKING:
    from phalanx.report.timeline.calls_table import CallsTable

DESCRIPTION = """\
Show a recorded run: how it ended, its operations by line with the time ranks waited and who
came last, its ranks, groups, messages and findings. Without RUN, list the runs that are kept.
"""

EPILOG = """\
examples:
  phalanx report LAST                     the last run that failed
  phalanx report run.jsonl.gz             a run that --record wrote
  phalanx report run.jsonl.gz --html run.html    a timeline for the browser
  phalanx report run.jsonl.gz --trace run.json   a trace for ui.perfetto.dev

exit status: 0 shown; 2 wrong usage, or a file that cannot be read or written
"""
WIDEST = 140
USUAL = 100
"""Columns where nobody says how wide the screen is."""


def add_parser(commands: Any) -> None:
    parser = commands.add_parser(
        "report",
        help="look at a recorded run: operations, stragglers, messages, how it ended",
        description=DESCRIPTION,
        epilog=EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    parser.add_argument(
        "runs",
        nargs="*",
        metavar="RUN",
        help="the file that --record wrote, LAST for the last run that failed, a part of the "
        "name of a run that is kept, or a folder: its recordings are listed",
    )
    rows = parser.add_mutually_exclusive_group()
    rows.add_argument("--all", action="store_true", help="show whole tables and reports")
    rows.add_argument("--most", type=_positive, metavar="N", help="show N rows of each table")
    parser.add_argument("--html", metavar="FILE", help="write a timeline for the browser")
    parser.add_argument(
        "--trace", metavar="FILE", help="write a trace for Perfetto or chrome://tracing"
    )
    parser.add_argument(
        "--csv", metavar="FILE", help="write all calls as a table; into calls.csv of a folder"
    )
    parser.add_argument("--json", action="store_true", help="print it as JSON")
    parser.add_argument("--events", action="store_true", help="with --json: all events, too")
    parser.set_defaults(handler=main, parser=parser)


def _positive(given: str) -> int:
    if not given.isdecimal() or int(given) < 1:
        raise argparse.ArgumentTypeError(f"{given!r} is no number of rows: give 1 or more")
    return int(given)


def main(arguments: argparse.Namespace) -> int:
    from phalanx.report.timeline.screen_layout import printable

    try:
        _report(arguments)
        sys.stdout.flush()
    except UsageError as error:
        sys.stderr.write(printable(f"phalanx: {error}\n"))
        return 2
    except BrokenPipeError:  # `| head` has seen enough; nor may Python complain at its end
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    return 0


def _report(arguments: argparse.Namespace) -> None:
    # Other commands need none of this.
    from phalanx.journal.recording.decoder import load
    from phalanx.journal.recording.kept_runs import find_run
    from phalanx.report.timeline.calls_table import calls_table

    if len(arguments.runs) > 1:
        raise UsageError(f"{len(arguments.runs)} runs; phalanx report shows one at a time")
    if arguments.events and not arguments.json:
        raise UsageError("--events goes with --json")
    path = find_run(arguments.runs[0]) if arguments.runs else None
    if path is None or path.is_dir():
        _list_runs(arguments, path)
        return
    for given in filter(None, (arguments.html, arguments.trace, arguments.csv)):
        if given == "-":
            raise UsageError("-: these are written to files; name one, such as /dev/stdout")
        if os.path.exists(given) and os.path.samefile(given, path):
            raise UsageError(f"{given}: that is the recording itself; name another file")
    table = calls_table(load(path))
    wrote = _write_files(table, arguments)
    if arguments.json:
        _print_json(table, events=arguments.events)
    elif not wrote:
        _print_screen(table, path, arguments)


def _write_files(table: CallsTable, arguments: argparse.Namespace) -> bool:
    from phalanx.report.timeline.calls_csv import write_calls
    from phalanx.report.timeline.chrome_trace import write_trace
    from phalanx.report.timeline.page import write_page
    from phalanx.report.timeline.screen_layout import printable

    written = []
    for path, write in (
        (arguments.html, write_page),
        (arguments.trace, write_trace),
        (arguments.csv, write_calls),
    ):
        if path is not None:
            written.append(write(table, path) or path)
    for path in written:
        sys.stderr.write(printable(f"phalanx: wrote {path}\n"))
    return bool(written)


def _print_json(table: CallsTable, *, events: bool) -> None:
    from phalanx.journal.events import as_dict
    from phalanx.report.timeline.run_summary import as_data, summarize

    data = as_data(summarize(table))
    if events:
        data["events"] = [as_dict(event) for event in table.recording.journal()]
    json.dump(data, sys.stdout, indent=None if events else 2, default=str)
    sys.stdout.write("\n")


def _print_screen(table: CallsTable, path: Path, arguments: argparse.Namespace) -> None:
    from phalanx.report.timeline.run_summary import summarize
    from phalanx.report.timeline.summary_screen import print_lines, screen

    name, most, whole = os.fspath(path), arguments.most, arguments.all
    lines = screen(summarize(table), name=name, width=_width(), most=most, whole=whole)
    print_lines(lines, sys.stdout)


def _list_runs(arguments: argparse.Namespace, folder: Path | None) -> None:
    from phalanx.journal.recording.kept_runs import runs_folder
    from phalanx.report.timeline.run_list import list_runs
    from phalanx.report.timeline.summary_screen import print_lines

    for option in ("html", "trace", "csv", "json"):
        if getattr(arguments, option):
            raise UsageError(f"--{option} needs one recording as RUN, not {folder or 'none'}")
    most = None if arguments.all else arguments.most or 20
    print_lines(list_runs(folder or runs_folder(), width=_width(), most=most), sys.stdout)


def _width() -> int:
    if sys.stdout.isatty() or "COLUMNS" in os.environ:
        return min(WIDEST, shutil.get_terminal_size((USUAL, 40)).columns)
    return USUAL
