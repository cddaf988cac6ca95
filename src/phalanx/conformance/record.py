"""Tables of results to and from JSON files, so that two runs can be compared later."""

from __future__ import annotations

import json
from dataclasses import asdict, fields
from pathlib import Path
from typing import Any

from phalanx.conformance.model import OUTCOMES, Result, Table
from phalanx.errors import UsageError

FORMAT = 1


def save(table: Table, path: Path) -> None:
    content = {"format": FORMAT, **asdict(table)}
    try:
        path.write_text(json.dumps(content, indent=1) + "\n", encoding="utf-8")
    except OSError as error:
        raise UsageError(f"cannot write {path}: {error.strerror}") from error


def check_writable(path: Path) -> None:
    """Before the run, not after it: whether a file can be written there."""
    try:
        with path.open("a", encoding="utf-8"):
            pass
    except OSError as error:
        raise UsageError(f"cannot write {path}: {error.strerror}") from error


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
            raise UsageError(f"{path} has a result that is none: {each}")
        results.append(Result(**each))
    return Table(**content, results=tuple(results))
