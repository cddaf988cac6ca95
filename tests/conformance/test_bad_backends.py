"""Backends with which nothing works, and runs that are ended from outside."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from phalanx.cli.main import main
from phalanx.conformance import runner
from phalanx.conformance.case_model import Case, Setting, Table
from phalanx.conformance.suite import all_cases, select

HERE = Path(__file__).parent


@pytest.fixture(autouse=True)
def backends(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(HERE))


def run(backend: str, expression: str, timeout: float = 30.0) -> Table:
    setting = Setting("processes", backend, imports=("bad_backends",), timeout=timeout)
    return runner.run_suite(select(all_cases([2]), expression), setting, lambda result: None)


def test_a_backend_that_always_raises_fails(capsys: pytest.CaptureFixture[str]) -> None:
    options = ["--engine", "processes", "--import", "bad_backends", "--backend", "raising"]
    chosen = "broadcast/float32/sync@2,broadcast/float16/sync@2,barrier/holds-everybody@2"
    assert main(["conformance", *options, "--select", chosen, "-q"]) == 1
    shown = capsys.readouterr().out
    assert "0 pass, 1 refuse, 0 WRONG, 2 fail" in shown
    assert "fail  2 x ranks 0,1: RuntimeError: cannot do anything (" in shown


def test_a_backend_that_cannot_be_made_stops_the_suite(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    options = ["--engine", "processes", "--import", "bad_backends", "--backend", "unmade"]
    assert main(["conformance", *options, "--json", str(tmp_path / "x.json")]) == 1
    shown = capsys.readouterr()
    assert shown.out == ""
    assert shown.err == (
        "phalanx: unmade makes no group of 2 ranks, tried 2 times: "
        "ranks 0, 1 raised RuntimeError: no such device\n"
    )
    assert list(tmp_path.iterdir()) == []


def test_a_process_that_dies_costs_one_case() -> None:
    dying, other = "broadcast/float32/sync@2", "barrier/holds-everybody@2"
    table = run("dying", f"{dying},{other},all_reduce/float32/sum/sync@2", timeout=20.0)
    found = {result.id: result for result in table.results}
    assert found[dying].outcome == "fail" and "SIGABRT" in found[dying].reason
    assert found[other].outcome == "fail" and "cannot do anything" in found[other].reason
    assert len(found) == 3


@pytest.mark.slow
def test_a_hang_is_tried_twice_and_then_believed(monkeypatch: pytest.MonkeyPatch) -> None:
    ran: list[list[str]] = []
    reports = runner._Bench._reports

    def watched(bench: runner._Bench, chunk: list[Case]) -> object:
        ran.append([case.id for case in chunk])
        return reports(bench, chunk)

    monkeypatch.setattr(runner._Bench, "_reports", watched)
    names = [f"broadcast/{dtype}/sync@2" for dtype in ("float32", "float64", "int64")]
    table = run("hanging", ",".join(names), timeout=3.0)
    assert sorted(r.outcome for r in table.results) == ["fail"] * 3
    for result in table.results:
        assert "bad_backends.py" in result.reason and "for 3" in result.reason
        assert not result.reason.startswith("rank 0:")
    assert [len(chunk) for chunk in ran] == [3, 1, 2, 1]


def test_the_timeout_of_the_command(capsys: pytest.CaptureFixture[str]) -> None:
    options = ["--engine", "processes", "--import", "bad_backends", "--backend", "hanging"]
    chosen = "broadcast/float32/sync@2"
    assert main(["conformance", *options, "--select", chosen, "--timeout", "2"]) == 1
    shown = capsys.readouterr().out
    assert "fail  broadcast/float32/sync@2: " in shown and " for 2" in shown
    for given in ("0", "soon", "inf"):
        assert main(["conformance", "--timeout", given]) == 2
        assert f"--timeout {given}: give seconds" in capsys.readouterr().err


@pytest.mark.parametrize("engine", ["threads", "processes"])
def test_a_run_that_is_terminated_leaves_nothing_behind(engine: str, tmp_path: Path) -> None:
    scratch, results = tmp_path / "scratch", tmp_path / "x.json"
    scratch.mkdir()
    command = [sys.executable, "-m", "phalanx", "conformance", "--engine", engine]
    child = subprocess.Popen(
        [*command, "--json", str(results)],
        env={**os.environ, "TMPDIR": str(scratch)},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        deadline = time.monotonic() + 40
        while not list(scratch.glob("phalanx-*/begun-*")):
            assert child.poll() is None and time.monotonic() < deadline
            time.sleep(0.05)
        child.send_signal(signal.SIGTERM)
        out, err = child.communicate(timeout=20)
    finally:
        child.kill()
        child.wait()
    assert (child.returncode, out) == (143, ""), err
    assert err.endswith("phalanx: terminated\n")
    assert list(scratch.glob("phalanx-*")) == []
    assert list(tmp_path.iterdir()) == [scratch]
