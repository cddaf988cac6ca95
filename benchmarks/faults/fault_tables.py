"""The tables of docs/faults.md, from the figures that were measured."""

from __future__ import annotations

from pathlib import Path
from typing import Any

EVIDENCE = Path(__file__).with_name("evidence.json")


def write_tables(page: Path, figures: dict[str, Any]) -> None: ...
