"""Real programs with real bugs, and the whole report that `phalanx run` prints for each.

PHALANX_UPDATE_GOLDEN=1 writes the files anew; read the difference before committing it.
"""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from phalanx.cli.main import main

FOLDER = Path(__file__).parent
PROGRAMS = sorted((FOLDER / "programs").glob("*.py"))
each_program = pytest.mark.parametrize("program", PROGRAMS, ids=lambda path: path.stem)


@pytest.fixture
def report(monkeypatch, capsys):
    monkeypatch.chdir(FOLDER / "programs")
    monkeypatch.delenv("WORLD_SIZE", raising=False)

    def run(program: Path, *options: str) -> str:
        assert main(["run", "--no-record", "-n", "4", "--quiet", *options, program.name]) == 3
        out, err = capsys.readouterr()
        assert out == ""
        return err

    return run


@each_program
def test_the_report_is_that_of_the_golden_file(report, program: Path) -> None:
    golden = FOLDER / "golden" / f"{program.stem}.txt"
    text = report(program)
    if os.environ.get("PHALANX_UPDATE_GOLDEN"):
        golden.write_text(text, encoding="ascii")
    assert text == golden.read_text(encoding="ascii")
    body = text.split("\n", 1)[1]
    assert max(map(len, body.splitlines())) <= 88


@each_program
def test_the_verdict_is_the_same_under_every_schedule(report, program: Path) -> None:
    golden = (FOLDER / "golden" / f"{program.stem}.txt").read_text(encoding="ascii")
    for seed in range(1, 21):
        text = report(program, "--seed", str(seed))
        assert text.replace(f" --seed {seed}", "") == golden, f"seed {seed}"


def test_no_golden_file_is_left_over() -> None:
    names = {path.stem for path in (FOLDER / "golden").glob("*.txt")}
    assert names == {path.stem for path in PROGRAMS}
