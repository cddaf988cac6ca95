"""A recorded run as a page for the browser: one file, no network, opens from disk.

Its parts lie in `page_assets`. The page has no text of a
recording in its markup: all data are one packed block (`page_data.py`), and the script shows
them as text. A policy in the page lets nothing but that one script run and nothing be
loaded. Needs no torch.
"""

from __future__ import annotations

import base64
import hashlib
import os
from pathlib import Path

from phalanx.errors import UsageError
from phalanx.report.timeline.calls_table import CallsTable
from phalanx.report.timeline.page_data import page_data

_ASSETS = Path(__file__).parent / "page_assets"
_SCRIPTS = ("run", "lanes", "marks", "panel", "input", "pictures")
"""In this order they are one script."""


def write_page(table: CallsTable, path: str | os.PathLike[str]) -> None:
    """Write the page of a run to `path`. Raises `UsageError` if it cannot be written."""
    text = page_text(table)
    try:
        Path(path).write_text(text, encoding="utf-8")
    except OSError as error:
        raise UsageError(
            f"{os.fspath(path)}: {error.strerror or error}; name a file in a folder that "
            "exists and that you may write to"
        ) from None


def page_text(table: CallsTable, *, inline: bool = False) -> str:
    """The page of a run. `inline` makes it smaller: for a frame in a notebook, as its
    `srcdoc`, where a cell above it says which run it is."""
    script = "\n".join(_asset(f"{name}.js") for name in _SCRIPTS)
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    policy = f"default-src 'none'; script-src 'sha256-{digest}'; style-src 'unsafe-inline'"
    page = _asset("page.html")
    for name, text in {
        "@policy@": policy,
        "@layout@": "inline" if inline else "whole",
        "@style@": _asset("page.css"),
        "@script@": script,
        "@data@": base64.b64encode(page_data(table)).decode(),
    }.items():
        page = page.replace(name, text)
    return page


def _asset(name: str) -> str:
    return (_ASSETS / name).read_text(encoding="utf-8")
