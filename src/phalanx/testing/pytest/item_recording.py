"""The recording of a test on ranks: into the folder of `--ranks-record`, or kept if it fails.

Used by `items.py` and by the two that run a test on ranks.
"""

from __future__ import annotations

import os
import re
import zlib
from contextlib import suppress
from dataclasses import replace
from typing import Any

from phalanx.engines.run_recording import RunRecording
from phalanx.errors import UsageError
from phalanx.journal.recording.kept_runs import keep_link
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
            try:
                os.makedirs(folder, exist_ok=True)
            except OSError as error:
                raise UsageError(
                    f"--ranks-record {folder}: the folder cannot be made ({error.strerror}); "
                    "give one that can be written to"
                ) from None
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
        """pytest shows the failure: keep what is in memory, or remember the file."""
        if self._file is not None:
            keep_link(self._file)
        if run.timeline is None and run.error is not None:
            run.timeline = self.failed(run.error, by_name=True)


def file_name(nodeid: str) -> str:
    """A name for the recording of a test, close to its id. Parameters whose characters a file
    should not have, and long ids, have a few digits that no other test has.

    >>> file_name("tests/test_a.py::test_it[ranks=2-x]")
    'tests-test_a.py--test_it-ranks=2-x.jsonl.gz'
    >>> file_name("test_a.py::test_it[ranks=2-x y]")
    'test_a.py--test_it-ranks=2-x-y-fa565f.jsonl.gz'
    """
    plain = re.sub(r"[^\w.=-]+", "-", nodeid.replace("::", "--")).strip("-")
    parameters = nodeid.partition("[")[2].removesuffix("]")
    if len(plain) > LONGEST_NAME or re.search(r"[^\w.=-]", parameters):
        plain += f"-{zlib.crc32(nodeid.encode('utf-8', 'surrogateescape')) & 0xFFFFFF:06x}"
    return plain[-LONGEST_NAME:].lstrip("-.") + ENDING
