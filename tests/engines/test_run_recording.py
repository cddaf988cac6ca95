"""Recordings of runs: asked for, or kept when a run fails."""

from __future__ import annotations

import os
import sys
import threading
from pathlib import Path

import pytest
import torch
import torch.distributed as dist

import phalanx
from phalanx.journal.events import Posted
from phalanx.journal.recording.decoder import load
from phalanx.journal.recording.kept_runs import MOST_KEPT, find_run, kept_runs, runs_folder
from phalanx.journal.recording.recorder import Recorder
from phalanx.journal.writer import JournalWriter
from phalanx.report.timeline.calls_table import calls_table
from phalanx.report.timeline.page_verdicts import page_verdicts
from phalanx.report.timeline.run_summary import summarize
from phalanx.report.timeline.screen_layout import plain_lines
from phalanx.report.timeline.summary_screen import screen
from phalanx.system import monotonic
from tests.forked_programs import run_forked
from tests.testing.pytest_runs import run_pytest

IN_NAMES = """
import pytest, torch.distributed as dist

@pytest.mark.ranks(2)
@pytest.mark.parametrize("x", ["a,b", "a-b", "a b"])
def test_it(x):
    assert dist.get_world_size() == 3
"""
HANGS = """
import torch, torch.distributed as dist
dist.init_process_group("gloo")
if dist.get_rank() == 1:
    dist.barrier()
"""
ENDS = """
import torch, torch.distributed as dist
dist.init_process_group("gloo")
for _ in range(3):
    dist.all_reduce(torch.ones(2))
dist.destroy_process_group()
"""


@pytest.fixture
def cache(tmp_path, monkeypatch) -> Path:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return runs_folder()


def command(*words: object) -> tuple[int, str]:
    """The exit status of `phalanx run -n 2 ...`, and what it wrote to standard error."""
    line = [sys.executable, "-m", "phalanx", "run", "-n", "2", *map(str, words)]
    done = run_forked(line, timeout=120)
    return done.returncode, done.stderr


def three_times() -> None:
    for _ in range(3):
        dist.all_reduce(torch.ones(2))


def disagree() -> None:
    if dist.get_rank() == 1:
        dist.barrier()
    else:
        dist.all_reduce(torch.ones(2))


@pytest.mark.parametrize("engine", ["threads", "processes"])
def test_a_function_is_recorded(engine: str, tmp_path, cache) -> None:
    file = tmp_path / "run.gz"
    phalanx.run(three_times, ranks=2, engine=engine, record=file)
    found = load(file)
    assert found.header["engine"] == engine
    assert found.header["program"] == "three_times"
    assert found.end == {"status": "finished", "verdicts": []}
    for rank in range(2):
        calls = [c.name for c in found.journal().filter(kind="posted", rank=rank)]
        assert calls == ["all_reduce"] * 3
    assert not cache.exists()
    assert "phalanx-recorder" not in {thread.name for thread in threading.enumerate()}


def test_a_failed_run_is_recorded_with_its_verdict(tmp_path, cache, monkeypatch) -> None:
    monkeypatch.delenv("PYTEST_CURRENT_TEST")
    file = tmp_path / "run.gz"
    with pytest.raises(phalanx.CollectiveMismatchError) as raised:
        phalanx.run(disagree, ranks=3, record=file)
    assert str(raised.value).endswith(f"  timeline  phalanx report {file}")
    (kept,) = kept_runs()
    assert kept.name.endswith("-run.jsonl.gz")
    end = load(file).end
    assert end is not None
    assert (end["status"], end["error"]) == ("failed", "CollectiveMismatchError")
    assert [verdict["kind"] for verdict in end["verdicts"]] == ["mismatch"]
    assert end["verdicts"][0]["ranks"] == [1]
    assert end["text"].startswith("rank 1 called barrier where ranks 0, 2 called all_reduce")


def test_the_runs_of_a_world_are_one_recording(tmp_path) -> None:
    file = tmp_path / "run.gz"
    with phalanx.World(ranks=2, record=str(file)) as world:
        world.run(three_times)
        world.run(three_times)
    calls = list(load(file).journal().filter(kind="posted", rank=0))
    assert [call.serial for call in calls] == list(range(6))
    slots = {(call.group.number, call.number) for call in calls}
    assert len(slots) == 6


@pytest.mark.parametrize("engine", ["threads", "processes"])
def test_a_world_that_goes_on_after_a_failure_is_one_true_recording(engine, tmp_path) -> None:
    file = tmp_path / "run.gz"
    with phalanx.World(ranks=3, engine=engine, record=file) as world:
        world.run(three_times)
        world.run(three_times)
        with pytest.raises(phalanx.CollectiveMismatchError):
            world.run(disagree)
        world.run(three_times)
        with pytest.raises(phalanx.CollectiveMismatchError):
            world.run(disagree)
        world.run(three_times)
    found = load(file)
    for rank in range(3):
        calls = list(found.journal().filter(kind="posted", rank=rank))
        assert [call.serial for call in calls] == list(range(14))
        assert len({(call.group.number, call.number) for call in calls}) == 14
    table = calls_table(found)
    for calls in table.ranks:
        runs = [len([end for end in calls.run_ends if end < start]) for start in calls.start]
        for place, run in enumerate(runs):
            assert calls.end(place) <= calls.run_ends[run]
    summary = summarize(table)
    assert (summary.runs, summary.failed_run) == (6, 5)
    assert all(fold.waited[1] < summary.seconds for fold in summary.folds)
    assert [use.operation for use in summary.operations].count("barrier") == 1
    assert "  ended     failed: CollectiveMismatchError (run 5 of 6)" in plain_lines(
        screen(summary)
    )
    last, first = page_verdicts(table)
    assert {place for block in last["blocks"] for _, place in block["calls"]} == {10}
    assert {place for block in first["blocks"] for _, place in block["calls"]} == {6}


def test_a_world_is_named_for_the_file_of_its_function(tmp_path) -> None:
    with phalanx.World(ranks=2, record=tmp_path / "run.gz") as world:
        world.run(three_times)
    assert load(tmp_path / "run.gz").header["program"] == "World in test_run_recording.py"
    with phalanx.World(ranks=2, record=tmp_path / "run.gz") as world:
        assert world.run(HasEverything()) == [7, 7]
    assert load(tmp_path / "run.gz").header["program"] == "World"


class HasEverything:
    def __getattr__(self, name: str) -> HasEverything:
        return self

    def __call__(self) -> int:
        return 7


def test_worlds_of_different_sizes_are_one_recording(tmp_path) -> None:
    recorder = None
    for ranks in (2, 3, 1, 3):
        writer = JournalWriter(ranks)
        if recorder is None:
            recorder = Recorder(tmp_path / "run", writer, {})
        else:
            recorder.follow(writer)
        world = writer.group("world", tuple(range(ranks)))
        for rank in range(ranks):
            ring = writer.rings[rank]
            ring.posted += 1
            ring.calls.append(Posted(monotonic(), rank, 0, None, world, "barrier", 0, rank, 0))
    assert recorder is not None
    recorder.close({"status": "finished"})
    found = load(tmp_path / "run")
    assert found.ranks == 3
    assert [len(calls) for calls in calls_table(found).ranks] == [4, 3, 2]
    serials = [event.serial for event in found.journal().filter(kind="posted", rank=2)]
    assert serials == [0, 1]


def test_a_run_inside_a_rank_is_recorded(tmp_path) -> None:
    file = tmp_path / "run.gz"

    def outer() -> None:
        if dist.get_rank() == 0:
            phalanx.run(three_times, ranks=2, record=file)
        dist.barrier()

    phalanx.run(outer, ranks=2)
    assert len(list(load(file).journal().filter(kind="posted", rank=1))) == 3


def test_a_run_that_fails_is_kept(cache, monkeypatch) -> None:
    monkeypatch.delenv("PYTEST_CURRENT_TEST")
    with pytest.raises(phalanx.CollectiveMismatchError) as raised:
        phalanx.run(disagree, ranks=2)
    assert str(raised.value).endswith("  timeline  phalanx report LAST")
    found = load(find_run("LAST"))
    assert found.header["program"] == "disagree"
    assert [c.name for c in found.journal().filter(kind="posted")] == ["all_reduce", "barrier"]


def test_nothing_is_kept_of_what_passes_or_must_not_be_or_is_a_test(cache, monkeypatch) -> None:
    with pytest.raises(phalanx.CollectiveMismatchError) as raised:
        phalanx.run(disagree, ranks=2)
    assert "timeline" not in str(raised.value)
    monkeypatch.delenv("PYTEST_CURRENT_TEST")
    phalanx.run(three_times, ranks=2)
    with pytest.raises(phalanx.CollectiveMismatchError) as raised:
        phalanx.run(disagree, ranks=2, record=False)
    assert "timeline" not in str(raised.value)
    assert kept_runs() == []


def test_only_the_last_runs_are_kept(cache, monkeypatch) -> None:
    monkeypatch.delenv("PYTEST_CURRENT_TEST")
    for _ in range(MOST_KEPT + 3):
        with pytest.raises(phalanx.CollectiveMismatchError):
            phalanx.run(disagree, ranks=2)
    assert len(kept_runs()) == MOST_KEPT


def test_a_cache_that_cannot_be_written_is_no_failure(tmp_path, monkeypatch) -> None:
    monkeypatch.delenv("PYTEST_CURRENT_TEST")
    (tmp_path / "file").touch()
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "file"))
    with pytest.raises(phalanx.CollectiveMismatchError) as raised:
        phalanx.run(disagree, ranks=2)
    assert "timeline" not in str(raised.value)


def test_no_run_is_kept_yet(cache) -> None:
    with pytest.raises(phalanx.UsageError, match="LAST: no run is kept"):
        find_run("LAST")
    with pytest.raises(phalanx.UsageError, match="nowhere: there is no such file"):
        find_run("nowhere")


@pytest.mark.parametrize("engine", ["threads", "processes", "torchrun"])
def test_the_command_records(engine: str, tmp_path) -> None:
    script, file = tmp_path / "ends.py", tmp_path / "run.gz"
    script.write_text(ENDS)
    status, shown = command("--engine", engine, "--record", file, script)
    assert f"phalanx: the run is recorded; phalanx report {file} shows it\n" in shown
    assert status == 0, shown
    found = load(file)
    assert found.header["command"].endswith("ends.py")
    assert "--record" not in found.header["command"]
    assert len(list(found.journal().filter(kind="posted"))) == 6
    assert found.end == {"status": "finished", "verdicts": []}


@pytest.mark.parametrize("engine", ["threads", "processes", "torchrun"])
def test_the_command_keeps_a_run_that_fails(engine: str, tmp_path, cache) -> None:
    script = tmp_path / "hangs.py"
    script.write_text(HANGS)
    status, shown = command("--engine", engine, script)
    assert status == 3, shown
    assert "\n  timeline  phalanx report LAST\n" in shown
    end = load(find_run("LAST")).end
    assert end is not None
    assert end["verdicts"][0]["kind"] == "deadlock"


def test_the_command_keeps_nothing_if_told_so(tmp_path, cache) -> None:
    script = tmp_path / "hangs.py"
    script.write_text(HANGS)
    status, shown = command("--no-record", script)
    assert status == 3
    assert "timeline" not in shown
    assert kept_runs() == []


@pytest.mark.parametrize(
    ("given", "says"),
    [
        ({"record": True}, "record=True: give the name of a file"),
        ({"record": ""}, "record='': give the name of a file"),
        ({"record": "run", "record_limit": 0}, "record_limit=0: give mebibytes from 1"),
        ({"record": os.path.join("no", "run")}, "No such file or directory; name a file"),
        (
            {"record": "run", "checks": "none", "engine": "processes"},
            "leave checks='none' out",
        ),
    ],
)
def test_wrong_options(given, says: str, tmp_path, monkeypatch) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(phalanx.UsageError, match=says):
        phalanx.run(three_times, ranks=2, **given)


def test_a_wrong_file_on_the_command_line(tmp_path) -> None:
    script = tmp_path / "ends.py"
    script.write_text(ENDS)
    nowhere = tmp_path / "no" / "run"
    status, shown = command("--record", nowhere, script)
    assert status == 2
    assert f"--record {nowhere}: No such file or directory" in shown


def test_a_recorded_run_that_fails_is_the_last_one(tmp_path, cache) -> None:
    (tmp_path / "hangs.py").write_text(HANGS)
    assert command(tmp_path / "hangs.py")[0] == 3
    file = tmp_path / "recorded"
    status, said = command("--record", file, tmp_path / "hangs.py")
    assert status == 3, said
    assert find_run("LAST") == file.resolve()
    file.unlink()
    assert find_run("LAST").parent == cache.resolve()


def test_a_file_that_another_run_is_recorded_into_is_not_the_last_that_failed(
    tmp_path, cache
) -> None:
    (tmp_path / "hangs.py").write_text(HANGS)
    (tmp_path / "ends.py").write_text(ENDS)
    file = tmp_path / "recorded"
    assert command(tmp_path / "hangs.py")[0] == 3
    kept = find_run("LAST")
    assert command("--record", file, tmp_path / "hangs.py")[0] == 3
    assert find_run("LAST") == file.resolve()
    assert command("--record", file, tmp_path / "ends.py")[0] == 0
    assert find_run("LAST") == kept


def test_only_a_recording_is_written_over(tmp_path, cache) -> None:
    script = tmp_path / "ends.py"
    script.write_text(ENDS)
    status, said = command("--record", script, script)
    assert status == 2, said
    assert "a file of this name that is no recording; name another one" in said
    assert script.read_text() == ENDS
    for _ in range(2):
        assert command("--record", tmp_path / "run", script)[0] == 0


def test_to_record_and_not_to_is_a_mistake(tmp_path) -> None:
    status, said = command("--record", "run", "--no-record", "x.py")
    assert status == 2
    assert "not allowed with argument --record" in said
    status, said = command("--record-limit", "0", "x.py")
    assert status == 2
    assert "--record-limit 0: give mebibytes from 1, e.g. --record-limit 256" in said


def test_every_test_has_its_own_file(tmp_path) -> None:
    (tmp_path / "test_names.py").write_text(IN_NAMES)
    run_pytest(tmp_path, "--ranks-record", "kept")
    programs = [load(path).header["program"] for path in (tmp_path / "kept").iterdir()]
    assert len(set(programs)) == len(programs) == 3


@pytest.mark.parametrize("engine", ["threads", "processes"])
def test_a_folder_for_recordings_may_be_anywhere(tmp_path, engine) -> None:
    """pytest takes a folder that is there for one to find its root folder from."""
    (tmp_path / "here").mkdir()
    (tmp_path / "here" / "test_names.py").write_text(IN_NAMES)
    options = ("--ranks-engine", engine, "--ranks-record", str(tmp_path / "there"))
    ran = run_pytest(tmp_path / "here", "test_names.py", *options)
    assert "did not find" not in ran.text
    assert len([*(tmp_path / "there").iterdir()]) == 3


def test_a_folder_for_recordings_that_cannot_be_made(tmp_path) -> None:
    (tmp_path / "test_names.py").write_text(IN_NAMES)
    (tmp_path / "file").write_text("")
    ran = run_pytest(tmp_path, "--ranks-record", str(tmp_path / "file" / "folder"))
    assert ran.code == 1
    assert "the folder cannot be made (Not a directory); give one" in ran.text
    assert "Traceback" not in ran.text


def test_a_world_that_has_not_run_has_no_timeline() -> None:
    with phalanx.World(ranks=2) as world, pytest.raises(phalanx.UsageError, match="no run to"):
        world.timeline()
