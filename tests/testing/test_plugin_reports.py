"""What pytest prints when a test on ranks has failed.

To write the golden file anew after a change that is meant:
    PHALANX_GOLDEN=write pytest tests/testing/test_plugin_reports.py
"""

from __future__ import annotations

import os
import re
from pathlib import Path

import pytest

from tests.testing.pytest_runs import Ran, run_many, run_pytest

pytestmark = pytest.mark.timeout(180)  # whole runs of pytest, with many processes

GOLDEN = Path(__file__).parent / "golden" / "plugin_shown.txt"
FAILURES = re.compile(
    r"^=+ FAILURES =+$.*(?=^=+ .* in [\d.]+s.* =+$)", re.MULTILINE | re.DOTALL
)


@pytest.fixture(scope="module")
def shown(tmp_path_factory: pytest.TempPathFactory) -> Ran:
    return run_pytest(tmp_path_factory.mktemp("shown"), samples=("shown",))


@pytest.fixture(scope="module")
def shown_by_processes(tmp_path_factory: pytest.TempPathFactory) -> Ran:
    args = ("--ranks-engine", "processes", "-k", "one or mismatch", "--showlocals")
    return run_pytest(tmp_path_factory.mktemp("processes"), *args, samples=("shown",))


def test_golden_text(shown: Ran) -> None:
    found = FAILURES.search(shown.text)
    assert found is not None, shown.text
    if os.environ.get("PHALANX_GOLDEN") == "write":
        GOLDEN.write_text(found.group(), encoding="utf-8")
    assert found.group() == GOLDEN.read_text(encoding="utf-8")


@pytest.mark.parametrize("name", ["test_one", "test_mismatch"])
def test_processes_show_the_same(shown: Ran, shown_by_processes: Ran, name: str) -> None:
    threads = shown.section(f"{name}[ranks=4]").splitlines()
    processes = shown_by_processes.section(f"{name}[ranks=4]").splitlines()
    # Where the others were stopped depends on the system, and so does what they had logged.
    apart = ("stopped", "replay", "Captured log")
    own = [line for line in threads if not any(word in line for word in apart)]
    assert set(own) <= set(processes)


def test_locals_of_a_process(shown_by_processes: Ran) -> None:
    assert "mine       = {'rank': 2}" in shown_by_processes.section("test_one[ranks=4]")


def test_the_replay_line_is_a_command(shown_by_processes: Ran) -> None:
    command = 'pytest "test_shown.py::test_one[ranks=4]" --ranks-engine processes'
    assert f"replay    {command}\n" in shown_by_processes.text


def test_concise(tmp_path: Path) -> None:
    ran = run_pytest(tmp_path, "--ranks-report", "concise", samples=("shown",))
    assert ran.section("test_different[ranks=4]").splitlines()[:4] == [
        "rank 0: test_shown.py:36: ValueError: first",
        "rank 1: test_shown.py:38: KeyError: 'second'",
        "rank 2: test_shown.py:39: assert 2 == 9",
        "rank 3: test_shown.py:39: assert 3 == 9",
    ]
    assert ran.section("test_alike[ranks=4]").startswith(
        "ranks 0-3: test_shown.py:17: assert tensor(4) == 5\n"
    )


STYLES = """
import pytest

@pytest.mark.ranks(2)
def test_x(rank):
    assert rank == 5
"""
LINES = {
    "--tb=short": ["rank 0:", "test_s.py:6: in test_x", "E   assert 0 == 5"],
    "--tb=line": ["rank 0: test_s.py:6: assert 0 == 5"],
    "--tb=native": ["rank 0:", "    assert rank == 5", "AssertionError: assert 0 == 5"],
    "--tb=no": [],
    "--ranks-report=first": ["rank 1, same line: assert 1 == 5"],
}


def test_styles(tmp_path: Path) -> None:
    runs = run_many(tmp_path, [[option] for option in LINES], files={"test_s.py": STYLES})
    summary = "FAILED test_s.py::test_x[ranks=2] - rank 0: assert 0 == 5 (1 more rank failed)"
    for ran, lines in zip(runs, LINES.values(), strict=True):
        assert summary in ran.text
        for line in lines:
            assert f"\n{line}\n" in ran.text
    assert "FAILURES" not in runs[3].text


GUIDE = Path(__file__).parents[2] / "docs" / "testing.md"
IMPORTS = "import pytest\nimport torch\nimport torch.distributed as dist\n\n\n"


def test_the_guide_shows_what_is_printed(tmp_path: Path) -> None:
    text = GUIDE.read_text(encoding="utf-8")
    first, _, fails = re.findall(r"```python\n(.*?)```", text, re.DOTALL)
    shown = re.findall(r"```\n(_+ test_loss.*?)```", text, re.DOTALL)[0]
    files = {"test_sum.py": first, "test_loss.py": IMPORTS + fails}
    ran = run_pytest(tmp_path, files=files, env={"COLUMNS": "80"})
    assert "test_sum.py ." in ran.text
    assert shown in ran.text
