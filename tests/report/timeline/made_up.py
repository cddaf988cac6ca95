"""Recordings that no run wrote, for tests of what shows them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from phalanx.journal.events import VERSION
from phalanx.journal.recording.decoder import load
from phalanx.journal.recording.recorder import FORMAT
from phalanx.report.timeline.calls_table import CallsTable, calls_table


def table_of_lines(folder: Path, ranks: int, lines: list[Any], **facts: Any) -> CallsTable:
    """The table of a recording with these lines after its header."""
    head = {"format": FORMAT, "version": VERSION, "ranks": ranks, **facts}
    path = folder / "made-up.phalanx"
    path.write_text("".join(json.dumps(line) + "\n" for line in [head, *lines]))
    return calls_table(load(path))


def words(*, op: str = "all_reduce", file: str = "train.py", group: str = "world") -> list[Any]:
    """Two lines of a program, two tensors, and a group for 64 ranks."""
    around = [9, "def step():", f"    dist.{op}(t)", "    return t"]
    return [
        {"site": 0, "at": [file, 10, "step", around]},
        {"site": 1, "at": [file, 20, "other", []]},
        {"tensors": 0, "are": [["float32", [4], "cpu"]]},
        {"tensors": 1, "are": [["float32", [5], "cpu"]]},
        {"group": 0, "name": group, "ranks": list(range(64)), "backend": "gloo"},
    ]


def posted(rank: int, times: list[int], **columns: Any) -> dict[str, Any]:
    """Calls of a rank at these times, in nanoseconds: collectives unless `columns` say so."""
    steps = [b - a for a, b in zip([0, *times], times, strict=False)]
    numbers = list(range(len(times)))
    line = {"kind": "posted", "rank": rank, "n": len(times), "time": steps, "group": 0}
    line |= {"name": "all_reduce", "serial": {"from": 0}, "number": numbers, "site": 0}
    line |= {"tensors": 0, "member": rank}
    return {**line, **columns}


def met(rank: int, times: list[int], **columns: Any) -> dict[str, Any]:
    steps = [b - a for a, b in zip([0, *times], times, strict=False)]
    line = {"kind": "met", "rank": rank, "n": len(times), "time": steps, "group": 0}
    return {**line, "number": list(range(len(times))), **columns}
