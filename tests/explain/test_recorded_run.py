"""Recordings of runs, explained: those that have a verdict, and those whose process died."""

from __future__ import annotations

import gzip
import json
from itertools import accumulate
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist

import phalanx
from phalanx.cli.main import main
from phalanx.explain.dump_files import read_dumps
from phalanx.explain.explanation import explain
from phalanx.explain.explanation_text import render_explanation
from phalanx.explain.recorded_run import dumps_of_recording
from phalanx.journal.recording.decoder import load
from phalanx.journal.recording.recorder import FORMAT
from phalanx.model import Stall


def works() -> None:
    rank = dist.get_rank()
    pair = dist.new_group([0, 1])
    for _ in range(3):
        dist.all_reduce(torch.ones(2), group=pair)
        if rank == 0:
            dist.send(torch.ones(1), 1, tag=3)
        else:
            dist.recv(torch.empty(1), 0, tag=3)
    dist.barrier()


def hangs() -> None:
    dist.all_reduce(torch.ones(2))
    dist.recv(torch.empty(1), 1 - dist.get_rank())


def test_a_run_that_ended_well(tmp_path: Path) -> None:
    file = tmp_path / "run.phalanx"
    phalanx.run(works, ranks=2, record=file)
    found = explain(read_dumps([file]))
    assert not found.found
    assert found.ranks == 2


def test_a_verdict_is_told_as_the_run_told_it(tmp_path: Path) -> None:
    file = tmp_path / "run.phalanx"
    with pytest.raises(phalanx.DeadlockError):
        phalanx.run(hangs, ranks=2, record=file)
    text = render_explanation(explain(read_dumps([file])))
    assert text.startswith("ranks 0 and 1 wait for each other")


def test_a_run_whose_process_died(tmp_path: Path) -> None:
    """What the file has is replayed: here one rank has not come to the last calls."""
    file = tmp_path / "run.phalanx"
    phalanx.run(works, ranks=2, record=file)
    recording = load(file)
    recording.end = None
    recording.blocks = [b for b in recording.blocks if b.kind in ("posted", "met")]
    dumps = dumps_of_recording(recording, "run")
    assert [len(dump.calls) for dump in dumps.values()] == [7, 7]
    assert {dump.status for dump in dumps.values()} == {"running"}
    from phalanx.explain.dump_replay import replay

    last = dumps[0].calls[-1]
    assert last.name == "barrier"
    del dumps[1].calls[-1]
    assert replay(dumps, 2).verdict is None  # nobody is known to wait
    dumps[0].threads = []
    dumps[0].calls[-1] = type(last)(**{**vars(last), "done": False})
    verdict = replay(dumps, 2).verdict
    assert isinstance(verdict, Stall)
    assert verdict.ranks == (1,)


# -- recordings that end in the middle ------------------------------------------------------


def does_much() -> None:
    """Right, and with calls that fit each other though they differ."""
    rank, size = dist.get_rank(), dist.get_world_size()
    pair = dist.new_group([0, 1])
    for step in range(2):
        dist.all_reduce(torch.ones(2))
        sent = [1 + rank * size + to for to in range(size)]
        got = [1 + source * size + rank for source in range(size)]
        dist.all_to_all_single(torch.empty(sum(got)), torch.ones(sum(sent)), got, sent)
        keeps = [2, 5 if rank == 1 else 2, *[2] * (size - 2)]  # more for itself
        uneven = (keeps, keeps) if rank == 1 else (None, None)
        dist.all_to_all_single(torch.empty(sum(keeps)), torch.ones(sum(keeps)), *uneven)
        rows = [torch.ones(2) for _ in range(size)]
        dist.all_gather(rows, torch.ones(2))
        dist.gather(torch.ones(2), rows if rank == 0 else None)
        dist.scatter(torch.empty(2), rows if rank == 0 else None)
        dist.all_gather_object([None] * size, "x" * (1 + rank * 9))
        if rank < 2:
            work = dist.all_reduce(torch.ones(3), group=pair, async_op=True)
            assert work is not None
            work.wait()
        if rank == 0:
            dist.send(torch.ones(1), 1, tag=step)
        elif rank == 1:
            dist.recv(torch.empty(1), 0, tag=step)
        dist.barrier()


def lines_of(file: Path) -> list[str]:
    return gzip.decompress(file.read_bytes()).decode().splitlines(keepends=True)


def killed(file: Path) -> list[str]:
    """The lines of a run whose process dies before its ranks hear of anything."""
    late = ("rank-ended", "wait-ended", "finding-made")
    return [line for line in lines_of(file)[:-1] if json.loads(line).get("kind") not in late]


def cut_events(lines: list[str], until: int) -> list[str]:
    """The lines without the end, and without what happened later."""
    found = []
    for line in lines[:-1]:
        value = json.loads(line)
        if "kind" in value:
            times = list(accumulate(value["time"]))
            count = sum(time <= until for time in times)
            if not count:
                continue
            value = {name: _first(each, count) for name, each in value.items()} | {"n": count}
        found.append(json.dumps(value) + "\n")
    return found


def _first(column: Any, count: int) -> Any:
    return column[:count] if isinstance(column, list) else column


@pytest.mark.parametrize("ranks", [2, 3])
def test_a_right_run_that_is_cut_anywhere(tmp_path: Path, ranks: int) -> None:
    """Ranks stand in calls, and others have not come yet: that proves nothing."""
    file, part = tmp_path / "run.jsonl.gz", tmp_path / "part.jsonl"
    phalanx.run(does_much, ranks=ranks, record=file)
    lines = lines_of(file)
    duration = load(file).duration
    parts = [cut_events(lines, duration * each // 40) for each in range(41)]
    parts += [lines[:count] for count in range(1, len(lines))]
    for each in parts:
        part.write_text("".join(each))
        found = explain(read_dumps([part]))
        text = render_explanation(found)
        assert not found.found, text
        assert "ends in the middle; nothing wrong until then" in text


def test_a_cut_run_says_where_its_ranks_were(tmp_path: Path) -> None:
    file, part = tmp_path / "run.jsonl.gz", tmp_path / "part.jsonl"
    phalanx.run(works, ranks=2, record=file)
    part.write_text("".join(killed(file)))
    assert main(["explain", str(part)]) == 0
    (fact,) = explain(read_dumps([part])).facts
    assert fact[0] == "last"
    assert fact[1].startswith("ranks 0, 1 after barrier #0 at ")


def test_a_mismatch_in_a_cut_run_stays_one(tmp_path: Path) -> None:
    def differs() -> None:
        dist.all_reduce(torch.ones(2 + dist.get_rank()))

    for program, kind in ((differs, "mismatch"), (hangs, "deadlock")):
        file, part = tmp_path / f"{kind}.jsonl.gz", tmp_path / f"{kind}.jsonl"
        with pytest.raises(phalanx.PhalanxError):
            phalanx.run(program, ranks=2, record=file)
        part.write_text("".join(killed(file)))
        found = explain(read_dumps([part]))
        assert [each.kind for each in found.verdicts] == [kind]


def test_ranks_that_had_stood_still_for_long(tmp_path: Path) -> None:
    """A rank looks at a store on and on, and nobody makes a call: that is a stall."""
    file, part = tmp_path / "run.jsonl.gz", tmp_path / "part.jsonl"
    phalanx.run(works, ranks=2, record=file)
    posted = {"kind": "posted", "rank": 0, "n": 1, "time": [10**9], "group": 0}
    posted |= {"name": "barrier", "serial": 99, "member": 0, "number": 0}
    polls = {"kind": "store-read", "rank": 1, "n": 1, "name": "check", "key": "k"}

    def written(seconds: int) -> Path:
        header = lines_of(file)[0]
        group = {"group": 0, "name": "world", "ranks": [0, 1]}
        last = {**polls, "time": [seconds * 10**9]}
        made = [json.dumps(each) + "\n" for each in (group, posted, last)]
        part.write_text("".join([header, *made]))
        return part

    assert not explain(read_dumps([written(2)])).found
    (verdict,) = explain(read_dumps([written(200)])).verdicts
    assert isinstance(verdict, Stall)
    assert verdict.ranks == (1,)


# -- several recordings, hostile ones, JSON -------------------------------------------------


def test_json_has_the_verdicts_of_a_recording(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "run.jsonl.gz"
    with pytest.raises(phalanx.DeadlockError):
        phalanx.run(hangs, ranks=2, record=file)
    assert main(["explain", "--json", str(file)]) == 1
    data = json.loads(capsys.readouterr().out)
    (verdict,) = data["verdicts"]
    assert verdict["type"] == "Deadlock"
    assert verdict["kind"] == "deadlock"
    assert verdict["ranks"] == [0, 1]
    assert verdict["headline"].startswith("ranks 0 and 1 wait for each other")
    assert data["told"][0].startswith(verdict["headline"])


def test_each_of_several_recordings_is_told(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    files = [tmp_path / f"{name}.gz" for name in ("right", "hung", "more", "cut")]
    phalanx.run(works, ranks=2, record=files[0])
    with pytest.raises(phalanx.DeadlockError):
        phalanx.run(hangs, ranks=2, record=files[1])
    files[2].write_bytes(files[0].read_bytes())
    files[3].write_bytes(gzip.compress("".join(lines_of(files[0])[:-1]).encode()))
    assert main(["explain", *map(str, files)]) == 1
    text = " ".join(capsys.readouterr().out.split())
    assert text.startswith("ranks 0 and 1 wait for each other")
    assert f"from the recording {files[1]} of 2 ranks" in text
    assert f"also {files[0]}, {files[2]}: nothing wrong" in text
    assert f"also {files[3]}: ends in the middle; nothing wrong until then" in text
    assert "unknown" not in text
    assert main(["explain", "--json", *map(str, files)]) == 1
    data = json.loads(capsys.readouterr().out)
    assert data["source"] == f"recording {files[1]}"
    assert [each["source"] for each in data["others"]] == [
        f"recording {each}" for each in (files[0], files[2], files[3])
    ]


def test_a_verdict_is_a_line_of_its_own_beside_others(tmp_path: Path) -> None:
    for name in "abcdefghijkl":
        with pytest.raises(phalanx.DeadlockError):
            phalanx.run(hangs, ranks=2, record=tmp_path / f"{name}.gz")
    text = render_explanation(explain(read_dumps([tmp_path])))
    assert text.count("[deadlock] ranks 0 and 1 wait for each other") == 11


def test_a_hostile_recording_is_named(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    fine, bad = tmp_path / "fine.gz", tmp_path / "bad.jsonl"
    phalanx.run(works, ranks=2, record=fine)
    for line in (
        {"kind": "posted", "rank": 0, "n": 1, "time": [1], "group": 0, "name": "x", "site": 99},
        {"kind": "posted", "rank": 0, "n": 1, "time": [1], "group": 77, "name": "barrier"},
        {"end": {"status": "failed", "verdicts": 7}},
    ):
        bad.write_text("".join([*lines_of(fine)[:-1], json.dumps(line) + "\n"]))
        assert main(["explain", str(bad)]) == 2
        said = capsys.readouterr().err
        assert said.startswith(f"phalanx: {bad}: ") and said.count("\n") == 1
        found = explain(read_dumps([tmp_path]))
        assert not found.found
        assert found.source == f"recording {fine}"
        assert len(found.unread) == 1
        assert found.unread[0].startswith(f"{bad}: ")


def test_an_error_comes_before_a_warning(tmp_path: Path) -> None:
    def ended(name: str, severity: str) -> Path:
        file = tmp_path / name
        header = {"format": FORMAT, "version": 1, "started": 0.0, "clock": "real", "ranks": 2}
        verdict = {"kind": "leak", "severity": severity, "headline": f"an {severity}"}
        end = {"end": {"status": "finished", "verdicts": [verdict]}}
        file.write_text(json.dumps(header) + "\n" + json.dumps(end) + "\n")
        return file

    files = [ended("a", "warning"), ended("b", "error")]
    found = explain(read_dumps(files))
    assert found.source == f"recording {files[1]}"
    assert "[leak] an warning" in render_explanation(found)


def test_no_deadlock_is_proved_where_events_are_lost(tmp_path: Path) -> None:
    """What was lost may be the message that somebody waits for."""
    file, part = tmp_path / "run.jsonl.gz", tmp_path / "part.jsonl"
    with pytest.raises(phalanx.DeadlockError):
        phalanx.run(hangs, ranks=2, record=file)
    part.write_text("".join([*killed(file), json.dumps({"dropped": 3, "rank": 0}) + "\n"]))
    found = explain(read_dumps([part]))
    assert not found.found
    assert any("events were lost" in text for text in found.unknown)
