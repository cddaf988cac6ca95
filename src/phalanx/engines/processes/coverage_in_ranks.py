"""Coverage in ranks that are processes, where somebody measures it (coverage.py, pytest-cov).

A rank is forked from a parent that is not measured, and ends without the clean-up that
coverage.py counts on. So it is started here as in any subprocess, by coverage's own variables,
and what was measured is saved after every call. Used by `process_rank.py`, and by
`fork_server.py` for the parent. In ranks of tests pytest-cov has begun it. Without coverage.py
nothing happens.
"""

from __future__ import annotations

import os
import sys
import warnings
from contextlib import suppress
from typing import Any

VARIABLES = ("COVERAGE_PROCESS_START", "COVERAGE_PROCESS_CONFIG")
"""Subprocesses that find one of them measure themselves."""


def begin() -> None:
    """In a rank, once it has the program's environment."""
    if any(os.environ.get(name) for name in VARIABLES):
        with suppress(Exception):  # none of its troubles is the program's
            import coverage  # type: ignore[import-not-found, unused-ignore]

            coverage.process_startup()


def save() -> None:
    """After a call. Files of one process come together when the program combines them all."""
    kind: Any = getattr(sys.modules.get("coverage"), "Coverage", None)
    with suppress(Exception), warnings.catch_warnings():
        measuring = None if kind is None else kind.current()
        if measuring is not None:
            warnings.simplefilter("ignore")  # a rank may have seen nothing of the sources
            measuring.save()
