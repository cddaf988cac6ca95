"""The recordings of a folder, one line each: what `phalanx report FOLDER` prints.

A file that is no recording is listed as such: one of them is no reason to show none.
Needs no torch.
"""

from __future__ import annotations

import os
import time
import zlib
from contextlib import suppress
from pathlib import Path

from phalanx.errors import UsageError
from phalanx.journal.recording.decoder import HEAD, Recording, RecordingError, load
from phalanx.journal.recording.kept_runs import ENDING
from phalanx.journal.recording.recording_file import GZIP
from phalanx.report.timeline.screen_layout import (
    Column,
    Line,
    TextTable,
    many,
    printable,
    time_text,
)

FEW = 512
"""Bytes of a file that are read to see what it is."""
COLUMNS = [
    Column("recording", elastic=2, least=24, end=True),
    Column("ranks", right=True),
    Column("program", elastic=3),
    Column("ended", elastic=1, least=9),
    Column("took", right=True),
    Column("written", optional=1),
]


def list_runs(folder: Path, *, width: int = 100, most: int | None = None) -> list[Line]:
    """The newest first. Raises `UsageError` if there is none."""
    found = recordings_in(folder)
    if not found:
        raise UsageError(
            f"{folder}: no recordings (*{ENDING}) in it, nor any of another name. "
            f"Record any run with: phalanx run --record run{ENDING} ..."
        )
    shown = found[:most]
    rows = [_row(path) for path in shown]
    table = TextTable(COLUMNS, rows + [[""] * len(COLUMNS)] * (len(found) - len(shown)))
    table.most, table.what = len(shown), "recording"
    table.marked = {n: "error" for n, row in enumerate(rows) if row[3] != "finished"}
    lines: list[Line] = [[(printable(f"{folder}: {many(len(found), 'recording')}"), "")], []]
    return [*lines, *table.lines(width)]


def recordings_in(folder: Path) -> list[Path]:
    """The regular files of a folder that begin as recordings do or are named as kept runs are,
    the newest first. Reads a few bytes of each."""
    found = []
    try:
        with os.scandir(folder) as entries:
            for entry in entries:
                with suppress(OSError):  # another process has just removed it
                    if entry.is_file() and (
                        entry.name.endswith(ENDING) or _is_ours(entry.path)
                    ):
                        found.append(
                            (entry.stat(follow_symlinks=False).st_mtime_ns, Path(entry.path))
                        )
    except OSError:
        return []
    return [path for _, path in sorted(found, reverse=True)]


def _is_ours(path: str) -> bool:
    with open(path, "rb", buffering=0) as file:
        data = file.read(FEW)
    if not data.startswith(b"\x1f\x8b"):
        return data.startswith(HEAD)
    try:
        return zlib.decompressobj(GZIP).decompress(data, len(HEAD)) == HEAD
    except zlib.error:
        return False


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
