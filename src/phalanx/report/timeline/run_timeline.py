"""A run that is in memory, to look at: what `World.timeline()` and errors give to a notebook.

Nothing is computed before somebody looks. Needs no torch.
"""

from __future__ import annotations

import html
import os
from collections.abc import Mapping
from functools import cached_property
from typing import Any

from phalanx.journal.reader import Journal
from phalanx.journal.recording.decoder import recording_of
from phalanx.report.timeline.calls_table import CallsTable, calls_table
from phalanx.report.timeline.page import page_text, write_page
from phalanx.report.timeline.run_summary import as_data, summarize
from phalanx.report.timeline.screen_layout import plain_lines
from phalanx.report.timeline.summary_screen import screen

HEIGHT = 560
"""Pixels of the frame in a notebook."""


class RunTimeline:
    """One run. A notebook shows it as the page of `phalanx report --html`; `print` shows the
    screen of `phalanx report`."""

    def __init__(self, journal: Journal, facts: Mapping[str, Any], end: Mapping[str, Any]):
        self._journal = journal
        self._facts = dict(facts)
        self._end = dict(end)

    @cached_property
    def _table(self) -> CallsTable:
        recording = recording_of(self._journal, self._facts)
        recording.end, recording.cut = self._end, False
        return calls_table(recording)

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the page to a file. Raises `UsageError` if it cannot be written."""
        write_page(self._table, path)

    def summary(self) -> dict[str, Any]:
        """The numbers, as `phalanx report --json` has them."""
        return as_data(summarize(self._table))

    def __str__(self) -> str:
        return plain_lines(screen(summarize(self._table))).rstrip("\n")

    def __repr__(self) -> str:
        return f"<timeline of {self._journal!r}>"

    def _repr_html_(self) -> str:
        """The page in a frame of its own: it sees nothing of the notebook."""
        page = html.escape(page_text(self._table, inline=True), quote=True)
        style = f"width:100%;height:{HEIGHT}px;border:0"
        return f'<iframe sandbox="allow-scripts" style="{style}" srcdoc="{page}"></iframe>'
