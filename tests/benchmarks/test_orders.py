"""The order benchmark: its programs are well described, and a few of them are measured. All of
them at once: `python -m benchmarks.orders`."""

from __future__ import annotations

import argparse
import json
import re
from pathlib import Path

import pytest

from benchmarks.orders.exploring import SEARCHES, measure
from benchmarks.orders.orders_page import document, read_gloo, read_replays
from benchmarks.orders.programs import Program, load
from benchmarks.orders.replays import run_replays
from phalanx.kinds import KINDS

PROGRAMS = load()
SAMPLE = ("b01", "b05", "b35", "r01", "r35")


@pytest.mark.parametrize("program", PROGRAMS, ids=lambda each: each.id)
def test_program_is_well_described(program: Program) -> None:
    lines = program.path.read_text().splitlines()
    assert program.decides in ("order", "time", "fault")
    assert set(program.kinds) <= {*KINDS, "rank-failed", "different-results"}
    assert program.is_wrong == (program.id[0] == "b") == bool(program.lines)
    assert program.what
    assert max(program.lines, default=0) <= len(lines)
    assert program.decides != "fault" or not program.is_wrong or program.faults


def test_each_wrong_program_has_a_right_twin() -> None:
    names = {each.id: each.name for each in PROGRAMS}
    wrong = {id[1:]: name for id, name in names.items() if id[0] == "b"}
    assert wrong == {id[1:]: name for id, name in names.items() if id[0] == "r"}
    assert len(wrong) == 40


@pytest.fixture(scope="module")
def known() -> dict[str, dict[str, object]]:
    return {each.id: measure(each, 1, 40) for each in load(",".join(SAMPLE))}


def test_bugs_are_found_made_small_and_repeated(known) -> None:
    for id in ("b01", "b05", "b35"):
        for name in SEARCHES:
            (found,) = known[id]["searches"][name]
            assert found["found"] is not None, (id, name, found["others"])
            assert found["size"] <= known[id]["minimum"] + 3
            assert found["exact"]


def test_right_programs_are_proved_and_not_blamed(known) -> None:
    for id in ("r01", "r35"):
        assert known[id]["exhaustive"]["complete"]
        assert not known[id]["exhaustive"]["failed"]
        assert not any(known[id]["searches"][name][0]["others"] for name in SEARCHES)


def test_tokens_are_replayed_and_go_on_where_they_were_stopped(known, tmp_path: Path) -> None:
    (tmp_path / "found.json").write_text(json.dumps(known))
    done = tmp_path / "replays.json"
    options = argparse.Namespace(
        json=str(tmp_path / "found.json"),
        replays_json=str(done),
        replays=12,
        shard="1/2",
        seconds=0.0,
    )
    programs = load(",".join(SAMPLE))
    assert run_replays(options, programs) == 0
    assert json.loads(done.read_text())["done"] == 1
    options.seconds = 100.0
    assert run_replays(options, programs) == 0
    assert read_replays(str(done)) == pytest.approx(
        {"done": 6, "exact": 6, "seconds": 0, "tokens": len(tokens(known))}, abs=100
    )
    assert json.loads(done.read_text())["exact"] == 6


def tokens(known) -> set[object]:
    found = {each["token"] for each in known.values() for each in each["samples"]}
    return found | {
        each["token"]
        for figures in known.values()
        for name in SEARCHES
        for each in figures["searches"][name]
        if each["token"]
    }


def test_the_page_has_a_row_for_each_program(known, tmp_path: Path) -> None:
    tally = {"runs": 10, "failed": 3, "hung": 1, "outputs": {"": 6, "odd": 1}, "errors": {}}
    gloo = tmp_path / "gloo.json"
    gloo.write_text(json.dumps({"programs": {"b01": {**tally, "seconds": 1.0, "cpu": 0.1}}}))
    page = document(known, read_gloo(f"{gloo},{gloo}"), read_replays(""))
    rows = re.findall(r"^\| ([br]\d\d) ", page, re.MULTILINE)
    assert rows == list(SAMPLE)
    assert "| 8 of 20 |" in page
