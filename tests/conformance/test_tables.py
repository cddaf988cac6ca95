"""Results to text, JSON and Markdown, and the differences between two tables."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from phalanx.conformance import result_files
from phalanx.conformance.case_model import Outcome, Result, Table
from phalanx.conformance.conformance_page import render_document
from phalanx.conformance.known_differences import find_differences, is_known_trouble
from phalanx.conformance.result_table import render_tables, render_total, sign
from phalanx.conformance.suite import all_cases
from phalanx.errors import UsageError


def result(name: str, outcome: Outcome = "pass", **more: str) -> Result:
    operation = name.partition("/")[0]
    return Result(name, "collectives", operation, 3, outcome, **more)  # type: ignore[arg-type]


ROWS = (
    result("all_reduce/float32/sum/sync@3", dtype="float32", mode="sync", group="full"),
    result("all_reduce/int16/sum/sync@3", "refuse", dtype="int16", mode="sync", group="full",
           rule="dtype", reason="Gloo takes no int16"),
    result("all_reduce/float32/sum/sync/strided@3", "refuse", dtype="float32", mode="sync",
           group="full", rule="gaps"),
    result("Work/wait-twice@3"),
)  # fmt: skip
THREADS = Table("threads", "gloo", "2.13.0", 1.5, ROWS)
REAL = replace(
    THREADS,
    engine="processes",
    results=(*ROWS[:2], replace(ROWS[2], outcome="WRONG", reason="wrote outside"), ROWS[3]),
)


def test_the_table_for_a_terminal() -> None:
    text = render_tables(THREADS)
    lines = text.splitlines()
    assert lines[0].split() == [
        "operation", "pass", "refuse", "WRONG", "fail", "sync", "async",
        "full", "sub", "single", "over", "none",
    ]  # fmt: skip
    assert lines[1].split() == ["all_reduce", "1", "2", "~", "~"]
    assert lines[2].split() == ["Work", "1"]
    total = render_total(THREADS)
    assert "4 cases on threads (gloo, torch 2.13.0) in 1.5 s: 2 pass, 2 refuse" in total


@pytest.mark.parametrize(
    ("outcomes", "expected"),
    [
        (["pass"], "p"),
        (["refuse"], "r"),
        (["pass", "refuse"], "~"),
        (["pass", "WRONG"], "W"),
        (["WRONG", "fail"], "F"),
        ([], ""),
    ],
)
def test_signs(outcomes: list[Outcome], expected: str) -> None:
    assert sign(result("x@3", outcome) for outcome in outcomes) == expected


def test_json_there_and_back(tmp_path: Path) -> None:
    result_files.save(THREADS, tmp_path / "a.json")
    assert result_files.load(tmp_path / "a.json") == THREADS


@pytest.mark.parametrize(
    ("content", "says"),
    [("no json", "no JSON file"), ("{}", "was not written by"), ("[1]", "was not written by")],
)
def test_a_file_that_is_none(content: str, says: str, tmp_path: Path) -> None:
    path = tmp_path / "a.json"
    path.write_text(content)
    with pytest.raises(UsageError, match=says):
        result_files.load(path)
    with pytest.raises(UsageError, match="cannot read"):
        result_files.load(tmp_path / "missing.json")


def test_a_result_that_is_none(tmp_path: Path) -> None:
    path = tmp_path / "a.json"
    result_files.save(THREADS, path)
    content = json.loads(path.read_text())
    content["results"][0]["outcome"] = "perhaps"
    path.write_text(json.dumps(content))
    with pytest.raises(UsageError, match="an entry that is not a result"):
        result_files.load(path)


def test_a_known_corruption_explains_a_difference() -> None:
    (found,) = find_differences(REAL, THREADS)
    assert (found.id, found.one, found.other) == (ROWS[2].id, "WRONG", "refuse")
    assert "corrupts" in found.reason
    assert is_known_trouble(REAL.results[2], "gloo")


def test_other_differences_have_no_reason() -> None:
    broken = replace(THREADS, results=(replace(ROWS[0], outcome="fail"), *ROWS[1:]))
    (found,) = find_differences(broken, THREADS)
    assert (found.one, found.other, found.reason) == ("fail", "pass", "")
    assert not is_known_trouble(broken.results[0], "gloo")


def test_a_missing_case_is_a_difference() -> None:
    fewer = replace(THREADS, results=ROWS[1:])
    (found,) = find_differences(THREADS, fewer)
    assert (found.id, found.other) == (ROWS[0].id, "missing")


def test_the_page_shows_both() -> None:
    page = render_document(THREADS, REAL)
    assert page == render_document(REAL, THREADS)
    assert "| all_reduce | 3 | 1 | 2/1 | 0/1 |  |" in page
    assert "| WRONG | `all_reduce/float32/sum/sync/strided` | 3 | wrote outside |" in page
    assert "1 cases differ, 0 of them without a reason." in page


def test_a_page_of_a_part_says_so_and_shows_what_both_ran() -> None:
    part = replace(REAL, results=REAL.results[1:])
    page = render_document(THREADS, part)
    first = page.split("\n\n")[1]
    assert first == (
        "**A part of the suite**: only the 3 cases that both ran, of 4 on threads and 3 on "
        "processes."
    )
    assert "| all_reduce | 2 |  | 2/1 | 0/1 |  |" in page
    assert "missing" not in page
    assert "A part" not in render_document(THREADS, REAL)


def test_writing_a_file_is_all_or_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "a.json"
    result_files.check_writable(path)
    assert list(tmp_path.iterdir()) == [], "checking leaves no empty file"
    path.write_text("before")

    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(Path, "replace", full)
    with pytest.raises(UsageError, match="No space left"):
        result_files.save(THREADS, path)
    assert [each.name for each in tmp_path.iterdir()] == ["a.json"]
    assert path.read_text() == "before"


def test_the_page_in_the_docs_has_all_cases_and_explains_all_differences() -> None:
    page = (Path(__file__).parents[2] / "docs" / "conformance.md").read_text(encoding="utf-8")
    count = f"{len(all_cases([2, 3, 4])):,}"
    assert page.count(f" s | {count} | ") == 2, "make the page again: make conformance"
    assert " cases differ, 0 of them without a reason." in page
