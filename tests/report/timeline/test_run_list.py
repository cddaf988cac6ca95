"""The list of the recordings in a folder: what is found there, and what is left alone."""

from __future__ import annotations

import gzip
import os
from pathlib import Path

import pytest

from phalanx.errors import UsageError
from phalanx.journal.recording.decoder import load
from phalanx.journal.recording.recording_file import compressed
from phalanx.report.timeline.run_list import list_runs, recordings_in
from phalanx.report.timeline.screen_layout import plain_lines
from tests.report.timeline.made_up import posted, table_of_lines, words

HEADER = '{"format": "phalanx recording", "version": 1, "ranks": 2, "program": "train.py"}'


def test_recordings_of_any_name_are_found(tmp_path: Path) -> None:
    (tmp_path / "run.phalanx").write_bytes(compressed([HEADER]))
    (tmp_path / "other.gz").write_bytes(gzip.compress(b"something else"))
    (tmp_path / "broken.gz").write_bytes(b"\x1f\x8bxxxx")
    (tmp_path / "notes.txt").write_text("notes")
    (tmp_path / "folder").mkdir()
    os.mkfifo(tmp_path / "fifo")
    assert [path.name for path in recordings_in(tmp_path)] == ["run.phalanx"]
    text = plain_lines(list_runs(tmp_path))
    assert text.startswith(f"{tmp_path}: 1 recording\n")
    assert "train.py" in text


def test_those_that_are_not_shown_are_counted(tmp_path: Path) -> None:
    for name in ("a", "b"):
        (tmp_path / name).write_bytes(compressed([HEADER]))
    assert "... 1 more recording; --all" in plain_lines(list_runs(tmp_path, most=1))


@pytest.mark.timeout(10)
def test_a_fifo_is_refused(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "fifo")
    with pytest.raises(UsageError, match="fifo: this is no regular file; give the file that"):
        load(tmp_path / "fifo")


def test_a_list_fits_into_80_columns(tmp_path: Path) -> None:
    program = "a_folder/with_a_long_name/and_a_program_with_a_longer_one.py"
    end = {"end": {"status": "failed", "error": "CollectiveMismatchError"}}
    table_of_lines(tmp_path, 2, [*words(), posted(0, [10**9]), end], program=program)
    text = plain_lines(list_runs(tmp_path, width=80)[1:])
    assert "Collective" in text
    assert max(map(len, text.splitlines())) <= 80
