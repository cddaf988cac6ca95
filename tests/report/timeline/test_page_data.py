"""The packed block of a page, read back as the browser reads it."""

from __future__ import annotations

import gzip
import json
from array import array
from pathlib import Path
from typing import Any

import pytest

from phalanx.report.timeline import page_data as module
from phalanx.report.timeline.calls_table import CallsTable
from phalanx.report.timeline.page_data import page_data
from tests.report.timeline.made_up import met, posted, table_of_lines, words


def unpacked(table: CallsTable) -> tuple[dict[str, Any], dict[str, list[Any]]]:
    data = gzip.decompress(page_data(table))
    length = int.from_bytes(data[:4], "little")
    facts = json.loads(data[4 : 4 + length])
    base = (4 + length + 7) // 8 * 8
    columns = {}
    for name, place in facts["columns"].items():
        if "all" in place:
            columns[name] = [place["all"]] * place["n"]
        else:
            at = base + place["at"]
            found: array[Any] = array(place["type"])
            found.frombytes(data[at : at + place["n"] * found.itemsize])
            columns[name] = list(found)
    return facts, columns


def test_times_are_steps_and_distances_with_one_added(tmp_path: Path) -> None:
    done = {**met(1, [155, 380]), "kind": "completed"}
    waited = {"kind": "wait-ended", "rank": 0, "n": 1, "time": [170], "group": 0}
    lines = [posted(0, [100, 300]), posted(1, [150, 360]), met(1, [150, 355]), done]
    lines += [{**waited, "call": {"all": [0, 0]}}]
    _, columns = unpacked(table_of_lines(tmp_path, 2, [*words(), *lines]))
    assert columns["start"] == [100, 200, 150, 210]
    assert columns["count"] == [2, 2]
    assert columns["waiting"] == [1, 1, 1, 1]
    assert columns["met"] == [51, 56, 1, -5]
    assert columns["done"] == [6, 26, 6, 26]
    assert columns["resumed"] == [16, 0, 0, 0]
    assert columns["number"] == [0, 1, 0, 1]


def test_times_of_a_long_run_fit_into_32_bits(tmp_path: Path) -> None:
    day = 24 * 3600 * 10**9
    table = table_of_lines(tmp_path, 1, [*words(), posted(0, [5, day])])
    facts, columns = unpacked(table)
    assert facts["unit"] == -(-day // module.TICKS)
    assert sum(columns["start"]) == facts["duration"] == day // facts["unit"]


def test_both_calls_of_a_message_find_each_other_from_any_source(tmp_path: Path) -> None:
    none = [None, None]
    send = posted(0, [10, 20], name="send", number=none, peer=1, tag=0)
    receive = posted(1, [15, 25], name="recv", number=none, peer=none, tag=0)
    pairs = [[[0, 1], [1, 0]]]
    meets = {**met(1, [30]), "number": [None], "calls": pairs}
    _, columns = unpacked(table_of_lines(tmp_path, 2, [*words(), send, receive, meets]))
    assert columns["partner"] == [-1, 2, 1, -1]
    assert columns["peer"] == [1, 1, 0, -1]


def test_a_run_that_is_too_large_keeps_its_newest_calls(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "MOST_CALLS", 4)
    lines = [posted(rank, [10, 20, 30]) for rank in range(2)]
    facts, columns = unpacked(table_of_lines(tmp_path, 2, [*words(), *lines]))
    assert columns["count"] == [2, 2]
    assert columns["first"] == [1, 1]
    assert columns["number"] == [1, 2, 1, 2]
    assert "The oldest 2 calls are left out" in "".join(facts["notes"])


def test_a_recording_without_calls(tmp_path: Path) -> None:
    facts, columns = unpacked(table_of_lines(tmp_path, 3, [], program=["odd", {}]))
    assert facts["folds"] == [[0, 1, 2]]
    assert facts["facts"]["program"] == "['odd', {}]"
    assert facts["status"] == "unknown"
    assert columns["start"] == []


def test_what_a_terminal_would_obey_is_text_in_the_page(tmp_path: Path) -> None:
    lines = [*words(op="a\x1b[2J", group="b\x1b[2J"), posted(0, [1], name="all\x1b[2J")]
    facts, _ = unpacked(table_of_lines(tmp_path, 1, lines))
    told = json.dumps(facts, ensure_ascii=False)
    assert {f"{each}\\\\x1b[2J" in told for each in ("a", "b", "all")} == {True}, told
    assert told.isprintable()
