"""The folder of recordings that nobody asked for: those of the last runs that failed.

`phalanx report LAST` shows the newest. The folder is `phalanx/runs` in the user's cache folder
(`XDG_CACHE_HOME`, or `~/.cache`); the oldest recordings go when there are too many.
"""

from __future__ import annotations

import os
import re
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from phalanx.errors import UsageError
from phalanx.journal.reader import Journal
from phalanx.journal.recording.encoder import Encoder
from phalanx.journal.recording.recorder import encoded_end, header_of
from phalanx.journal.recording.recording_file import compressed
from phalanx.system import getpid

LAST = "LAST"
ENDING = ".jsonl.gz"
MOST_KEPT = 20
MOST_BYTES = 256 << 20


def runs_folder() -> Path:
    base = os.environ.get("XDG_CACHE_HOME") or os.path.join(os.path.expanduser("~"), ".cache")
    return Path(base) / "phalanx" / "runs"


def keep_run(
    journal: Journal, facts: Mapping[str, Any], end: Mapping[str, Any], *, name: str = "run"
) -> Path | None:
    """Write what is in memory of a run that failed; the file, or None where none can be
    written: that is no reason to fail once more."""
    events = list(journal)
    encoder = Encoder(events[0].time if events else 0.0)
    ranks: dict[int, list[Any]] = {}
    for event in events:
        ranks.setdefault(event.rank, []).append(event)
    lines = [line for rank in sorted(ranks) for line in encoder.encode(ranks[rank])]
    header = header_of(journal.ranks, encoder.start, facts)
    if journal.dropped:
        lines.insert(0, f'{{"dropped":{journal.dropped},"rank":0}}')
    data = compressed([header, *lines, encoded_end(end)])
    return _keep(name, lambda path: path.write_bytes(data))


def keep_link(file: str) -> None:
    """A run that failed was recorded into this file: it is the last one that failed, too."""
    name = os.path.basename(file).removesuffix(".gz").removesuffix(".jsonl")
    _keep(name, lambda path: path.symlink_to(os.path.abspath(file)))


def forget_link(file: str) -> None:
    """Another run is recorded into this file, so it is no run that failed any more."""
    file = os.path.abspath(file)
    for path in runs_folder().glob(f"*{ENDING}"):
        with suppress(OSError):  # it is no link, or another process has just removed it
            if os.readlink(path) == file:
                path.unlink()


def _keep(name: str, write: Callable[[Path], object]) -> Path | None:
    folder = runs_folder()
    short = re.sub(r"[^\w.-]+", "-", name).strip("-.")[:60] or "run"
    path = folder / f"{time.strftime('%Y%m%d-%H%M%S')}-{getpid()}-{short}{ENDING}"
    try:
        folder.mkdir(parents=True, exist_ok=True)
        path = _unused(path)
        write(path)
        forget_old(folder)
    except OSError:
        return None
    return path


def _unused(path: Path) -> Path:
    stem = path.name.removesuffix(ENDING)
    number = 1
    while os.path.lexists(path):
        number += 1
        path = path.with_name(f"{stem}-{number}{ENDING}")
    return path


def kept_runs(folder: Path | None = None) -> list[Path]:
    """The newest first; a recording elsewhere that is gone by now is left out."""
    found = []
    for path in (folder or runs_folder()).glob(f"*{ENDING}"):
        try:
            path.stat()
            found.append((path.lstat().st_mtime_ns, path))
        except OSError:  # another process has just removed it
            continue
    return [path for _, path in sorted(found, reverse=True)]


def forget_old(folder: Path) -> None:
    total = 0
    for number, path in enumerate(kept_runs(folder)):
        try:
            total += path.lstat().st_size
            if number >= MOST_KEPT or (number and total > MOST_BYTES):
                path.unlink()
        except OSError:
            continue


def find_run(given: str) -> Path:
    """The file that a user means: a path, LAST, or a part of the name of a run that was kept.
    Raises `UsageError`."""
    path = Path(given)
    if path.exists():
        return path
    kept = kept_runs()
    if given.upper() == LAST:
        if kept:
            return kept[0].resolve()
        raise UsageError(
            "LAST: no run is kept; a run that fails is, unless --no-record was given. Record "
            "any run with: phalanx run --record run.jsonl.gz ..."
        )
    named: Sequence[Path] = [path for path in kept if given in path.name]
    if given and len(named) == 1:
        return named[0].resolve()
    several = f"; {len(named)} kept runs have this in their names" if named else ""
    raise UsageError(
        f"{given}: there is no such file{several}. Give the file that --record wrote, or LAST "
        "for the last run that failed"
    )
