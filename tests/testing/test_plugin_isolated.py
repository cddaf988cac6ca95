"""Tests with `isolate=`, on both engines."""

from __future__ import annotations

from pathlib import Path

from tests.testing.pytest_runs import run_pytest

FILES = {
    "mini.py": """
STATE = []
def begin(rank):
    assert not STATE, "already begun"
    STATE.append(rank)
    return STATE
""",
    "test_mini.py": """
import pytest
from mini import begin

pytestmark = pytest.mark.ranks(2, isolate=("mini",))

def test_first(rank):
    import mini
    assert mini.begin(rank) == [rank]

def test_second(rank):
    import mini
    assert mini.begin(rank) == [rank]

def test_bound_above(rank):
    assert callable(begin)

@pytest.mark.ranks(2, isolate=())
def test_not_isolated(rank):
    import mini
    assert mini.begin is begin
""",
}


def test_packages_are_new_for_each_test(tmp_path: Path) -> None:
    engines = ("-rA", "--ranks-engine", "threads,processes")
    ran = run_pytest(tmp_path, *engines, files=FILES)
    assert "8 passed, 2 warnings" in ran.text
    told = "PhalanxWarning: isolate=('mini',): the test's module has imported begin once"
    assert ran.text.count(told) == 1
    assert "test_mini.py::test_bound_above[ranks=2-threads]" in ran.text.partition(told)[0]
