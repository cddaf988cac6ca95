"""The guide to the checks stays true: its programs give its reports, its table its kinds.

    PHALANX_UPDATE_GOLDEN=1 pytest tests/test_checks_doc.py

writes the reports anew; read the difference before you keep it.
"""

from __future__ import annotations

import os
import re
from dataclasses import dataclass
from pathlib import Path

import pytest

from phalanx.cli.main import main
from phalanx.kinds import KINDS

DOC = Path(__file__).parent.parent / "docs" / "checks.md"
_EXAMPLE = re.compile(
    r"^### ([\w-]+)\n.*?```python\n(# phalanx run (.*?) (\w+\.py)\n.*?)```\n```\n(.*?)```",
    re.MULTILINE | re.DOTALL,
)
_ROW = re.compile(r"^\| \[([\w-]+)\]\(#([\w-]+)\) \| (.*?) \| (\w+) \| (.*?) \|$", re.MULTILINE)


@dataclass(frozen=True)
class Example:
    kind: str
    source: str
    options: str
    file: str
    report: str


EXAMPLES = [Example(*found) for found in _EXAMPLE.findall(DOC.read_text())]
TABLE = {row[0]: row[1:] for row in _ROW.findall(DOC.read_text())}
each_example = pytest.mark.parametrize("example", EXAMPLES, ids=lambda example: example.kind)


def test_every_kind_has_a_row_and_an_example() -> None:
    assert list(TABLE) == list(KINDS)
    assert [example.kind for example in EXAMPLES] == list(KINDS)


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]):
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("WORLD_SIZE", raising=False)

    def run(example: Example, *options: str) -> str:
        Path(example.file).write_text(example.source)
        main(["run", *options, *example.options.split(), example.file])
        return capsys.readouterr().err

    return run


@each_example
def test_the_program_gives_the_report(run, example: Example) -> None:
    err = run(example)
    severity = "error" if "Error: " in example.report.splitlines()[0] else "warning"
    assert severity in TABLE[example.kind][1]
    assert re.search(rf"checked[^:]*: 1 {severity} \((1 )?{example.kind}\)\n$", err)
    *_, report = re.split(r"^(?=\w+Error: |warning \[)", err, flags=re.MULTILINE)
    report = report.rpartition("phalanx: ")[0].rstrip() + "\n"
    if example.kind == "thread-race":  # of either rank, as its threads happen to run
        report = report.replace("rank 1 ", "rank 0 ")
    if os.environ.get("PHALANX_UPDATE_GOLDEN"):
        DOC.write_text(DOC.read_text().replace(example.report, report))
    else:
        assert report == example.report


@pytest.mark.slow
@each_example
def test_the_table_is_right_about_processes(run, example: Example) -> None:
    if TABLE[example.kind][3] == "no" or example.kind == "message-race":
        pytest.skip("not found on processes, or a race that may end otherwise there")
    told = []
    for _ in range(3):  # what depends on time need not show at once
        told.append(run(example, "--engine", "processes"))
        if re.search(rf"checked[^:]*: .*\b{example.kind}\)\n$", told[-1]):
            return
    raise AssertionError("\n\n".join(told))
