"""Programs that pass and are wrong all the same, and the warnings that `phalanx run` prints.

PHALANX_UPDATE_GOLDEN=1 writes the files anew; read the difference before committing it.
"""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from phalanx.cli.main import main

FOLDER = Path(__file__).parent
PROGRAMS = sorted((FOLDER / "order_programs").glob("*.py"))
each_program = pytest.mark.parametrize("program", PROGRAMS, ids=lambda path: path.stem)


@pytest.fixture
def report(monkeypatch, capsys):
    monkeypatch.chdir(FOLDER / "order_programs")
    monkeypatch.delenv("WORLD_SIZE", raising=False)

    def run(program: Path, *options: str) -> str:
        assert main(["run", "--no-record", "-n", "4", *options, program.name]) == 0
        out, err = capsys.readouterr()
        assert out == ""
        return "".join(
            line for line in err.splitlines(keepends=True) if not line.startswith("phalanx: ")
        )

    return run


@each_program
def test_the_warning_is_that_of_the_golden_file(report, program: Path) -> None:
    golden = FOLDER / "order_golden" / f"{program.stem}.txt"
    text = report(program)
    if os.environ.get("PHALANX_UPDATE_GOLDEN"):
        golden.write_text(text, encoding="ascii")
    assert text == golden.read_text(encoding="ascii")
    body = text.split("\n", 1)[1]
    assert max(map(len, body.splitlines())) <= 88


ONE_SCHEDULE = (
    "any_source",
    "look_and_set",
    "momentum_of_any_source",
    "received_by_a_function",
)
ANY_SCHEDULE = [path for path in PROGRAMS if path.stem not in ONE_SCHEDULE]
"""The others may deadlock under another schedule, take other messages, or nobody looks in
time."""


@pytest.mark.parametrize("program", ANY_SCHEDULE, ids=lambda path: path.stem)
def test_the_warning_is_the_same_under_every_schedule(report, program: Path) -> None:
    golden = (FOLDER / "order_golden" / f"{program.stem}.txt").read_text(encoding="ascii")
    for seed in range(1, 6):
        text = report(program, "--seed", str(seed))
        assert text.replace(f" --seed {seed}", "") == golden, f"seed {seed}"


def test_no_golden_file_is_left_over() -> None:
    names = {path.stem for path in (FOLDER / "order_golden").glob("*.txt")}
    assert names == {path.stem for path in PROGRAMS}
