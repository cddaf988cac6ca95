"""`phalanx conformance` as a user meets it: options, messages, exit status."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from phalanx.cli.conformance import EPILOG
from phalanx.cli.main import main
from phalanx.cli.progress import ProgressBar, render_bar
from phalanx.conformance.suite import all_cases, select


def test_some_cases(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    path = tmp_path / "out.json"
    select = "all_reduce/float32/sum/*@2"
    assert main(["conformance", "--select", select, "--json", str(path)]) == 0
    shown = capsys.readouterr()
    assert "operation" in shown.out and "0 WRONG, 0 fail" in shown.out
    assert shown.err == ""
    results = json.loads(path.read_text())["results"]
    assert {r["outcome"] for r in results} == {"pass", "refuse"}
    assert all(r["id"].startswith("all_reduce/float32/sum/") for r in results)


def test_comparing_with_itself(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    path, page = tmp_path / "out.json", tmp_path / "page.md"
    arguments = ["conformance", "--select", "barrier/", "--ranks", "3", "-q"]
    assert main([*arguments, "--json", str(path)]) == 0
    assert main([*arguments, "--against", str(path), "--document", str(page)]) == 0
    assert f"0 differences from {path}, 0 without a reason" in capsys.readouterr().out
    assert page.read_text().startswith("# Conformance")
    content = json.loads(path.read_text())
    content["results"][0]["outcome"] = "fail"
    path.write_text(json.dumps(content))
    assert main([*arguments, "--against", str(path)]) == 1
    assert f"DIFFERS {content['results'][0]['id']}: pass here" in capsys.readouterr().out


def test_a_wrong_backend_is_told_and_the_status_is_1(
    capsys: pytest.CaptureFixture[str],
) -> None:
    select = "all_reduce/float32/sum/sync/strided@2,all_reduce/float32/sum/sync@2"
    assert main(["conformance", "--engine", "processes", "--select", select]) == 1
    shown = capsys.readouterr()
    assert "WRONG all_reduce/float32/sum/sync/strided@2: ranks 0,1: wrote outside" in shown.out
    assert shown.err == ""
    assert "1 pass, 0 refuse, 1 WRONG, 0 fail" in shown.out


def test_a_backend_of_a_third_party() -> None:
    """The module is found where Python looks, as for any program."""
    select = "all_reduce/float32/sum/sync@2,all_gather/float16/sync@2,broadcast/int64/async@2"
    command = [sys.executable, "-m", "phalanx", "conformance", "--engine", "processes"]
    command += ["--import", "broken_backend", "--backend", "broken", "--select", select]
    environ = {**os.environ, "PYTHONPATH": str(Path(__file__).parent)}
    ended = subprocess.run(
        command, capture_output=True, text=True, timeout=50, check=False, env=environ
    )
    assert ended.returncode == 1, ended.stderr
    assert "1 pass, 1 refuse, 1 WRONG, 0 fail" in ended.stdout
    assert "WRONG all_reduce/float32/sum/sync@2: rank 0: result: " in ended.stdout
    assert (
        "1 x NotImplementedError: no float16 (e.g. all_gather/float16/sync@2)" in ended.stdout
    )


def test_list(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["conformance", "--list", "--ranks", "2", "--select", "Work/then"]) == 0
    listed = capsys.readouterr().out.splitlines()
    assert "Work/then-of-then@2" in listed and all(name.endswith("@2") for name in listed)


def test_a_reader_that_goes_away_is_no_error_of_ours() -> None:
    command = f"{sys.executable} -m phalanx conformance --list | head -2"
    ended = subprocess.run(
        command, shell=True, capture_output=True, text=True, timeout=50, check=False
    )
    assert len(ended.stdout.splitlines()) == 2
    assert ended.stderr == ""


def test_a_module_that_raises_is_told_in_one_line(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    module = tmp_path / "raises_at_once.py"
    module.write_text("import os\nraise RuntimeError('no device')\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    assert main(["conformance", "--import", "raises_at_once"]) == 2
    assert capsys.readouterr().err == (
        f"phalanx: --import raises_at_once: RuntimeError: no device ({module}:2)\n"
    )


@pytest.mark.parametrize(
    ("options", "says"),
    [
        (["--select", "no-such-case"], "no case has such an id"),
        (["--engine", "mpi"], "choose threads or processes"),
        (["--backend", "mine"], "runs with --engine processes"),
        (["--backend", "mine", "--engine", "processes"], "--import MODULE"),
        (["--import", "no_such_module_at_all"], "No module named"),
        (["--ranks", "two"], "e.g. --ranks 2,3,4"),
        (["--ranks", "0"], "from 1 to 64"),
        (["--json", "no/such/folder/x.json"], "cannot write"),
        (["--against", "missing.json"], "cannot read"),
        (["--json", "."], "it is a folder"),
        (["--document", "x.md"], "--against"),
        (["--list", "--json", "x.json"], "--list runs nothing"),
        (["--list", "--against", "x.json"], "--list runs nothing"),
        (["--device", "tpu"], "choose cpu or cuda"),
    ],
)
def test_wrong_usage(
    options: list[str], says: str, capsys: pytest.CaptureFixture[str], tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    monkeypatch.chdir(tmp_path)
    assert main(["conformance", *options]) == 2
    shown = capsys.readouterr()
    assert says in shown.err and shown.out == ""
    assert list(tmp_path.iterdir()) == []


def test_what_the_help_selects_is_there() -> None:
    given = re.findall(r"phalanx .*--select ('[^']+'|\S+)", EPILOG)
    assert len(given) == 2
    cases = all_cases([2, 3, 4])
    assert [each for each in given if not select(cases, each.strip("'"))] == []


def test_help_teaches() -> None:
    command = [sys.executable, "-m", "phalanx", "conformance", "--help"]
    shown = subprocess.run(command, capture_output=True, text=True, timeout=30, check=True)
    for words in ("WRONG", "--import my_backend", "--against", "exit status", "separated by"):
        assert words in shown.stdout
    assert max(map(len, shown.stdout.splitlines())) <= 96


class Screen:
    """A sink that says whether it is a terminal."""

    def __init__(self, *, terminal: bool) -> None:
        self.text = ""
        self._terminal = terminal

    def write(self, text: str) -> int:
        self.text += text
        return len(text)

    def flush(self) -> None: ...

    def isatty(self) -> bool:
        return self._terminal


def test_a_bar_is_for_terminals_only() -> None:
    screen = Screen(terminal=False)
    bar = ProgressBar(3, sink=screen)  # type: ignore[arg-type]
    bar.step("one")
    bar.close()
    assert screen.text == ""


def test_a_bar_draws_ten_times_a_second_and_wipes_itself() -> None:
    screen = Screen(terminal=True)
    now = [0.0]
    bar = ProgressBar(4, sink=screen, clock=lambda: now[0])  # type: ignore[arg-type]
    for _ in range(3):
        bar.step("all_reduce")
    assert screen.text.count("all_reduce") == 2  # once drawn: padded, then shown
    now[0] = 0.2
    bar.step("barrier")
    assert "4/4 barrier" in screen.text
    bar.close()
    assert screen.text.endswith("\r")


@pytest.mark.parametrize("columns", [20, 40, 80, 200])
def test_a_bar_fits_the_terminal(columns: int) -> None:
    assert len(render_bar(123, 4567, "a_long_name_of_an_operation", columns)) < columns
