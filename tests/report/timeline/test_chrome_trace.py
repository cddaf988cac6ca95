"""The trace, held against the documentation of Chrome's Trace Event Format."""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from phalanx.errors import UsageError
from phalanx.report.timeline.chrome_trace import write_trace
from tests.report.timeline.made_up import met, posted, table_of_lines, words
from tests.report.timeline.recorded_runs import (
    deadlock,
    mismatch,
    pipeline,
    stragglers,
    table_of,
    unreceived,
)

FIELDS = {
    "M": {"name", "ph", "pid", "tid", "args"},
    "X": {"name", "cat", "ph", "pid", "tid", "ts", "dur"},
    "b": {"name", "cat", "ph", "pid", "tid", "ts", "id"},
    "e": {"name", "cat", "ph", "pid", "tid", "ts", "id"},
    "s": {"name", "cat", "ph", "pid", "tid", "ts", "id"},
    "f": {"name", "cat", "ph", "pid", "tid", "ts", "id", "bp"},
    "i": {"name", "cat", "ph", "pid", "tid", "ts", "s"},
}
PROGRAMS = [deadlock, mismatch, pipeline, stragglers, unreceived]


def written(program: Callable[[], None], folder: Path) -> list[dict[str, Any]]:
    path = folder / "trace.json"
    write_trace(table_of(program), path)
    data = json.loads(path.read_text())
    assert data["displayTimeUnit"] in ("ms", "ns")
    events: list[dict[str, Any]] = data["traceEvents"]
    return events


@pytest.mark.parametrize("program", PROGRAMS)
def test_every_event_has_the_fields_of_its_kind(program, tmp_path: Path) -> None:
    for event in written(program, tmp_path):
        assert set(event) - {"args"} == FIELDS[event["ph"]] - {"args"}
        assert event["pid"] in range(4)
        assert event.get("ts", 0) >= 0
        assert event.get("dur", 0) >= 0


@pytest.mark.parametrize("program", PROGRAMS)
def test_bars_of_a_thread_are_in_order_and_lie_in_each_other(program, tmp_path: Path) -> None:
    tracks = defaultdict(list)
    for event in written(program, tmp_path):
        if event["ph"] == "X":
            tracks[event["pid"], event["tid"]].append(event)
    assert len(tracks) >= 4
    for bars in tracks.values():
        assert [bar["ts"] for bar in bars] == sorted(bar["ts"] for bar in bars)
        ends: list[float] = []
        for bar in bars:
            while ends and ends[-1] <= bar["ts"] + 1e-6:
                ends.pop()
            end = bar["ts"] + bar["dur"]
            assert not ends or end <= ends[-1] + 1e-6
            ends.append(end)


@pytest.mark.parametrize("program", PROGRAMS)
def test_flows_come_in_pairs_and_begin_and_end_at_bars(program, tmp_path: Path) -> None:
    events = written(program, tmp_path)
    bars = [event for event in events if event["ph"] == "X"]
    ends = defaultdict(list)
    for event in events:
        if event["ph"] in "sf":
            ends[event["id"]].append(event)
            assert any(
                (bar["pid"], bar["tid"]) == (event["pid"], event["tid"])
                and bar["ts"] - 1e-6 <= event["ts"] <= bar["ts"] + bar["dur"] + 1e-6
                for bar in bars
            )
    for pair in ends.values():
        assert sorted(event["ph"] for event in pair) == ["f", "s"]
        first = next(event for event in pair if event["ph"] == "s")
        assert len({event["pid"] for event in pair}) == 2
        assert first["name"] == pair[0]["name"] == pair[1]["name"]


def test_messages_lead_from_the_send_to_the_receive(tmp_path: Path) -> None:
    flows = defaultdict(dict)
    for event in written(pipeline, tmp_path):
        if event["ph"] in "sf" and event["name"] == "message":
            flows[event["id"]][event["ph"]] = event["pid"]
    assert sorted((pair["s"], pair["f"]) for pair in flows.values()) == [
        *[(0, 1)] * 3,
        *[(1, 2)] * 3,
        *[(2, 3)] * 3,
    ]


def test_the_rank_that_came_last_leads_to_the_others(tmp_path: Path) -> None:
    begun = [e["pid"] for e in written(stragglers, tmp_path) if e["ph"] == "s"]
    assert begun == [2] * 12


def test_processes_threads_and_waiting_have_names(tmp_path: Path) -> None:
    events = written(stragglers, tmp_path)
    names = {e["pid"]: e["args"]["name"] for e in events if e["name"] == "process_name"}
    assert names == {rank: f"rank {rank}" for rank in range(4)}
    waiting = {e["pid"] for e in events if e["name"] == "waiting"}
    assert waiting == {0, 1, 3}
    call = next(e for e in events if e["name"] == "all_reduce")
    assert call["args"]["tensors"] == "float32[1024]"
    assert call["args"]["came last"] == 2
    assert call["args"]["line"].endswith("recorded_runs.py:48")


def test_an_asynchronous_call_has_a_span_of_its_own(tmp_path: Path) -> None:
    spans = defaultdict(list)
    for event in written(pipeline, tmp_path):
        if event["ph"] in "be":
            spans[event["id"]].append(event["ts"])
    assert len(spans) == 4
    assert all(len(times) == 2 and times[0] <= times[1] for times in spans.values())


def test_an_open_call_lasts_until_its_rank_ends(tmp_path: Path) -> None:
    events = written(deadlock, tmp_path)
    open_calls = [e for e in events if "open" in e.get("args", {})]
    assert [e["name"] for e in open_calls] == ["recv"] * 4
    assert {e["args"]["open"] for e in open_calls} == {"not all counterparts came"}
    assert {e["name"] for e in events if e["ph"] == "i"} == {"deadlock", "failed"}


def test_a_folder_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="No such file or directory; name a file in a folder"):
        write_trace(table_of(pipeline), tmp_path / "none" / "x.json")


def test_a_message_comes_after_it_was_sent_also_to_a_receive_that_was_there_first(
    tmp_path: Path,
) -> None:
    irecv = posted(0, [1_000], name="recv", number=None, peer=1, tag=0, asynchronous=True)
    isend = posted(1, [500_000], name="send", number=None, peer=0, tag=0, asynchronous=True)
    pair = {**met(1, [500_000]), "number": None, "calls": {"all": [[0, 0], [1, 0]]}}
    wait = {"kind": "wait-began", "rank": 0, "n": 1, "time": [400_000], "group": 0, "call": 0}
    went = {**wait, "kind": "wait-ended", "time": [600_000]}
    table = table_of_lines(tmp_path, 2, [*words(), irecv, isend, pair, wait, went])
    write_trace(table, tmp_path / "trace.json")
    events = json.loads((tmp_path / "trace.json").read_text())["traceEvents"]
    (begins,) = (event for event in events if event["ph"] == "s")
    (ends,) = (event for event in events if event["ph"] == "f")
    assert (begins["pid"], begins["ts"]) == (1, 500.0)
    assert (ends["pid"], ends["ts"], ends["bp"]) == (0, 500.0, "e")
