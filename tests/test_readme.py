"""The README shows real output: its first example is run and its report compared."""

from __future__ import annotations

import doctest
import re
from pathlib import Path

from tests.testing.pytest_runs import run_pytest

README = Path(__file__).parents[1] / "README.md"


def blocks() -> list[tuple[str, str]]:
    text = README.read_text()
    return re.findall(r"^```(\w*)\n(.*?)^```$", text, flags=re.MULTILINE | re.DOTALL)


def test_the_first_report_is_what_the_first_program_gives(tmp_path: Path) -> None:
    (_, program), (_, report) = blocks()[:2]
    (tmp_path / "test_step.py").write_text(program)
    ran = run_pytest(tmp_path, "test_step.py")
    assert ran.code == 1
    assert report in ran.text


def test_it_is_on_the_first_screen() -> None:
    lines = README.read_text().splitlines()
    assert lines.index("CollectiveMismatchError: " + _headline()) < 20


def test_it_is_read_in_three_minutes() -> None:
    assert len(README.read_text().splitlines()) <= 120


def test_its_links_lead_somewhere() -> None:
    links = re.findall(r"\]\((?!https:)([^)#]+)", README.read_text())
    assert links
    assert [link for link in links if not (README.parent / link).exists()] == []


def _headline() -> str:
    ours = "rank 2 called barrier at test_step.py:9"
    return f"{ours} where ranks 0, 1, 3 called all_reduce at line 8"


def test_the_interactive_examples_are_true() -> None:
    sessions = [text for language, text in blocks() if ">>>" in text]
    assert sessions
    for text in sessions:
        test = doctest.DocTestParser().get_doctest(text, {}, "README", str(README), 0)
        result = doctest.DocTestRunner().run(test)
        assert result.attempted > 0
        assert result.failed == 0
