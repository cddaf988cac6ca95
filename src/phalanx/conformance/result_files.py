"""Tables of results to and from JSON files, so that two runs can be compared later."""

from __future__ import annotations

import json
import os
from dataclasses import asdict, fields
from pathlib import Path
from typing import Any

from phalanx.conformance.case_model import OUTCOMES, Result, Table
from phalanx.errors import UsageError

FORMAT = 1


def save(table: Table, path: Path) -> None:
    content = {"format": FORMAT, **asdict(table)}
    write(json.dumps(content, indent=1) + "\n", path)


def write(text: str, path: Path) -> None:
    """All of the file or nothing: what is there stays until the new text is complete."""
    path = path.resolve()
    partial = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        if path.exists() and not path.is_file():  # a pipe, a terminal: nothing to keep
            path.write_text(text, encoding="utf-8")
            return
        try:
            partial.write_text(text, encoding="utf-8")
            partial.replace(path)
        finally:
            partial.unlink(missing_ok=True)
    except OSError as error:
        raise UsageError(f"cannot write {path}: {error.strerror}") from error


def check_writable(path: Path) -> None:
    """Before the run, not after it: whether a file can be written there."""
    path = path.resolve()
    if path.exists() and not path.is_file() and not path.is_dir():
        return
    if not path.is_dir() and os.access(path.parent, os.W_OK):
        return
    if path.is_dir():
        why = "it is a folder"
    elif path.parent.is_dir():
        why = f"no permission to write to {path.parent}"
    else:
        why = f"there is no folder {path.parent}"
    raise UsageError(f"cannot write {path}: {why}")


def load(path: Path) -> Table:
    try:
        content: Any = json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise UsageError(f"cannot read {path}: {error.strerror}") from error
    except ValueError as error:
        raise UsageError(f"{path} is no JSON file: {error}") from error
    if not isinstance(content, dict) or content.pop("format", None) != FORMAT:
        raise UsageError(f"{path} was not written by phalanx conformance --json")
    known = {field.name for field in fields(Result)}
    results = []
    for each in content.pop("results"):
        if not known >= each.keys() or each.get("outcome") not in OUTCOMES:
            raise UsageError(f"{path} has an entry that is not a result: {each}")
        results.append(Result(**each))
    return Table(**content, results=tuple(results))
