"""All calls of a recorded run as a table of comma-separated values, one row for each.

Times are nanoseconds since the run began; a cell is empty where there is nothing. Needs no
torch.
"""

from __future__ import annotations

import csv
import os
from array import array
from collections.abc import Iterator, Sequence
from itertools import repeat
from pathlib import Path
from typing import Any, TextIO

from phalanx.errors import UsageError
from phalanx.report.timeline.calls_table import NONE, CallsTable, RankCalls, size_of
from phalanx.report.timeline.operation_counts import waits_of

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
    texts, late = _CellTexts(table), came_last(table)
    for calls, last in zip(table.ranks, late, strict=True):
        writer.writerows(_rows(table, calls, texts, last))


class _CellTexts:
    """Cells that many rows have, by the number that stands for them; `NONE`, which is -1, is
    the last of each."""

    def __init__(self, table: CallsTable) -> None:
        recording = table.recording
        self.ops = [_harmless(name) for name in table.ops]
        self.reduce_ops = [*map(_harmless, table.reduce_ops), ""]
        self.groups = {n: _harmless(group.title) for n, group in recording.groups.items()}
        sites = [known.site for known in recording.sites]
        self.files = [*(_harmless(site.file) for site in sites), ""]
        self.lines = [*(site.line for site in sites), ""]
        self.functions = [*(_harmless(site.function) for site in sites), ""]
        self.tensors = [*(_harmless(", ".join(map(str, s))) for s in recording.tensors), ""]
        self.bytes = [*(sum(map(size_of, specs)) for specs in recording.tensors), 0]


def _rows(
    table: CallsTable, calls: RankCalls, texts: _CellTexts, last: Sequence[int]
) -> Iterator[tuple[Any, ...]]:
    """One column after the other is made, then all are read side by side."""
    columns, sites, tensors = calls.columns, calls.columns["site"], calls.columns["tensors"]
    return zip(
        repeat(calls.rank, len(calls)),
        range(calls.first, calls.first + len(calls)),
        map(table.threads.__getitem__, columns["thread"]),
        map(texts.ops.__getitem__, columns["op"]),
        map(texts.groups.__getitem__, columns["group"]),
        _cells(columns["number"]),
        map(texts.files.__getitem__, sites),
        map(texts.lines.__getitem__, sites),
        map(texts.functions.__getitem__, sites),
        *(_cells(columns[name]) for name in ("peer", "tag", "root")),
        map(texts.reduce_ops.__getitem__, columns["reduce"]),
        map(texts.tensors.__getitem__, tensors),
        map(texts.bytes.__getitem__, tensors),
        columns["asynchronous"],
        columns["start"],
        *(_cells(columns[name]) for name in TIMES[1:]),
        waits_of(calls, table.duration),
        _cells(last),
        columns["failed"],
        strict=True,
    )


def came_last(table: CallsTable) -> list[array[int]]:
    """For each rank, and each of its calls that was met, the rank that came last: of the two
    sides of a message the one that began later."""
    found = []
    for calls in table.ranks:
        both = zip(calls.number, calls.partner, strict=True)
        found.append(array("q", [NONE if number == NONE else last for number, last in both]))
    for calls in table.ranks:
        if NONE in calls.number:
            _last_of_messages(table, calls, found)
    return found


def _last_of_messages(table: CallsTable, calls: RankCalls, found: list[array[int]]) -> None:
    """Whoever names its peer knows both sides; a receive from any source does not."""
    sides = zip(calls.number, calls.peer, calls.partner, calls.start, strict=True)
    for place, (number, peer, partner, start) in enumerate(sides):
        if number != NONE or partner == NONE or not 0 <= peer < len(found):
            continue
        if partner < len(found[peer]):
            there = table.ranks[peer].columns["start"][partner]
            found[calls.rank][place] = found[peer][partner] = max(
                (start, calls.rank), (there, peer)
            )[1]


def _cells(column: Sequence[int]) -> Sequence[int | str]:
    """`NONE` and `NEVER`, which are the same number, are empty cells."""
    if NONE not in column:
        return column
    return ["" if number == NONE else number for number in column]


def _harmless(text: str) -> str:
    """A spreadsheet takes a text that begins so for a formula: recordings are not trusted.

    >>> _harmless("=HYPERLINK(1)")
    "'=HYPERLINK(1)"
    """
    return f"'{text}" if text.startswith(("=", "+", "-", "@", "\t", "\r")) else text
