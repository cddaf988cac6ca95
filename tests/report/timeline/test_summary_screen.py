"""The screen of `phalanx report`: what is on it, and that it fits."""

from __future__ import annotations

import io
import re
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from phalanx.report.timeline.run_summary import summarize
from phalanx.report.timeline.screen_layout import plain_lines, without_few_hidden
from phalanx.report.timeline.summary_screen import HEIGHT, print_lines, screen
from tests.report.timeline.made_up import met, posted, table_of_lines, words
from tests.report.timeline.recorded_runs import (
    deadlock,
    mismatch,
    pipeline,
    stragglers,
    table_of,
    unreceived,
)

PROGRAMS = [deadlock, mismatch, pipeline, stragglers, unreceived]


def text_of(program: Callable[[], None], *, ranks: int = 4, **options) -> str:
    return plain_lines(screen(summarize(table_of(program, ranks)), **options))


@pytest.mark.parametrize("width", [80, 100, 120])
@pytest.mark.parametrize("program", PROGRAMS)
def test_it_is_one_screen(program: Callable[[], None], width: int) -> None:
    lines = text_of(program, width=width, name="run.jsonl.gz").splitlines()
    assert len(lines) <= HEIGHT + 2
    assert max(map(len, lines)) <= max(width, 88)  # the report itself has 88 columns


def test_the_straggler_is_named() -> None:
    lines = text_of(stragglers).splitlines()
    assert lines[0].startswith("stragglers: 4 ranks on threads, ")
    (row,) = [line for line in lines if line.startswith("all_reduce")]
    assert "  2 (4x, " in row
    assert any(line.startswith("others waited for rank 2 for ") for line in lines)
    assert "  ended     finished, nothing found" in lines


def test_a_failed_run_shows_the_report_again() -> None:
    text = text_of(mismatch)
    report = summarize(table_of(mismatch)).text.splitlines()
    assert report[0][:80] in text
    assert all(line in text for line in report[1:12])
    assert "failed: CollectiveMismatchError" in text
    assert "finding  " not in text  # the report is about it


def test_a_long_report_keeps_its_beginning_and_end() -> None:
    report = summarize(table_of(deadlock, 8)).text.splitlines()
    text = text_of(deadlock, ranks=8)
    assert report[0] in text
    assert report[-1] in text
    hidden = len(report) - 20
    assert f"... {hidden} lines; --all shows them" in text
    assert all(line in text_of(deadlock, ranks=8, whole=True) for line in report)


def test_messages_are_a_matrix() -> None:
    lines = text_of(pipeline).splitlines()
    start = lines.index("messages  to 0  to 1  to 2  to 3  bytes")
    assert lines[start + 1 : start + 5] == [
        "from 0       .     3     .     .  768 B",
        "from 1       .     .     3     .  768 B",
        "from 2       .     .     .     3  768 B",
        "from 3       .     .     .     .      0",
    ]


def test_messages_of_many_ranks_are_folded() -> None:
    text = text_of(pipeline, ranks=24)
    assert "from 0-2 " in text
    assert "to 21-23" in text
    assert max(map(len, text.splitlines())) <= 100


def test_lost_messages_and_findings_are_named() -> None:
    text = text_of(unreceived)
    assert "1 message sent and never received: 1 from 0 to 1" in text
    assert "unmatched-message  warning   0 " in text
    assert "1 call never met: send " in text
    assert "finished, 1 finding" in text


def test_as_many_rows_as_are_asked_for() -> None:
    text = text_of(pipeline, most=1)
    assert "... 2 more operations; --all shows them" in text
    assert "... 2 more kinds of ranks; --all shows them" in text
    assert "... " not in text_of(pipeline, whole=True, width=140)
    assert "... 1 more kind of ranks; " in text_of(pipeline, most=2)


def test_the_calls_that_deadlock_are_seen() -> None:
    for ranks in (2, 3, 4):
        lines = text_of(deadlock, ranks=ranks, width=80).splitlines()
        (title,) = [n for n, line in enumerate(lines) if line.startswith("operation ")]
        assert lines[title + 1].startswith("recv ")


def late_lines(tmp_path: Path, **options: Any) -> list[str]:
    """The screen of a run in which six ranks came last, the higher ones by more."""
    lines = [posted(rank, [10**6 * 10**n for n in range(6)]) for rank in range(7)]
    for rank in range(6):
        lines[rank]["time"] = list(lines[rank]["time"])
        lines[rank]["time"][rank] += 4230 * 10**rank
        if rank < 5:
            lines[rank]["time"][rank + 1] -= 4230 * 10**rank
    lines += [
        met(rank, [10**6 * 10**rank + 4230 * 10**rank], number=[rank]) for rank in range(6)
    ]
    table = table_of_lines(tmp_path, 7, [*words(file="/home/me/" + "x" * 40 + ".py"), *lines])
    return plain_lines(screen(summarize(table), **options)).splitlines()


@pytest.mark.parametrize("width", [60, 80, 90, 100, 110, 140])
def test_who_came_last_is_cut_between_entries(tmp_path: Path, width: int) -> None:
    (row,) = [line for line in late_lines(tmp_path, width=width) if line.startswith("all_red")]
    assert re.search(r" 5( \(1x, 423 ms\))?(, \d \(1x, [\d.]+ [mu]s\))*, \+\d$", row), row


def test_the_whole_is_not_cut(tmp_path: Path) -> None:
    (row,) = [line for line in late_lines(tmp_path, whole=True) if line.startswith("all_red")]
    assert "/home/me/" + "x" * 40 in row
    assert row.endswith("0 (1x, 4.23 us)")
    assert row.count("(1x, ") == 6


def test_no_line_stands_for_one_or_two_rows() -> None:
    for wanted in range(1, 9):
        for given in range(1, wanted + 1):
            (rows,) = without_few_hidden([wanted], [given])
            assert wanted - rows not in (1, 2)


def test_what_a_terminal_would_obey_is_not_printed(tmp_path: Path) -> None:
    bad = "\x1b[2J\x07\r\u202e\n"
    lines = [*words(op=f"all{bad}", file=f"{bad}.py", group=f"world{bad}")]
    lines += [posted(0, [5], name=f"all{bad}"), posted(1, [5])]
    verdict = {"kind": bad, "severity": bad, "ranks": [0], "headline": bad}
    end = {"end": {"status": "failed", "error": bad, "text": bad, "verdicts": [verdict] * 2}}
    table = table_of_lines(tmp_path, 2, [*lines, end], program=bad, engine=bad, command=bad)
    text = plain_lines(screen(summarize(table), name=bad, whole=True))
    assert all(c.isprintable() for line in text.splitlines() for c in line)
    assert text.isascii()


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_colours_on_a_terminal_and_the_same_text(monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("rich")
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.delenv("NO_COLOR", raising=False)
    lines = [[("[bold]not markup", "error"), (" rest", "")], []]
    file = Terminal()
    print_lines(lines, file)
    assert "\x1b[1;31m[bold]not markup\x1b[0m rest\n" in file.getvalue()


def test_without_rich_the_text_is_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "rich.console", None)
    file = Terminal()
    print_lines([[("a", "error"), ("b", "")]], file)
    assert file.getvalue() == "ab\n"


def test_a_name_is_kept_where_its_description_does_not_fit(tmp_path: Path) -> None:
    lines = [*words(group="group 1"), posted(0, [10]), posted(1, [20], group=1)]
    lines[4]["description"] = "the dimension of the mesh for tensors"
    lines.insert(5, {"group": 1, "name": "world", "ranks": [0, 1], "backend": "gloo"})
    lines.append({"kind": "rank-ended", "rank": 0, "n": 1, "time": [30], "how": "failed"})
    lines[-1]["error"] = "AVeryLongNameOfAnErrorThatNoColumnHolds"
    summary = summarize(table_of_lines(tmp_path, 2, lines))
    text = plain_lines(screen(summary, width=80))
    assert "group 1  " in text
    assert "group 1:" not in text
    assert "failed  " in text
    assert "failed:" not in text
    assert max(map(len, text.splitlines())) <= 80
