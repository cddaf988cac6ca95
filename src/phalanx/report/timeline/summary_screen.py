"""The summary of a recorded run on one screen: what `phalanx report RUN` prints.

`screen` is a pure function from a `RunSummary` to lines with styles. `print_lines` writes them,
with colours where rich is installed and the terminal has them. Needs no torch.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Sequence
from contextlib import suppress
from typing import TextIO

from phalanx.report.layout import count
from phalanx.report.timeline.run_summary import (
    Late,
    MessageCount,
    OperationUse,
    RankFold,
    RunSummary,
)
from phalanx.report.timeline.screen_layout import (
    Column,
    Line,
    TextTable,
    cut,
    plain_lines,
    printable,
    share,
    short_ranks,
    size_text,
    time_text,
)

HEIGHT = 40
"""Lines of a screen; tables are cut so that all of them fit about there."""
MOST_TEXT = 20
"""Lines of the report of a run that failed."""
LAST_TEXT = 6
"""Of them, lines from its end: a hint, and how to repeat the run."""
MATRIX = 8
"""Rows and columns of the messages; more ranks are ranges of ranks."""
CELL = 7


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
    tables = [
        _operations(summary, whole=whole),
        _ranks(summary),
        _findings(summary),
        _groups(summary),
    ]
    tables = [table for table in tables if table.rows]
    matrix = _Matrix(summary.messages, width)
    wanted = [*(len(table.rows) for table in tables), matrix.wanted]
    if whole:
        given = [*wanted[:-1], matrix.largest]
    elif most is not None:
        given = [min(most, want) for want in wanted]
    else:
        used = len(lines) + sum(table.height + 1 for table in tables) + matrix.height
        given = share(wanted, HEIGHT - used - 1)
    for table, rows in zip(tables, given, strict=False):
        table.most = rows
        lines += [[], *table.lines(width)]
    if summary.messages:
        lines += [[], *matrix.table(given[-1]).lines(width)]
    if summary.missing:
        lines.append([])
        lines += [[("  missing   ", "label"), (text, "warning")] for text in summary.missing]
    return lines


def _head(summary: RunSummary, name: str, width: int, *, whole: bool) -> list[Line]:
    facts = summary.facts
    program = printable(facts.get("program", "")) or "a run"
    engine = f" on {facts['engine']}" if facts.get("engine") else ""
    what = f": {count(summary.ranks, 'rank')}{engine}, {time_text(summary.seconds)}"
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
    return lines + _ending(summary, width, whole=whole)


def _when(started: float | None) -> str:
    with suppress(ValueError, OverflowError, OSError, TypeError):
        return time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(started)) if started else ""
    return ""


def _ending(summary: RunSummary, width: int, *, whole: bool) -> list[Line]:
    label = ("  ended     ", "label")
    if summary.status == "finished":
        found = count(len(summary.findings), "finding")
        text = f"finished, {found}" if summary.findings else "finished, nothing found"
        return [[label, (text, "warning" if summary.findings else "good")]]
    if summary.status == "unknown":
        return [[label, ("not known: the recording has no end", "warning")]]
    lines: list[Line] = [[label, (printable(f"failed: {summary.error}"), "error")]]
    report = printable(summary.text).rstrip().splitlines()
    hidden = 0 if whole else len(report) - MOST_TEXT
    lines.append([])
    for number, line in enumerate(report):
        if hidden <= 2 or not 0 <= number - MOST_TEXT + LAST_TEXT < hidden:
            lines.append([(cut(line, max(width, 88)), "" if number else "error")])
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
        Column("group", elastic=2, least=7, optional=1),
        Column("ranks", elastic=1, least=6, optional=2),
        Column("calls", right=True),
        Column("bytes", right=True),
        Column("waited", right=True),
        Column("longest", right=True, optional=3),
        Column("came last", elastic=4, least=16),
    ]
    rows = [
        [
            use.operation,
            use.site,
            use.group,
            short_ranks(use.ranks, width=12),
            f"{use.calls:,}",
            size_text(use.bytes),
            time_text(use.waited),
            time_text(use.longest),
            _late_text(use.last, most=len(use.last) if whole else 2),
        ]
        for use in uses
    ]
    hidden = []
    if len({use.group for use in uses}) == 1:
        hidden.append("group")
    if all(len(use.ranks) == summary.ranks for use in uses):
        hidden.append("ranks")
    marked = {n: "warning" for n, use in enumerate(uses) if use.open}
    table = TextTable(columns, rows, marked=marked, what="operations")
    table.notes = [*_still_open(uses), *_held_up(summary)]
    return table.without(hidden)


def _late_text(last: Sequence[Late], *, most: int) -> str:
    shown = [f"{each.rank} ({each.times}x, {time_text(each.seconds)})" for each in last[:most]]
    return ", ".join(shown) + (", ..." if len(last) > most else "")


def _still_open(uses: Sequence[OperationUse]) -> list[str]:
    number = sum(use.open for use in uses)
    if not number:
        return []
    where = [f"{use.operation} {use.site}" for use in uses if use.open]
    more = f" and {len(where) - 3} more" if len(where) > 3 else ""
    return [f"{count(number, 'call')} that nobody met: {', '.join(where[:3])}{more}"]


def _held_up(summary: RunSummary) -> list[str]:
    """The ranks that cost the others most, if that is worth a look."""
    total: dict[int, Late] = {}
    for use in summary.operations:
        for each in use.last:
            found = total.setdefault(each.rank, Late(each.rank))
            found.times += each.times
            found.seconds += each.seconds
    mean = sum(late.seconds for late in total.values()) / summary.ranks
    least = max(summary.seconds / 20, mean * 2)
    slow = sorted(total.values(), key=lambda late: -late.seconds)
    slow = [late for late in slow if late.seconds > least][:3]
    if not slow:
        return []
    told = ", ".join(f"rank {e.rank} for {time_text(e.seconds)} ({e.times}x)" for e in slow)
    return [f"others waited for {told}"]


def _ranks(summary: RunSummary) -> TextTable:
    columns = [
        Column("ranks", elastic=1, least=8),
        Column("calls", right=True),
        Column("bytes", right=True, optional=2),
        Column("waited", right=True),
        Column("of the run", right=True, optional=1),
        Column("ended", elastic=1, least=8),
        Column("last call", elastic=2, least=22, end=True),
    ]
    rows = [_rank_row(fold, summary) for fold in summary.folds]
    marked = {n: "error" for n, fold in enumerate(summary.folds) if "failed" in fold.ended}
    return TextTable(columns, rows, marked=marked, what="kinds of ranks")


def _rank_row(fold: RankFold, summary: RunSummary) -> list[str]:
    least, most = fold.waited
    parts = [round(100 * waited / (summary.seconds or 1)) for waited in fold.waited]
    known = f": {summary.error}"
    return [
        short_ranks(fold.ranks),
        f"{fold.calls:,}",
        size_text(fold.bytes),
        _from_to(time_text(least), time_text(most)),
        _from_to(str(parts[0]), str(parts[1])) + " %",
        fold.ended.replace(known, "") if summary.error else fold.ended,
        fold.last + (" (open)" if fold.open else ""),
    ]


def _from_to(least: str, most: str) -> str:
    if least == most:
        return most
    number, _, unit = least.partition(" ")
    same = unit == most.partition(" ")[2]
    return f"{number if same else least} - {most}"


def _groups(summary: RunSummary) -> TextTable:
    used = [group for group in summary.groups if group.calls]
    columns = [
        Column("group", elastic=2),
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
    return TextTable(columns, rows if len(used) > 1 else [], what="groups")


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
    return TextTable(columns, rows, marked=marked, what="findings")


class _Matrix:
    """Messages from ranks to ranks; where ranks are many, from ranges to ranges."""

    def __init__(self, messages: Sequence[MessageCount], width: int) -> None:
        self._messages = messages
        sent = [m for m in messages if m.messages]
        self._ranks = sorted({rank for m in sent for rank in (m.source, m.target)})
        self.largest = min(len(self._ranks), max(2, (width - 20) // (CELL + 2)))
        self.wanted = min(self.largest, MATRIX)
        self._notes = list(self._lost())

    @property
    def height(self) -> int:
        return 2 + len(self._notes) if self._messages else 0

    def table(self, most: int) -> TextTable:
        if not self._ranks:
            return TextTable([Column("messages")], [["none"]], notes=self._notes)
        size = -(-len(self._ranks) // max(1, most))
        ranges = [self._ranks[at : at + size] for at in range(0, len(self._ranks), size)]
        place = {rank: number for number, ranks in enumerate(ranges) for rank in ranks}
        cells = [[0] * len(ranges) for _ in ranges]
        sizes = [0] * len(ranges)
        for each in self._messages:
            if not each.messages:
                continue
            cells[place[each.source]][place[each.target]] += each.messages
            sizes[place[each.source]] += each.bytes
        names = [short_ranks(ranks, width=CELL + 8) for ranks in ranges]
        columns = [Column("messages"), *(Column(f"to {name}", right=True) for name in names)]
        rows = [
            [f"from {name}", *(f"{n:,}" if n else "." for n in row), size_text(size)]
            for name, row, size in zip(names, cells, sizes, strict=True)
        ]
        return TextTable([*columns, Column("bytes", right=True)], rows, notes=self._notes)

    def _lost(self) -> list[str]:
        notes = []
        for word, what in (("lost", "sent and never received"), ("missed", "never sent")):
            pairs = [(m, getattr(m, word)) for m in self._messages if getattr(m, word)]
            told = [f"{n} from {m.source} to {m.target}" for m, n in pairs[:4]]
            if pairs:
                total = count(sum(n for _, n in pairs), "message")
                more = ", ..." if len(pairs) > 4 else ""
                notes.append(f"{total} {what}: {', '.join(told)}{more}")
        return notes
