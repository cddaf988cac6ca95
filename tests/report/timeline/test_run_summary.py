"""The numbers of real runs and of made-up ones."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from phalanx.report.timeline.operation_counts import Late
from phalanx.report.timeline.run_summary import as_data, summarize
from phalanx.report.timeline.screen_layout import plain_lines
from phalanx.report.timeline.summary_screen import screen
from tests.report.timeline.made_up import met, posted, table_of_lines, words
from tests.report.timeline.recorded_runs import (
    deadlock,
    mismatch,
    pipeline,
    stragglers,
    table_of,
    unreceived,
)


def test_the_rank_that_others_waited_for_is_named() -> None:
    (use,) = summarize(table_of(stragglers)).operations
    assert (use.operation, use.group, use.calls) == ("all_reduce", "world", 16)
    assert use.ranks == [0, 1, 2, 3]
    assert use.bytes == 16 * 4096
    assert use.site.endswith("recorded_runs.py:48")
    assert use.open == 0
    (late,) = use.last
    assert (late.rank, late.times) == (2, 4)
    assert 0.1 < late.seconds < use.waited
    assert use.longest < use.waited


def test_who_came_last_and_by_how_much(tmp_path: Path) -> None:
    second = 10**9
    lines = [
        posted(0, [second, 10 * second]),
        posted(1, [2 * second, 12 * second]),
        posted(2, [5 * second, 11 * second]),
        met(2, [5 * second], number=[0]),
        met(1, [12 * second], number=[1]),
    ]
    found = summarize(table_of_lines(tmp_path, 3, [*words(), *lines]))
    (use,) = found.operations
    assert use.last == [Late(2, 1, 3.0), Late(1, 1, 1.0)]
    assert found.seconds == 12.0


def test_messages_are_counted_by_pair() -> None:
    found = summarize(table_of(pipeline))
    assert [(m.source, m.target, m.messages, m.bytes) for m in found.messages] == [
        (0, 1, 3, 768),
        (1, 2, 3, 768),
        (2, 3, 3, 768),
    ]
    assert {use.operation for use in found.operations} == {"send", "recv", "all_reduce"}
    assert [fold.ranks for fold in found.folds] == [[0], [1, 2], [3]]
    assert [fold.calls for fold in found.folds] == [4, 7, 4]
    assert {fold.ended for fold in found.folds} == {"finished"}


def test_a_message_that_nobody_received_is_lost() -> None:
    found = summarize(table_of(unreceived))
    (pair,) = found.messages
    assert (pair.source, pair.target, pair.lost, pair.missed) == (0, 1, 1, 0)
    (finding,) = found.findings
    assert (finding.severity, finding.kind, finding.ranks) == (
        "warning",
        "unmatched-message",
        [0],
    )
    assert "of rank 0 was never received" in finding.headline
    assert found.status == "finished"


def test_a_deadlock_has_its_report_and_open_calls() -> None:
    found = summarize(table_of(deadlock))
    assert (found.status, found.error) == ("failed", "DeadlockError")
    assert "cycle" in found.text
    assert {use.operation: use.open for use in found.operations} == {
        "all_reduce": 0,
        "recv": 4,
    }
    assert sum(pair.missed for pair in found.messages) == 4
    (fold,) = found.folds
    assert fold.open
    assert fold.ended == "failed: DeadlockError"
    assert [f.kind for f in found.findings] == ["deadlock"]
    assert found.missing == []


def test_the_rank_at_fault_is_in_no_fold_with_others() -> None:
    assert [fold.ranks for fold in summarize(table_of(mismatch)).folds] == [[0, 1, 3], [2]]


def test_what_a_recording_does_not_hold_is_said(tmp_path: Path) -> None:
    lines = [*words(), posted(0, [5], serial={"from": 7}), {"dropped": 3, "rank": 0}]
    found = summarize(table_of_lines(tmp_path, 1, lines))
    assert found.status == "unknown"
    assert found.missing == [
        "the recording has no end: the run was killed, or still goes on",
        "3 events: ranks outran the recorder",
        "the 7 oldest calls: only the newest were kept",
    ]


def test_the_numbers_of_a_row_are_those_of_what_is_kept(tmp_path: Path) -> None:
    """Of ten seconds the last is kept, in which the rank waited half the time."""
    second = 10**9
    kept = posted(0, [9 * second, 9 * second + 1], serial={"from": 700}, asynchronous=True)
    began = {"kind": "wait-began", "rank": 0, "n": 1, "time": [9 * second], "group": 0}
    went = {**began, "kind": "wait-ended", "time": [9 * second + second // 2]}
    ended = {"kind": "rank-ended", "rank": 0, "n": 1, "time": [10 * second], "how": "finished"}
    lines = [*words(), kept, {**began, "call": 700}, {**went, "call": 700}, ended]
    summary = summarize(table_of_lines(tmp_path, 1, [*lines, {"end": {"status": "finished"}}]))
    (fold,) = summary.folds
    assert (summary.seconds, summary.kept) == (10.0, 1.0)
    assert (fold.calls, fold.forgotten, fold.bytes) == (2, 700, 32)
    text = plain_lines(screen(summary))
    assert ", 10.0 s, of which the last 1.00 s are kept\n" in text
    head = "ranks  calls kept  bytes  waited  of that time  ended "
    row = "0               2   32 B  500 ms          50 %  finished"
    assert head in text
    assert row in text


def test_what_a_kept_run_does_not_hold(tmp_path: Path) -> None:
    """Its times begin with its first event. Serials go on from run to run of a world."""

    def missing(dropped: int) -> tuple[list[str], int]:
        lines = [*words(), posted(0, [0, 5], serial={"from": 7}), {"end": {}}]
        lines += [{"dropped": dropped, "rank": 0}] if dropped else []
        found = summarize(table_of_lines(tmp_path, 1, lines))
        fold = found.folds[0]
        assert fold.calls == 2
        return found.missing, fold.calls + fold.forgotten

    assert missing(0) == ([], 2)
    assert missing(3) == (["the 3 oldest events: only the newest were kept"], 2)
    assert missing(20) == (["the 7 oldest calls: only the newest were kept"], 9)


def test_a_group_that_is_defined_again_is_one_group(tmp_path: Path) -> None:
    """As in the recording of a world that runs twice."""
    again = {"group": 1, "name": "world", "ranks": list(range(64)), "backend": "gloo"}
    lines = [*words(), again, posted(0, [5])]
    lines += [posted(0, [9], group=1, serial={"from": 1}, number=[1])]
    found = summarize(table_of_lines(tmp_path, 1, lines))
    assert [(group.name, group.calls) for group in found.groups] == [("world", 2)]
    assert [use.calls for use in found.operations] == [2]


def test_operations_with_open_calls_come_first(tmp_path: Path) -> None:
    lines = [posted(0, [1, 90], name=["barrier", "recv"]), posted(1, [80], name="barrier")]
    lines += [met(1, [80])]
    found = summarize(table_of_lines(tmp_path, 2, [*words(), *lines]))
    assert [use.operation for use in found.operations] == ["recv", "barrier"]


def test_findings_of_the_course_are_told_once(tmp_path: Path) -> None:
    made = {"kind": "finding-made", "rank": 0, "n": 2, "time": [1, 1], "severity": "warning"}
    made |= {"about": ["leak", "message-race"], "ranks": [[0], [1, 0]]}
    verdict = {"kind": "leak", "severity": "warning", "ranks": [0], "headline": "leaked"}
    end = {"end": {"status": "finished", "verdicts": [verdict]}}
    found = summarize(table_of_lines(tmp_path, 2, [*words(), made, end]))
    assert [(f.kind, f.ranks, f.headline) for f in found.findings] == [
        ("leak", [0], "leaked"),
        ("message-race", [1, 0], ""),
    ]


@pytest.mark.parametrize("program", [deadlock, pipeline, unreceived])
def test_json_can_carry_it(program) -> None:
    found = summarize(table_of(program))
    assert json.loads(json.dumps(as_data(found)))["ranks"] == 4


@pytest.mark.parametrize("program", [deadlock, pipeline, stragglers])
def test_the_time_waited_is_that_of_the_calls(program) -> None:
    table = table_of(program)
    waited = sum(calls.waited(place, table.duration) for calls, place in table)
    found = summarize(table)
    assert sum(use.waited for use in found.operations) == pytest.approx(waited / 1e9)
    assert sum(group.waited for group in found.groups) == pytest.approx(waited / 1e9)


def test_a_run_without_calls(tmp_path: Path) -> None:
    found = summarize(table_of_lines(tmp_path, 2, []))
    assert (found.operations, found.messages, found.seconds) == ([], [], 0)
