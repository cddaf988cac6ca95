"""Programs of users with the bugs that they report most, and what `phalanx run` prints: the
first lines must say what to change. On threads, under any schedule and on processes.

PHALANX_UPDATE_GOLDEN=1 writes the files anew; read the difference before committing it.
"""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from phalanx.cli.main import main
from phalanx.matching.referee import Referee

FOLDER = Path(__file__).parent
PROGRAMS = sorted((FOLDER / "report_programs").glob("*.py"))
ON_THREADS = ("dropped_work", "other_address", "parameters_without_gradient")
"""On processes luck decides which rank comes first, names do not come with all errors, and
torch itself waits where ranks meet."""
each_program = pytest.mark.parametrize("program", PROGRAMS, ids=lambda path: path.stem)


@pytest.fixture
def report(monkeypatch, capsys):
    monkeypatch.chdir(FOLDER / "report_programs")
    monkeypatch.delenv("WORLD_SIZE", raising=False)
    # On a busy machine a deadlock of some ranks is found before the others have come to it.
    monkeypatch.setattr(Referee, "find_stuck", lambda *_, **__: {})

    def run(program: Path, *options: str) -> str:
        given = ["run", "--no-record", "-n", "3", "--quiet", *options, program.name]
        assert main(given) in (0, 1, 3)
        lines = capsys.readouterr().err.splitlines()
        lines = [line for line in lines if not line.startswith("phalanx: ")]
        for at, line in enumerate(lines):  # below a traceback of torch's
            if line.startswith(("RankFailedError", "InvalidCallError")):
                lines = lines[at:]
                break
        return "\n".join(lines).strip() + "\n"

    return run


def golden_text(program: Path) -> str:
    return (FOLDER / "report_golden" / f"{program.stem}.txt").read_text(encoding="ascii")


def without_replay(text: str) -> list[str]:
    return [line for line in text.splitlines() if line and not line.startswith("  replay")]


@each_program
def test_the_report_is_that_of_the_golden_file(report, program: Path) -> None:
    text = report(program)
    if os.environ.get("PHALANX_UPDATE_GOLDEN"):
        golden = FOLDER / "report_golden" / f"{program.stem}.txt"
        golden.write_text(text, encoding="ascii")
    assert text == golden_text(program)
    assert max(map(len, text.splitlines()[1:])) <= 88


@each_program
def test_the_report_is_the_same_under_another_schedule(report, program: Path) -> None:
    """One by which the first of several ranks at fault is the same."""
    text = report(program, "--seed", "4", "--completion", "latest")
    shown = text.replace(" --seed 4", "").replace(" --completion latest", "")
    assert without_replay(shown) == without_replay(golden_text(program))


@pytest.mark.programs
@pytest.mark.parametrize(
    "program",
    [path for path in PROGRAMS if path.stem not in ON_THREADS],
    ids=lambda path: path.stem,
)
def test_the_report_is_the_same_on_processes(report, program: Path) -> None:
    text = report(program, "--engine", "processes")
    assert without_replay(text) == without_replay(golden_text(program))


def test_no_golden_file_is_left_over() -> None:
    names = {path.stem for path in (FOLDER / "report_golden").glob("*.txt")}
    assert names == {path.stem for path in PROGRAMS}
