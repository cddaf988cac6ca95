"""A recording that somebody changed gives a sentence, or a page, and nothing else."""

from __future__ import annotations

import copy
import json
import random
from pathlib import Path
from typing import Any

import pytest

from phalanx.errors import UsageError
from phalanx.explain.recorded_run import dumps_of_recording
from phalanx.journal.events import as_dict
from phalanx.report.timeline.calls_csv import write_calls
from phalanx.report.timeline.chrome_trace import write_trace
from phalanx.report.timeline.page import page_text, write_page
from phalanx.report.timeline.run_summary import summarize
from phalanx.report.timeline.summary_screen import screen
from tests.report.timeline.made_up import met, posted, table_of_lines, words

ODD: list[Any] = [None, -1, 7, 1 << 40, 1 << 70, 1.5, 1e300, "x", "</script>", [], [[]], {}]
ODD += [float("inf"), float("nan"), {"all": 3}, {"from": "x"}, True, "\ud800"]


def sound() -> list[Any]:
    send = posted(0, [100, 200], name="send", number=None, peer=1, tag=0)
    receive = posted(1, [110, 210], name="recv", number=None, peer=[0, None], tag=0)
    send["serial"] = receive["serial"] = {"from": 3}
    pairs = {**met(1, [300]), "number": None, "calls": {"all": [[0, 3], [1, 3]]}}
    wait = {"kind": "wait-ended", "rank": 0, "n": 1, "time": [170], "group": 0}
    block = {"ranks": [1], "odd": True, "op": {"name": "all_reduce", "number": 2}}
    verdict = {"kind": "mismatch", "severity": "error", "ranks": [1], "blocks": [block]}
    end = {"status": "failed", "text": "a report", "verdicts": [verdict]}
    return [
        *words(),
        *(posted(rank, [10, 20, 30], root=[None, 0, 1], reduce_op=0) for rank in range(2)),
        met(1, [20, 25]),
        {**met(1, [21, 26]), "kind": "completed"},
        send,
        receive,
        pairs,
        {**wait, "call": {"all": [0, 0]}},
        {"kind": "rank-ended", "rank": 0, "n": 1, "time": [400], "how": "finished"},
        {"kind": "finding-made", "rank": 1, "n": 1, "time": [390], "about": "mismatch"},
        {"end": end},
    ]


def places_in(value: Any) -> list[tuple[Any, Any]]:
    """Every container in a value with each of its keys."""
    found: list[tuple[Any, Any]] = []
    if isinstance(value, dict):
        found += [(value, key) for key in value]
    elif isinstance(value, list):
        found += [(value, key) for key in range(len(value))]
    return found + [each for holder, key in found for each in places_in(holder[key])]


def test_a_sound_one_is_shown(tmp_path: Path) -> None:
    assert "<canvas" in page_text(table_of_lines(tmp_path, 2, sound()))


@pytest.mark.parametrize("seed", range(150))
def test_one_that_was_changed(tmp_path: Path, seed: int) -> None:
    chance = random.Random(seed)
    lines = copy.deepcopy(sound())
    for _ in range(chance.choice((1, 1, 2, 5))):
        holder, key = chance.choice(places_in(lines))
        if chance.random() < 0.15:
            del holder[key]
        else:
            holder[key] = copy.deepcopy(chance.choice(ODD))
    try:
        table = table_of_lines(tmp_path, 2, lines)
    except UsageError as error:
        assert len(str(error)) < 400, json.dumps(lines)
        return
    for show in READERS:
        show(table, tmp_path / "out")


READERS = (
    write_page,
    write_trace,
    write_calls,
    lambda table, path: screen(summarize(table)),
    lambda table, path: [as_dict(event) for event in table.recording.journal()],
    lambda table, path: dumps_of_recording(table.recording, "name"),
)


@pytest.mark.parametrize(
    ("line", "change"),
    [
        (5, {"site": 9999}),
        (5, {"site": -1}),
        (5, {"site": [0, 1, 2]}),
        (5, {"tensors": 2}),
        (5, {"group": 1}),
        (5, {"group": None}),
        (5, {"root": 64}),
        (5, {"peer": 2}),
        (5, {"serial": "x"}),
        (5, {"name": None}),
        (5, {"n": 3.0}),
        (5, {"time": [1 << 70, 0, 0]}),
        (5, {"number": [0, 1]}),
        (11, {"calls": {"all": [[0, 3], [7, 3]]}}),
        (12, {"call": {"all": [2, 0]}}),
        (12, {"call": {"all": [0]}}),
        (2, {"are": [["float32", [1 << 40, 1 << 40], "cpu"]]}),
    ],
)
def test_a_number_that_leads_nowhere(tmp_path: Path, line: int, change: Any) -> None:
    lines = sound()
    lines[line] |= change
    with pytest.raises(UsageError, match=r"made-up\.phalanx: .*; was the file changed\?"):
        table_of_lines(tmp_path, 2, lines)
