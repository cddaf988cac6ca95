"""The page of faults stays true: its first program prints what the page shows."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

PAGE = (Path(__file__).parent.parent / "docs" / "faults.md").read_text()
FIRST = re.search(r"```python\n(.*?)```\n\n```text\n(.*?)```", PAGE, re.DOTALL)


def test_the_first_program_prints_what_the_page_shows(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert FIRST is not None
    program, shown = FIRST.groups()
    exec(compile(program, "faults.md", "exec"), {"__name__": "__main__"})
    assert capsys.readouterr().out == shown
