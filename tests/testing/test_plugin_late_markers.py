"""Markers that nobody wrote at the test: by fixture from the ini file, and from hooks."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.testing.pytest_runs import run_pytest

INI = """
[pytest]
ranks_for_fixture =
    dist_env: 3, init=False
    sizes: 1, 2
"""
HOOKS = """
import pytest, os
import torch.distributed as dist

@pytest.fixture
def dist_env():
    dist.init_process_group("gloo")
    yield dist.get_world_size()
    dist.destroy_process_group()

@pytest.fixture
def sizes():
    return dist.get_world_size()

@pytest.fixture
def indirect(dist_env):
    return dist_env

def pytest_itemcollected(item):
    if "collected" in item.name:
        item.add_marker(pytest.mark.ranks(2))

def pytest_generate_tests(metafunc):
    if "generated" in metafunc.function.__name__:
        metafunc.definition.add_marker(pytest.mark.ranks(2))

def pytest_collection_modifyitems(items):
    for item in items:
        if "modified" in item.name:
            item.add_marker(pytest.mark.ranks(2, 3))
        if "param" in item.name and "two" in item.name:
            item.add_marker(pytest.mark.ranks(2))
"""
SUITE = """
import pytest
import torch.distributed as dist

def test_plain(): assert not dist.is_initialized()
def test_env(dist_env): assert dist_env == 3
def test_indirect(indirect): assert indirect == 3
@pytest.mark.ranks(2)
def test_marker_wins(dist_env): assert dist_env == 2
def test_sizes(sizes, world_size): assert sizes == world_size
def test_collected(): assert dist.get_world_size() == 2
def test_generated(): assert dist.get_world_size() == 2
def test_modified(rank): assert dist.get_world_size() in (2, 3) and rank == dist.get_rank()
@pytest.mark.parametrize("x", ["one", "two"])
def test_param(x):
    assert dist.is_initialized() == (x == "two")
class TestIt:
    @pytest.mark.parametrize("x", ["one", "two"])
    def test_modified_too(self, x): assert dist.get_world_size() in (2, 3)
    def test_env(self, dist_env): assert dist_env == 3
"""
PASSED = (
    "test_plain",
    "test_env[ranks=3]",
    "test_indirect[ranks=3]",
    "test_marker_wins[ranks=2]",
    "test_sizes[ranks=1]",
    "test_sizes[ranks=2]",
    "test_collected[ranks=2]",
    "test_generated[ranks=2]",
    "test_modified[ranks=2]",
    "test_modified[ranks=3]",
    "test_param[one]",
    "test_param[ranks=2-two]",
    "TestIt::test_modified_too[ranks=2-one]",
    "TestIt::test_modified_too[ranks=2-two]",
    "TestIt::test_env[ranks=3]",
)


@pytest.mark.parametrize("engine", ["threads", "processes"])
def test_fixtures_and_hooks_give_markers(tmp_path: Path, engine: str) -> None:
    files = {"pytest.ini": INI, "conftest.py": HOOKS, "test_it.py": SUITE}
    ran = run_pytest(tmp_path, "-rA", "--ranks-engine", engine, files=files)
    assert ran.outcomes == dict.fromkeys(PASSED, "PASSED"), ran.text


def test_other_marks_and_selection_stay(tmp_path: Path) -> None:
    hooks = """
import pytest

def pytest_collection_modifyitems(items):
    for item in items:
        item.add_marker(pytest.mark.ranks(2))
        item.add_marker(pytest.mark.xfail(reason="late"))
"""
    suite = "def test_fails(rank): assert rank < 0\ndef test_other(): assert False\n"
    files = {"conftest.py": hooks, "test_it.py": suite}
    ran = run_pytest(tmp_path, "-rA", "-k", "fails", files=files)
    assert ran.outcomes == {"test_fails[ranks=2]": "XFAIL"}, ran.text
    assert "1 deselected" in ran.text


@pytest.mark.parametrize(
    "line", ["dist_env", "dist_env:", "dist_env: four", "dist env: 4", "dist_env: **x"]
)
def test_a_wrong_line_is_an_error_at_the_start(tmp_path: Path, line: str) -> None:
    files = {"pytest.ini": f"[pytest]\nranks_for_fixture = {line}\n", "test_it.py": ""}
    ran = run_pytest(tmp_path, files=files)
    assert ran.code == 4
    assert f"ranks_for_fixture = {line}: give the name of a fixture and what" in ran.text
