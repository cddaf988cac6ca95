"""Tests of the suite that fail on our ranks, with the reason. Ideally empty."""

from __future__ import annotations

KNOWN_FAILURES: dict[str, str] = {}
"""Name of the test -> why it fails."""


def is_as_expected(name: str, ranks: int, status: str) -> bool:
    """A known failure that passes is as unexpected as one that is not known."""
    if status == "skipped":
        return True
    return (status != "passed") == (name in KNOWN_FAILURES)
