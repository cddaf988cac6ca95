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
GUIDE = Path(__file__).parents[2] / "docs" / "testing.md"
FAILURES = re.compile(
    r"^=+ FAILURES =+$.*(?=^=+ .* in [\d.]+s.* =+$)", re.MULTILINE | re.DOTALL
)
TIMELINE = re.compile(r"^  timeline  phalanx report \d+-\d+-\d+-[\w.-]+\n", re.MULTILINE)
"""The names of kept runs differ from run to run."""
IMPORTS = "import pytest\nimport torch\nimport torch.distributed as dist\n\n\n"
FIRST, _, FAILS, *_ = re.findall(r"```python\n(.*?)```", GUIDE.read_text("utf-8"), re.DOTALL)
STYLES = """
import pytest

@pytest.mark.ranks(2)
def test_x(rank):
    assert rank == 5
"""
LINES = {
    "--tb=short": ["rank 0:", "test_s.py:6: in test_x", "E   assert 0 == 5"],
    "--tb=line": ["rank 1: test_s.py:6: assert 1 == 5"],
    "--tb=native": ["rank 0:", "    assert rank == 5", "AssertionError: assert 0 == 5"],
    "--tb=no": [],
    "--ranks-report=first": ["rank 1, same line: assert 1 == 5"],
}


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Ran]:
    arguments = {
        "golden": ["test_shown.py"],
        "concise": ["test_shown.py", "--ranks-report", "concise"],
        "guide": ["test_sum.py", "test_loss.py"],
        "elsewhere": ["test_sum.py", "test_s.py", "--rootdir=.."],
        **{option: ["test_s.py", option] for option in LINES},
    }
    files = {"test_s.py": STYLES, "test_sum.py": FIRST, "test_loss.py": IMPORTS + FAILS}
    ran = run_many(
        tmp_path_factory.mktemp("shown"),
        list(arguments.values()),
        files=files,
        samples=("shown",),
        env={"COLUMNS": "80"},
    )
    return dict(zip(arguments, ran, strict=True))


@pytest.fixture(scope="module")
def by_processes(tmp_path_factory: pytest.TempPathFactory) -> Ran:
    which = ("-k", "one or mismatch", "--showlocals", "--rootdir=..")
    args = ("--ranks-engine", "processes", *which)
    folder = tmp_path_factory.mktemp("processes")
    return run_pytest(folder, *args, samples=("shown",), env={"COLUMNS": "80"})


def test_golden_text(runs: dict[str, Ran]) -> None:
    found = FAILURES.search(runs["golden"].text)
    assert found is not None, runs["golden"].text
    shown, kept = TIMELINE.subn("", found.group())
    assert kept == shown.count("  replay    ")
    if os.environ.get("PHALANX_GOLDEN") == "write":
        GOLDEN.write_text(shown, encoding="utf-8")
    assert shown == GOLDEN.read_text(encoding="utf-8")


@pytest.mark.parametrize("name", ["test_one", "test_mismatch"])
def test_processes_show_the_same(runs: dict[str, Ran], by_processes: Ran, name: str) -> None:
    threads = runs["golden"].section(f"{name}[ranks=4]").splitlines()
    processes = by_processes.section(f"{name}[ranks=4]").splitlines()
    # Where the others were stopped depends on the system, and so does what they had logged.
    apart = ("stopped", "ready to run", "replay", "timeline", "Captured log")
    own = [line for line in threads if not any(word in line for word in apart)]
    assert set(own) <= set(processes)


def test_locals_of_a_process(by_processes: Ran) -> None:
    assert "mine       = {'rank': 2}" in by_processes.section("test_one[ranks=4]")


def test_the_replay_line_is_a_command(by_processes: Ran) -> None:
    command = 'pytest "test_shown.py::test_one[ranks=4]" --ranks-engine processes'
    assert f"replay    {command}\n" in by_processes.text


def test_started_elsewhere_than_in_rootdir(runs: dict[str, Ran]) -> None:
    text = runs["elsewhere"].text
    assert "1 failed, 1 passed" in text
    assert '  replay    pytest "test_s.py::test_x[ranks=2]"\n' in text


def test_concise(runs: dict[str, Ran]) -> None:
    ran = runs["concise"]
    assert ran.section("test_different[ranks=4]").splitlines()[:4] == [
        "rank 0: test_shown.py:36: ValueError: first",
        "rank 1: test_shown.py:38: KeyError: 'second'",
        "rank 2: test_shown.py:39: assert 2 == 9",
        "rank 3: test_shown.py:39: assert 3 == 9",
    ]
    assert ran.section("test_alike[ranks=4]").startswith(
        "ranks 0-3: test_shown.py:17: assert tensor(4) == 5\n"
    )


@pytest.mark.parametrize("option", LINES)
def test_styles(runs: dict[str, Ran], option: str) -> None:
    text = runs[option].text
    assert "FAILED test_s.py::test_x[ranks=2] - rank 0: assert 0 == 5 (1 more" in text
    for line in LINES[option]:
        assert f"\n{line}\n" in text
    assert "rank 0: test_s.py:6" not in text  # not twice: pytest has a line for the first
    assert ("FAILURES" in text) is (option != "--tb=no")


def test_the_guide_shows_what_is_printed(runs: dict[str, Ran]) -> None:
    shown = re.findall(r"```\n(_+ test_loss.*?)```", GUIDE.read_text("utf-8"), re.DOTALL)[0]
    assert "test_sum.py ." in runs["guide"].text
    assert shown in TIMELINE.sub("", runs["guide"].text)


UNLIKE = """
import pytest

pytestmark = pytest.mark.ranks(4)

def check(value):
    assert value == 9

def test_by_two_ways(rank):
    if rank < 3:
        check(0)
    else:
        check(0)  # only here

def test_other_causes(rank):
    try:
        raise (ValueError, KeyError, KeyError, OSError)[rank](f"part {rank // 2}")
    except Exception as error:
        raise RuntimeError("could not load") from error

def test_a_message(rank):
    half = rank // 2
    assert half == 9, "wrong"

def test_a_recursion(rank):
    def deeper(n):
        return deeper(n - 1) if n else 1 / 0
    deeper(rank)
"""


def test_ranks_that_fail_unlike_each_other_are_not_shown_as_one(tmp_path: Path) -> None:
    files = {"test_unlike.py": UNLIKE}
    whole, concise = run_many(
        tmp_path, [["--tb=short"], ["--ranks-report=concise"]], files=files
    )
    ways = whole.section("test_by_two_ways[ranks=4]")
    assert ways.count("ranks 0-2:") == ways.count("rank 3:") == 1
    assert "check(0)  # only here" in ways
    causes = whole.section("test_other_causes[ranks=4]")
    for line in (
        "rank 0:",
        "rank 1:",
        "rank 3:",
        "E   ValueError: part 0",
        "E   OSError: part 1",
    ):
        assert line in causes
    assert "rank 2, same line: RuntimeError: could not load; from KeyError: 'part 1'" in causes
    message = whole.section("test_a_message[ranks=4]")
    assert "ranks 2, 3, same line: AssertionError: wrong; assert 1 == 9" in message
    assert "all 4 ranks" in whole.section("test_a_recursion[ranks=4]")
    assert (
        "rank 0: test_unlike.py:19: RuntimeError: could not load; from ValueError: part 0"
        in (concise.section("test_other_causes[ranks=4]"))
    )
    assert "ranks 0-3: test_unlike.py:7: assert 0 == 9" in (
        concise.section("test_by_two_ways[ranks=4]")
    )
