"""The recordings of a folder, one line each: what `phalanx report FOLDER` prints.

A file that is no recording is listed as such: one of them is no reason to show none.
Needs no torch.
"""

from __future__ import annotations

import time
from pathlib import Path

from phalanx.errors import UsageError
from phalanx.journal.recording.decoder import Recording, RecordingError, load
from phalanx.journal.recording.kept_runs import ENDING, kept_runs
from phalanx.report.timeline.screen_layout import Column, Line, TextTable, printable, time_text

COLUMNS = [
    Column("recording", elastic=2, least=24, end=True),
    Column("ranks", right=True),
    Column("program", elastic=3),
    Column("ended", elastic=1, least=20),
    Column("took", right=True),
    Column("written"),
]


def list_runs(folder: Path, *, width: int = 100, most: int | None = None) -> list[Line]:
    """The newest first. Raises `UsageError` if there is none."""
    found = kept_runs(folder)
    if not found:
        raise UsageError(
            f"{folder}: no recordings (*{ENDING}) in it. Record any run with: "
            f"phalanx run --record run{ENDING} ..."
        )
    shown = found[:most]
    rows = [_row(path) for path in shown]
    table = TextTable(COLUMNS, rows + [[""] * len(COLUMNS)] * (len(found) - len(shown)))
    table.most, table.what = len(shown), "recordings"
    table.marked = {n: "error" for n, row in enumerate(rows) if row[3] != "finished"}
    lines: list[Line] = [[(printable(f"{folder}: {len(found)} recordings"), "")], []]
    return [*lines, *table.lines(width)]


def _row(path: Path) -> list[str]:
    name = path.name.removesuffix(ENDING)
    written = time.strftime("%Y-%m-%d %H:%M", time.localtime(path.stat().st_mtime))
    try:
        run = load(path)
    except RecordingError:
        return [name, "", "", "not readable", "", written]
    took = time_text(run.duration / 1e9)
    return [name, str(run.ranks), str(run.header.get("program", "")), _end(run), took, written]


def _end(run: Recording) -> str:
    if run.end is None:
        return "not known"
    return str(run.end.get("error") or run.end.get("status") or "not known")
