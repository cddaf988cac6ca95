"""Results of the upstream suite as text. Used by `run.py`."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any


def render_summary(results: list[dict[str, Any]]) -> str:
    """How many passed, were skipped and failed, for each number of ranks."""
    lines = []
    for ranks in sorted({result["ranks"] for result in results}):
        statuses = Counter(r["status"] for r in results if r["ranks"] == ranks)
        counts = ", ".join(f"{count} {status}" for status, count in sorted(statuses.items()))
        lines.append(f"{ranks} ranks: {counts}")
    return "\n".join(lines)


def render_docs(path: Path, results: list[dict[str, Any]]) -> None:
    raise NotImplementedError
