"""The tutorials show real output: their files are written, their commands are run.

A block of Python whose first line is `# name.py` is that file. A block that begins with
`$ command` shows what the command prints; `...` stands for anything.
"""

from __future__ import annotations

import doctest
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

TUTORIALS = sorted((Path(__file__).parents[1] / "docs" / "tutorials").glob("*.md"))
_BLOCK = re.compile(r"^```\w*\n(.*?)^```$", re.MULTILINE | re.DOTALL)
_FILE = re.compile(r"# (\w+\.py)\n")


def _blocks(page: Path) -> list[str]:
    return _BLOCK.findall(page.read_text(encoding="utf-8"))


def _commands() -> list[tuple[Path, str]]:
    return [(page, text) for page in TUTORIALS for text in _blocks(page) if text[:2] == "$ "]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("page", "block"), _commands(), ids=lambda each: str(each).partition("\n")[0][-40:]
)
def test_the_command_prints_what_the_page_shows(page: Path, block: str, tmp_path: Path) -> None:
    for text in _blocks(page):
        if found := _FILE.match(text):
            (tmp_path / found[1]).write_text(text)
    line, _, shown = block.partition("\n")
    folder = os.path.dirname(sys.executable)
    environ = {**os.environ, "PATH": f"{folder}:{os.environ['PATH']}", "COLUMNS": "80"}
    done = subprocess.run(
        line[2:],
        shell=True,
        cwd=tmp_path,
        env={**environ, "PYTHONDONTWRITEBYTECODE": "1"},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=55,
    )
    expected = re.escape(shown).replace(r"\.\.\.", r"[^\0]*")
    assert re.fullmatch(expected, done.stdout), done.stdout


@pytest.mark.parametrize("page", TUTORIALS, ids=lambda page: page.stem)
def test_the_interactive_examples_are_true(page: Path) -> None:
    names: dict[str, object] = {}
    for text in _blocks(page):
        if text.startswith(">>> "):
            test = doctest.DocTestParser().get_doctest(text, names, page.stem, str(page), 0)
            assert doctest.DocTestRunner().run(test, clear_globs=False).failed == 0
            names.update(test.globs)


def test_there_are_tutorials() -> None:
    assert {page.stem for page in TUTORIALS} == {"pytest", "command-line", "run"}
