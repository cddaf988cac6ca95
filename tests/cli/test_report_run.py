"""`phalanx report`: files that are found, read or refused, and what is written."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
import torch.distributed as dist

import phalanx
from phalanx.cli.main import main


def ring() -> None:
    rank, size = dist.get_rank(), dist.get_world_size()
    dist.all_reduce(torch.ones(4))
    if rank:
        dist.recv(torch.ones(4), rank - 1)
    if rank < size - 1:
        dist.send(torch.ones(4), rank + 1)


@pytest.fixture
def recording(tmp_path: Path) -> Path:
    path = tmp_path / "ring.jsonl.gz"
    phalanx.run(ring, ranks=3, record=path)
    return path


def status_and_error(capsys: pytest.CaptureFixture[str], *arguments: object) -> tuple[int, str]:
    status = main(["report", *map(str, arguments)])
    shown = capsys.readouterr()
    assert shown.out == ""
    return status, shown.err


def test_a_recording_is_shown(recording: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["report", str(recording)]) == 0
    shown = capsys.readouterr()
    assert shown.out.startswith("ring: 3 ranks on threads, ")
    assert str(recording) in shown.out
    assert "messages  to 0  to 1  to 2 " in shown.out
    assert shown.err == ""


def test_the_last_failed_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    status, error = status_and_error(capsys, "LAST")
    assert status == 2
    assert "no run is kept" in error
    monkeypatch.delenv("PYTEST_CURRENT_TEST")
    with pytest.raises(phalanx.DeadlockError, match="timeline  phalanx report LAST"):
        phalanx.run(lambda: dist.recv(torch.ones(1), 1 - dist.get_rank()), ranks=2)
    assert main(["report", "LAST"]) == 0
    assert "failed: DeadlockError" in capsys.readouterr().out
    assert main(["report"]) == 0
    assert "DeadlockError" in capsys.readouterr().out


def test_a_folder_is_listed(recording: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (recording.parent / "broken.jsonl.gz").write_text("no")
    assert main(["report", str(recording.parent)]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == f"{recording.parent}: 2 recordings"
    assert sorted(line.split()[0] for line in lines[3:]) == ["broken", "ring"]
    assert any("not readable" in line for line in lines)
    assert any(line.split()[1:4] == ["3", "ring", "finished"] for line in lines)


def test_a_page_is_written_over_what_was_there(
    recording: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    page = tmp_path / "out.html"
    page.write_text("old")
    assert status_and_error(capsys, recording, "--html", page) == (
        0,
        f"phalanx: wrote {page}\n",
    )
    assert page.read_text().startswith("<!doctype html>")


def test_several_files_at_once(
    recording: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    trace, table = tmp_path / "out.json", tmp_path / "out.csv"
    status, error = status_and_error(capsys, recording, "--trace", trace, "--csv", table)
    assert (status, len(error.splitlines())) == (0, 2)
    assert json.loads(trace.read_text())["traceEvents"]
    assert table.read_text().startswith("rank,call,thread,")


def test_json_has_the_summary_and_with_events_all_events(
    recording: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["report", str(recording), "--json"]) == 0
    summary = json.loads(capsys.readouterr().out)
    assert summary["ranks"] == 3
    assert summary["messages"][0]["target"] == 1
    assert main(["report", str(recording), "--json", "--events"]) == 0
    data = json.loads(capsys.readouterr().out)
    kinds = {event["kind"] for event in data.pop("events")}
    assert {"posted", "met", "rank-ended"} <= kinds
    assert data == summary


def test_bad_input_is_a_sentence(
    recording: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    foreign = tmp_path / "dump.pkl"
    foreign.write_bytes(b"\x80\x04.")
    empty = tmp_path / "empty"
    empty.mkdir()
    for arguments, words in {
        (foreign,): "this is a pickle of Phalanx",
        (tmp_path / "none",): "there is no such file",
        (recording, recording): "2 runs; phalanx report shows one at a time",
        (empty,): "no recordings (*.jsonl.gz) in it",
        (tmp_path, "--html", "x.html"): "--html needs one recording as RUN",
        ("--json",): "--json needs one recording as RUN, not none",
        (recording, "--events"): "--events goes with --json",
        (recording, "--trace", tmp_path / "none" / "x"): "No such file or directory",
        (recording, "--csv", tmp_path / "none" / "x"): "No such file or directory",
        (recording, "--html", tmp_path / "none" / "x.html"): "No such file or directory",
    }.items():
        status, error = status_and_error(capsys, *arguments)
        assert status == 2
        assert words in error
        assert error.startswith("phalanx: ")
        assert len(error.splitlines()) == 1


def test_wrong_options(capsys: pytest.CaptureFixture[str]) -> None:
    for arguments in (["x", "--most", "0"], ["x", "--most", "3", "--all"], ["x", "--htm", "y"]):
        with pytest.raises(SystemExit) as stopped:
            main(["report", *arguments])
        assert stopped.value.code == 2


def test_a_closed_pipe_is_no_error(recording: Path) -> None:
    read, write = os.pipe()
    os.close(read)
    command = [sys.executable, "-m", "phalanx", "report", str(recording)]
    done = subprocess.run(command, stdout=write, stderr=subprocess.PIPE, text=True)
    os.close(write)
    assert (done.returncode, done.stderr) == (0, "")


def test_torch_is_not_imported(recording: Path) -> None:
    look = "import sys; from phalanx.cli.main import main; main(sys.argv[1:]); "
    look += "print('torch' in sys.modules)"
    command = [sys.executable, "-c", look, "report", str(recording)]
    shown = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    assert shown.splitlines()[-1] == "False"


@pytest.mark.parametrize("option", ["--html", "--trace", "--csv"])
def test_a_recording_is_not_written_over(
    recording: Path, capsys: pytest.CaptureFixture[str], option: str
) -> None:
    before = recording.read_bytes()
    status, error = status_and_error(capsys, recording, option, recording)
    assert status == 2
    assert "that is the recording itself; name another file" in error
    assert recording.read_bytes() == before


@pytest.mark.parametrize("option", ["--html", "--trace", "--csv"])
def test_a_dash_is_no_file(
    recording: Path, capsys: pytest.CaptureFixture[str], option: str
) -> None:
    status, error = status_and_error(capsys, recording, option, "-")
    assert status == 2
    assert "name one, such as /dev/stdout" in error
