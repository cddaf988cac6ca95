"""The summary of a recorded run on one screen: what `phalanx report RUN` prints.

`screen` is a pure function from a `RunSummary` to lines with styles. `print_lines` writes them,
with colours where rich is installed and the terminal has them. Needs no torch.
"""

from __future__ import annotations

import time
from collections.abc import Iterable
from contextlib import suppress
from typing import TextIO

from phalanx.report.layout import count
from phalanx.report.timeline.message_counts import MessageMatrix
from phalanx.report.timeline.operation_counts import Late
from phalanx.report.timeline.rank_times import times_alike
from phalanx.report.timeline.run_summary import RankFold, RunSummary
from phalanx.report.timeline.screen_layout import (
    Column,
    Line,
    TextTable,
    cut,
    entry_list,
    many,
    plain_lines,
    printable,
    share,
    short_ranks,
    size_text,
    time_text,
    without_few_hidden,
)
from phalanx.report.timeline.stragglers import find_stragglers, straggler_text

HEIGHT = 40
"""Lines of a screen; tables are cut so that all of them fit about there."""
MOST_TEXT = 20
"""Lines of the report of a run that failed."""
LAST_TEXT = 6
"""Of them, lines from its end: a hint, and how to repeat the run."""
UNCUT = 1 << 20
"""Columns where everything is to be shown."""


def screen(
    summary: RunSummary,
    *,
    name: str = "",
    width: int = 100,
    most: int | None = None,
    whole: bool = False,
) -> list[Line]:
    """The screen. `most` is how many rows each table shows, `whole` shows all; without them
    there are as many as fit on one screen. `name` is where the recording is."""
    lines = _head(summary, name, width, whole=whole)
    tables = _tables(summary, whole=whole)
    matrix = MessageMatrix(summary.messages, width, whole=whole)
    wanted = [*(len(table.rows) for table in tables), matrix.wanted]
    if whole:
        width, given = UNCUT, [*wanted[:-1], matrix.largest]
    elif most is not None:
        given = [min(most, want) for want in wanted]
    else:
        used = len(lines) + sum(table.height + 1 for table in tables) + matrix.height
        given = without_few_hidden(wanted, share(wanted, HEIGHT - used - 1))
    for table, rows in zip(tables, given, strict=False):
        table.most = rows
        lines += [[], *table.lines(width)]
    if summary.messages:
        lines += [[], *matrix.table(given[-1]).lines(width)]
    if summary.missing:
        lines.append([])
        lines += [[("  missing   ", "label"), (text, "warning")] for text in summary.missing]
    return lines


def _tables(summary: RunSummary, *, whole: bool) -> list[TextTable]:
    tables = [
        _operations(summary, whole=whole),
        _ranks(summary, whole=whole),
        _times(summary, whole=whole),
        _findings(summary),
        _groups(summary),
    ]
    return [table for table in tables if table.rows]


def _head(summary: RunSummary, name: str, width: int, *, whole: bool) -> list[Line]:
    facts = summary.facts
    program = printable(facts.get("program", "")) or "a run"
    engine = f" on {facts['engine']}" if facts.get("engine") else ""
    what = f": {count(summary.ranks, 'rank')}{engine}, {time_text(summary.seconds)}"
    if summary.kept < summary.seconds:
        what += f", of which the last {time_text(summary.kept)} are kept"
    lines: list[Line] = [[(program, "title"), (printable(what), "")]]
    recorded = ", ".join(filter(None, [_when(summary.started), name]))
    for label, text in (("recorded", recorded), ("command", facts.get("command", ""))):
        if text:
            lines.append([(f"  {label:<10}", "label"), (printable(text), "")])
    used = [group for group in summary.groups if group.calls]
    if len(used) == 1:
        group = used[0]
        told = f"{group.name}, ranks {short_ranks(group.ranks, width=60)}"
        told += f", {group.backend}" if group.backend else ""
        lines.append([("  group     ", "label"), (printable(told), "")])
    lines += [[("  fault     ", "label"), (printable(each), "")] for each in summary.faults]
    return lines + _ending(summary, width, whole=whole)


def _when(started: float | None) -> str:
    with suppress(ValueError, OverflowError, OSError, TypeError):
        return time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(started)) if started else ""
    return ""


def _ending(summary: RunSummary, width: int, *, whole: bool) -> list[Line]:
    label = ("  ended     ", "label")
    if summary.status == "finished":
        found = count(len(summary.findings), "finding")
        runs = f"{summary.runs} runs " if summary.runs > 1 else ""
        text = f"{runs}finished, {found if summary.findings else 'nothing found'}"
        return [[label, (text, "warning" if summary.findings else "good")]]
    if summary.status == "unknown":
        return [[label, ("not known: the recording has no end", "warning")]]
    which = f" (run {summary.failed_run} of {summary.runs})" if summary.runs > 1 else ""
    lines: list[Line] = [[label, (printable(f"failed: {summary.error}{which}"), "error")]]
    report = printable(summary.text).rstrip().splitlines()
    hidden = 0 if whole else len(report) - MOST_TEXT
    lines.append([])
    for number, line in enumerate(report):
        if hidden <= 2 or not 0 <= number - MOST_TEXT + LAST_TEXT < hidden:
            line = line if whole else cut(line, max(width, 88))
            lines.append([(line, "" if number else "error")])
        elif number == MOST_TEXT - LAST_TEXT:
            lines.append([(f"  ... {hidden} lines; --all shows them", "dim")])
    return lines


STYLES = {
    "title": "bold",
    "label": "dim",
    "dim": "dim",
    "good": "green",
    "warning": "yellow",
    "error": "bold red",
}


def print_lines(lines: Iterable[Line], file: TextIO) -> None:
    """Write lines. Text goes to rich as text: nothing in it is markup."""
    if file.isatty():
        try:
            from rich.console import Console
            from rich.text import Text
        except ImportError:  # it is optional; the text is the same
            pass
        else:
            console = Console(file=file, highlight=False, soft_wrap=True)
            for line in lines:
                console.print(Text.assemble(*((text, STYLES.get(s, "")) for text, s in line)))
            return
    file.write(plain_lines(lines))


# -- tables ---------------------------------------------------------------------------------


def _operations(summary: RunSummary, *, whole: bool) -> TextTable:
    uses = summary.operations
    columns = [
        Column("operation", elastic=1, least=12),
        Column("line", elastic=3, least=14, end=True),
        Column("group", elastic=2, least=7, optional=1, named=True),
        Column("ranks", elastic=1, least=6, optional=2),
        Column("calls", right=True),
        Column("bytes", right=True),
        Column("waited", right=True),
        Column("longest", right=True, optional=3),
        Column("came last", elastic=4, least=19, entries=True),
    ]
    rows = [
        [
            use.operation,
            use.site,
            use.group,
            short_ranks(use.ranks, width=UNCUT if whole else 12),
            f"{use.calls:,}",
            size_text(use.bytes),
            time_text(use.waited),
            time_text(use.longest),
            entry_list(list(map(_late_text, use.last)), len(use.last) if whole else 3),
        ]
        for use in uses
    ]
    hidden = []
    if len({use.group for use in uses}) == 1:
        hidden.append("group")
    if all(len(use.ranks) == summary.ranks for use in uses):
        hidden.append("ranks")
    marked = {n: "warning" for n, use in enumerate(uses) if use.open}
    table = TextTable(columns, rows, marked=marked, what="operation")
    table.notes = [*_still_open(summary, whole=whole), *_held_up(summary)]
    return table.without(hidden)


def _late_text(late: Late) -> str:
    return f"{late.rank} ({late.times}x, {time_text(late.seconds)})"


def _still_open(summary: RunSummary, *, whole: bool) -> list[str]:
    uses = summary.operations
    number = sum(use.open for use in uses)
    if not number:
        return []
    where = [f"{use.operation} {use.site}" for use in uses if use.open]
    shown = entry_list(where, len(where) if whole else 3)
    if summary.status == "unknown":
        return [f"{many(number, 'call')} still open at the end: {shown}"]
    return [f"{many(number, 'call')} never met: {shown}"]


def _held_up(summary: RunSummary) -> list[str]:
    lates = (late for use in summary.operations for late in use.last)
    found = find_stragglers(lates, ranks=summary.ranks, seconds=summary.kept)
    return [straggler_text(found)] if found else []


def _ranks(summary: RunSummary, *, whole: bool) -> TextTable:
    """Numbers are those of calls that are kept."""
    is_whole = not any(fold.forgotten for fold in summary.folds)
    columns = [
        Column("ranks", elastic=1, least=8),
        Column("calls" if is_whole else "calls kept", right=True),
        Column("bytes", right=True, optional=2),
        Column("waited", right=True),
        Column("of the run" if is_whole else "of that time", right=True, optional=1),
        Column("ended", elastic=1, least=8, named=True),
        Column("last call", elastic=2, least=22, end=True),
    ]
    rows = [_rank_row(fold, summary, UNCUT if whole else 24) for fold in summary.folds]
    marked = {n: "error" for n, fold in enumerate(summary.folds) if "failed" in fold.ended}
    return TextTable(columns, rows, marked=marked, what="kind of ranks")


def _rank_row(fold: RankFold, summary: RunSummary, width: int) -> list[str]:
    least, most = fold.waited
    parts = [round(100 * waited / (summary.kept or 1)) for waited in fold.waited]
    known = f": {summary.error}"
    return [
        short_ranks(fold.ranks, width=width),
        f"{fold.calls:,}",
        size_text(fold.bytes),
        _from_to(time_text(least), time_text(most)),
        _from_to(str(parts[0]), str(parts[1])) + " %",
        fold.ended.replace(known, "") if summary.error else fold.ended,
        fold.last + (f" ({open_word(summary.status)})" if fold.open else ""),
    ]


def open_word(status: str) -> str:
    """What a call is for which not all counterparts came: of a run that ended, nobody will."""
    return "open" if status == "unknown" else "never met"


def _times(summary: RunSummary, *, whole: bool) -> TextTable:
    """Ranks that spent their time alike are one row."""
    columns = [
        Column("time of", elastic=1, least=8),
        Column("computing", right=True),
        Column("and communicating", right=True),
        Column("exposed", right=True),
        Column("waiting for others", right=True),
        Column("exposed part", right=True),
    ]
    rows = [
        [
            short_ranks(alike.ranks, width=UNCUT if whole else 24),
            *map(time_text, (alike.computing, alike.overlapped, alike.exposed, alike.waiting)),
            f"{round(100 * alike.exposed / (alike.seconds or 1))} %",
        ]
        for alike in times_alike(summary.times)
    ]
    return TextTable(columns, rows, what="kind of ranks")


def _from_to(least: str, most: str) -> str:
    if least == most:
        return most
    number, _, unit = least.partition(" ")
    same = unit == most.partition(" ")[2]
    return f"{number if same else least} - {most}"


def _groups(summary: RunSummary) -> TextTable:
    used = [group for group in summary.groups if group.calls]
    columns = [
        Column("group", elastic=2, named=True),
        Column("ranks", elastic=3),
        Column("backend", elastic=1, least=8),
        Column("calls", right=True),
        Column("bytes", right=True),
        Column("waited", right=True),
    ]
    rows = [
        [
            group.name,
            short_ranks(group.ranks),
            group.backend,
            f"{group.calls:,}",
            size_text(group.bytes),
            time_text(group.waited),
        ]
        for group in used
    ]
    return TextTable(columns, rows if len(used) > 1 else [], what="group")


def _findings(summary: RunSummary) -> TextTable:
    told = summary.findings
    if summary.status == "failed" and len(told) == 1:
        told = []  # the report above is about it
    columns = [
        Column("finding", elastic=1, least=10),
        Column("severity"),
        Column("ranks", elastic=1, least=8),
        Column("what", elastic=2, least=30),
    ]
    rows = [[f.kind, f.severity, short_ranks(f.ranks), f.headline] for f in told]
    marked = {n: "error" if f.severity == "error" else "warning" for n, f in enumerate(told)}
    return TextTable(columns, rows, marked=marked, what="finding")
