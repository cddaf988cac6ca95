"""The guide to exploring stays true: its program gives the output that it shows."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import pytest

from phalanx.cli.main import main

DOC = (Path(__file__).parent.parent / "docs" / "explore.md").read_text()
PROGRAM = re.search(r"```python\n(# tasks\.py\n.*?)```", DOC, re.DOTALL)
COMMANDS = re.findall(r"```\n\$ phalanx (.*?)\n(.*?)```", DOC, re.DOTALL)
LOOK_AND_TAKE = """\
        if store.check([f"task {task}"]):
            store.delete_key(f"task {task}")
            done += 1
"""


@pytest.fixture
def programs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert PROGRAM is not None
    wrong = PROGRAM[1]
    assert LOOK_AND_TAKE in wrong
    right = wrong.replace(LOOK_AND_TAKE, '        done += store.delete_key(f"task {task}")\n')
    (tmp_path / "tasks.py").write_text(wrong)
    (tmp_path / "right.py").write_text(right)
    monkeypatch.chdir(tmp_path)


@pytest.mark.usefixtures("programs")
@pytest.mark.parametrize(("line", "shown"), COMMANDS, ids=[each[0] for each in COMMANDS])
def test_the_command_prints_what_the_guide_shows(
    line: str, shown: str, capsys: pytest.CaptureFixture[str]
) -> None:
    main(shlex.split(line))
    assert capsys.readouterr().out == shown
