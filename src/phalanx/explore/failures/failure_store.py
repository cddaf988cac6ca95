"""The failures that explorations have found, kept in a folder and tried first the next time.

One JSON file for each program and number of ranks: tokens, with what they showed. A file is
replaced as a whole, so that a reader never sees half of one. What cannot be read is left out,
with a sentence; what cannot be written is a sentence, too, and no error of the exploration. No
torch.
"""

from __future__ import annotations

import hashlib
import json
import os
import tempfile
from collections.abc import Iterable, Iterator
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from phalanx.errors import UsageError
from phalanx.explore.tokens import read_token

VERSION = 1
MOST_OF_PROGRAM = 20
"""Failures that are kept for one program; the oldest go."""
MOST_FILES = 200
"""Programs in one folder; those not explored for longest go."""
LARGEST_FILE = 1 << 20
ENDING = ".json"


@dataclass(frozen=True)
class StoredFailure:
    """A failure of an earlier exploration."""

    token: str
    kind: str
    title: str


class FailureStore:
    """The failures of one program on so many ranks. `notes` are sentences for the user."""

    def __init__(self, folder: str, program: str, ranks: int) -> None:
        self.notes: list[str] = []
        self._folder = Path(folder)
        self._program = program
        self._ranks = ranks
        key = hashlib.blake2b(f"{program} {ranks}".encode(), digest_size=8).hexdigest()
        self._path = self._folder / f"{key}{ENDING}"

    def load(self) -> list[StoredFailure]:
        """Those that were kept, newest first."""
        try:
            if self._path.stat().st_size > LARGEST_FILE:
                raise ValueError("it is too large")
            data = json.loads(self._path.read_text(encoding="utf-8"))
            return list(self._read(data))
        except FileNotFoundError:
            return []
        except (OSError, ValueError, TypeError, KeyError, RecursionError):
            self.notes.append(f"{self._path} cannot be read and is ignored; delete it")
            return []

    def save(self, failures: Iterable[StoredFailure]) -> None:
        """Keep these and no others for this program."""
        kept = list(failures)[:MOST_OF_PROGRAM]
        try:
            if kept:
                self._write(kept)
            else:
                self._path.unlink(missing_ok=True)
        except OSError as error:
            why = error.strerror or type(error).__name__
            self.notes.append(f"failures cannot be kept in {self._folder}: {why}")

    def _read(self, data: Any) -> Iterator[StoredFailure]:
        if data["version"] != VERSION or data["program"] != self._program:
            raise ValueError("written by another version, or for another program")
        for each in data["failures"][:MOST_OF_PROGRAM]:
            found = StoredFailure(str(each["token"]), str(each["kind"]), str(each["title"]))
            try:
                read_token(found.token)
            except UsageError as error:
                raise ValueError(found.token) from error
            yield found

    def _write(self, kept: list[StoredFailure]) -> None:
        self._folder.mkdir(parents=True, exist_ok=True)
        self._ignore()
        data = {
            "version": VERSION,
            "program": self._program,
            "ranks": self._ranks,
            "failures": [asdict(each) for each in kept],
        }
        _replace(self._path, json.dumps(data, indent=1) + "\n")
        self._forget_old()

    def _ignore(self) -> None:
        """The folder is no part of the program's sources."""
        path = self._folder / ".gitignore"
        if not path.exists():
            _replace(path, "*\n")

    def _forget_old(self) -> None:
        files = sorted(self._folder.glob(f"*{ENDING}"), key=_changed)
        for path in files[: max(0, len(files) - MOST_FILES)]:
            path.unlink(missing_ok=True)


def _changed(path: Path) -> float:
    try:
        return path.stat().st_mtime
    except OSError:
        return 0.0


def _replace(path: Path, text: str) -> None:
    """Write the file under another name first, which nothing leaves behind."""
    descriptor, name = tempfile.mkstemp(dir=path.parent, prefix=".new-")
    try:
        with os.fdopen(descriptor, "w", encoding="utf-8") as file:
            file.write(text)
        os.replace(name, path)
    except BaseException:
        with suppress(OSError):
            os.unlink(name)
        raise
