"""Programs whose ranks make unequally many calls, and the whole report for each: on threads, on
processes and under any schedule.

PHALANX_UPDATE_GOLDEN=1 writes the files anew; read the difference before committing it.
"""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from phalanx.cli.main import main
from phalanx.matching.referee import Referee

FOLDER = Path(__file__).parent
PROGRAMS = sorted((FOLDER / "uneven_programs").glob("*.py"))
each_program = pytest.mark.parametrize("program", PROGRAMS, ids=lambda path: path.stem)


@pytest.fixture
def report(monkeypatch, capsys):
    monkeypatch.chdir(FOLDER / "uneven_programs")
    monkeypatch.delenv("WORLD_SIZE", raising=False)
    # On a busy machine a deadlock of some ranks is found before the others have come to it.
    monkeypatch.setattr(Referee, "find_stuck", lambda *_, **__: {})

    def run(program: Path, *options: str) -> str:
        assert main(["run", "--no-record", "-n", "4", "--quiet", *options, program.name]) == 3
        return str(capsys.readouterr().err)

    return run


def golden_text(program: Path) -> str:
    return (FOLDER / "uneven_golden" / f"{program.stem}.txt").read_text(encoding="ascii")


def without_names(text: str) -> str:
    """Less what is said about parameters of models, which only threads see, and the replay."""
    lines = text.splitlines()
    return "\n".join(line for line in lines if not line.startswith(("  bucket", "  replay")))


@each_program
def test_the_report_is_that_of_the_golden_file(report, program: Path) -> None:
    text = report(program)
    if os.environ.get("PHALANX_UPDATE_GOLDEN"):
        golden = FOLDER / "uneven_golden" / f"{program.stem}.txt"
        golden.write_text(text, encoding="ascii")
    assert text == golden_text(program)
    body = text.split("\n", 1)[1]
    assert max(map(len, body.splitlines())) <= 88


@pytest.mark.parametrize("seed", [1, 2, 3])
@each_program
def test_the_report_is_the_same_under_every_schedule(report, program: Path, seed: int) -> None:
    text = report(program, "--seed", str(seed))
    assert text.replace(f" --seed {seed}", "") == golden_text(program)


@pytest.mark.programs
@each_program
def test_the_report_is_the_same_on_processes(report, program: Path) -> None:
    text = report(program, "--engine", "processes")
    assert without_names(text).strip() == without_names(golden_text(program)).strip()


def test_no_golden_file_is_left_over() -> None:
    names = {path.stem for path in (FOLDER / "uneven_golden").glob("*.txt")}
    assert names == {path.stem for path in PROGRAMS}
