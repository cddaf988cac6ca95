"""The recording of a test on ranks: into the folder of `--ranks-record`, or kept if it fails.

Used by `items.py` and by the two that run a test on ranks.
"""

from __future__ import annotations

import os
import re
from contextlib import suppress
from dataclasses import replace
from typing import Any

from phalanx.engines.run_recording import RunRecording
from phalanx.testing.collection.given_options import given_of
from phalanx.testing.collection.marker import Ranks
from phalanx.testing.pytest.item_run import RanksRun

ENDING = ".jsonl.gz"
LONGEST_NAME = 120


class ItemRecording(RunRecording):
    """Of one run of one test. Hypothesis runs a test many times: the last run stays."""

    def __init__(self, item: Any, way: Ranks, replay: str) -> None:
        folder, only_failed = given_of(item.config).record
        options = way.plain()
        if folder and options.record is None:
            os.makedirs(folder, exist_ok=True)
            options = replace(options, record=os.path.join(folder, file_name(item.nodeid)))
        super().__init__(options, program=item.nodeid, command=replay)
        self._only_failed = bool(folder) and only_failed
        self._file: str | None = None

    def end(self, run: RanksRun) -> None:
        """The test has run."""
        self.found(run.findings)
        self._file = self.path
        if run.error is not None:
            name = self.failed(run.error, keep=False)
            run.timeline = None if name is None else min(name, os.path.relpath(name), key=len)
        self.close()

    def passed(self) -> None:
        if self._file is not None and self._only_failed:
            with suppress(OSError):
                os.unlink(self._file)

    def keep(self, run: RanksRun) -> None:
        """pytest shows the failure: keep what is in memory."""
        if run.timeline is None and run.error is not None:
            run.timeline = self.failed(run.error, by_name=True)


def file_name(nodeid: str) -> str:
    """A name for the recording of a test, close to its id."""
    plain = re.sub(r"[^\w.=-]+", "-", nodeid.replace("::", "--")).strip("-")
    return plain[-LONGEST_NAME:].lstrip("-.") + ENDING
