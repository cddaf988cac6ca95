"""The table of calls as comma-separated values."""

from __future__ import annotations

import csv
from pathlib import Path

import pytest

from phalanx.errors import UsageError
from phalanx.report.timeline.calls_csv import write_calls
from tests.report.timeline.made_up import met, posted, table_of_lines, words
from tests.report.timeline.recorded_runs import pipeline, table_of


def test_one_row_for_each_call(tmp_path: Path) -> None:
    path = write_calls(table_of(pipeline), tmp_path)
    assert path == tmp_path / "calls.csv"
    with path.open(newline="") as file:
        rows = list(csv.DictReader(file))
    assert len(rows) == 4 + 7 + 7 + 4
    sends = [row for row in rows if row["operation"] == "send"]
    assert [(row["rank"], row["peer"], row["bytes"]) for row in sends[:1]] == [
        ("0", "1", "256")
    ]
    assert all(row["slot"] == "" and row["came_last"] in "0123" for row in sends)
    (last,) = [row for row in rows if row["rank"] == "3" and row["operation"] == "all_reduce"]
    assert (last["reduce_op"], last["asynchronous"], last["slot"]) == ("SUM", "1", "0")
    assert int(last["start"]) <= int(last["met"]) <= int(last["done"])


def test_the_later_side_of_a_message_came_last(tmp_path: Path) -> None:
    """Also for a receive from any source, which does not say who sent it."""
    message = {"number": None, "tag": 0}
    lines = [
        posted(0, [10, 50], name="send", peer=1, **message),
        posted(1, [20, 40, 90], name="recv", peer=[0, None, 0], **message),
        met(1, [20, 50], number=None, calls=[[[0, 0], [1, 0]], [[0, 1], [1, 1]]]),
    ]
    path = write_calls(table_of_lines(tmp_path, 2, [*words(), *lines]), tmp_path / "x.csv")
    rows = list(csv.DictReader(path.read_text().splitlines()))
    assert [row["came_last"] for row in rows] == ["1", "0", "1", "0", ""]


def test_no_text_is_a_formula(tmp_path: Path) -> None:
    lines = [*words(file="=1+1", group="@x"), posted(0, [5], name="-x")]
    path = write_calls(table_of_lines(tmp_path, 1, lines), tmp_path / "x.csv")
    (row,) = list(csv.DictReader(path.read_text().splitlines()))
    assert (row["file"], row["group"], row["operation"]) == ("'=1+1", "'@x", "'-x")


def test_a_folder_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="No such file or directory; name a file in a folder"):
        write_calls(table_of(pipeline), tmp_path / "none" / "x.csv")
