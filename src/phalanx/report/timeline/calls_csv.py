"""All calls of a recorded run as a table of comma-separated values, one row for each.

Times are nanoseconds since the run began; a cell is empty where there is nothing. Needs no
torch.
"""

from __future__ import annotations

import csv
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any, TextIO

from phalanx.errors import UsageError
from phalanx.report.timeline.calls_table import NONE, CallsTable, RankCalls

NAME = "calls.csv"
"""Of the file in a folder."""
FIRST = ("rank", "call", "thread", "operation", "group", "slot", "file", "line", "function")
ARGUMENTS = ("peer", "tag", "root", "reduce_op", "tensors", "bytes", "asynchronous")
TIMES = ("start", "waiting", "met", "done", "resumed")
HEADER = (*FIRST, *ARGUMENTS, *TIMES, "waited", "came_last", "failed")


def write_calls(table: CallsTable, path: str | os.PathLike[str]) -> Path:
    """Write to a file, or into a folder that exists; the file. Raises `UsageError`."""
    file = Path(path)
    file = file / NAME if file.is_dir() else file
    try:
        with file.open("w", encoding="utf-8", errors="backslashreplace", newline="") as sink:
            _write_rows(table, sink)
    except OSError as error:
        raise UsageError(
            f"{file}: {error.strerror or error}; name a file in a folder that exists and that "
            "you may write to"
        ) from None
    return file


def _write_rows(table: CallsTable, sink: TextIO) -> None:
    writer = csv.writer(sink)
    writer.writerow(HEADER)
    for calls in table.ranks:
        writer.writerows(_rows(table, calls))


def _rows(table: CallsTable, calls: RankCalls) -> Iterator[list[Any]]:
    recording = table.recording
    for place, start in enumerate(calls.start):
        group, site = recording.groups[calls.group[place]], calls.site[place]
        line = recording.sites[site].site if site != NONE else None
        reduce_op, tensors = calls.reduce[place], calls.tensors[place]
        collective = calls.number[place] != NONE
        specs = recording.tensors[tensors] if tensors != NONE else ()
        yield [
            calls.rank,
            calls.first + place,
            table.threads[calls.thread[place]],
            _harmless(table.ops[calls.op[place]]),
            _harmless(group.title),
            _cell(calls.number[place]),
            _harmless(line.file) if line else "",
            line.line if line else "",
            _harmless(line.function) if line else "",
            _cell(calls.peer[place]),
            _cell(calls.tag[place]),
            _cell(calls.root[place]),
            _harmless(table.reduce_ops[reduce_op]) if reduce_op != NONE else "",
            _harmless(", ".join(map(str, specs))),
            table.bytes_of(calls.rank, place),
            calls.asynchronous[place],
            start,
            *(_cell(calls.columns[name][place]) for name in TIMES[1:]),
            calls.waited(place, table.duration),
            _cell(calls.partner[place]) if collective else "",
            calls.failed[place],
        ]


def _cell(number: int) -> int | str:
    """`NONE` and `NEVER` are the same number."""
    return "" if number == NONE else number


def _harmless(text: str) -> str:
    """A spreadsheet takes a text that begins so for a formula: recordings are not trusted.

    >>> _harmless("=HYPERLINK(1)")
    "'=HYPERLINK(1)"
    """
    return f"'{text}" if text.startswith(("=", "+", "-", "@", "\t", "\r")) else text
