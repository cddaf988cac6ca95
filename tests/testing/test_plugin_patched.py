"""What a test replaces or marks is its own affair: the engine keeps its clock, its folder and
its process, a rank's mark covers that rank, and a skip in a teardown hides nothing."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.testing.pytest_runs import run_pytest

pytestmark = pytest.mark.timeout(180)  # whole runs of pytest

REPLACED = """
import os
import sys
import time
from unittest import mock
import pytest
import torch.distributed as dist

pytestmark = pytest.mark.ranks(2)

def refuse():
    raise RuntimeError("patched")

def test_process(monkeypatch):
    monkeypatch.setattr(os, "getpid", lambda: 1234)
    dist.barrier()
    assert os.getpid() == 1234

def test_folder(monkeypatch):
    monkeypatch.setattr(os, "getcwd", refuse)
    dist.barrier()

@pytest.mark.ranks(timeout=2)
def test_frozen_time_and_a_loop(monkeypatch, rank):
    monkeypatch.setattr(time, "monotonic", lambda: 100.0)
    dist.barrier()
    while rank == 1:
        pass

def test_frozen_time_and_a_deadlock(monkeypatch, rank):
    monkeypatch.setattr(time, "monotonic", lambda: 0)
    if rank == 0:
        dist.barrier()

def test_time_that_is_none(monkeypatch, rank):
    monkeypatch.setattr(time, "monotonic", mock.MagicMock())
    assert rank == 0

def test_arguments(rank):
    sys.argv = ["program", str(rank)]
    dist.barrier()
    assert sys.argv == ["program", str(rank)]

def test_arguments_in_place():
    sys.argv.append("left")
    dist.barrier()
    assert sys.argv.count("left") == 1

def test_arguments_put_back(monkeypatch, rank):
    with pytest.MonkeyPatch.context() as patch:
        if rank == 0:
            patch.setattr(sys, "argv", ["patched"])
        dist.barrier()
        assert (sys.argv == ["patched"]) == (rank == 0)
    dist.barrier()
    assert sys.argv != ["patched"]

def test_next():
    assert "left" not in sys.argv

class Thing:
    def method(self, value):
        return value

@mock.patch("os.getlogin", autospec=True)
def test_like_the_original(getlogin, rank):
    dist.barrier()
    with mock.patch.object(Thing, "method", side_effect=Thing.method, autospec=True) as spy:
        dist.barrier()
        for _ in range(rank):
            dist.barrier()
        with pytest.raises(TypeError):
            spy()
    for _ in range(1 - rank):
        dist.barrier()
    assert Thing().method(3) == 3
    with pytest.raises(Exception, match="already been mocked"):
        mock.patch("os.getlogin", autospec=True).start()
    dist.barrier()

def make(*args, **kwargs):
    if dist.get_rank() == 1:
        raise RuntimeError("only the second rank")
    return mock.MagicMock()

PATCH = mock.patch("os.ctermid", new_callable=make)

@pytest.mark.parametrize("time", range(2))
def test_a_patch_that_a_rank_fails_to_enter(rank, time):
    if rank == 0:
        with PATCH:
            dist.barrier()
            dist.barrier()
    else:
        dist.barrier()
        with pytest.raises(RuntimeError), PATCH:
            pass
        dist.barrier()

def test_nothing_is_left():
    assert not isinstance(os.ctermid, mock.Mock)
    assert not isinstance(os.getlogin, mock.Mock) and not hasattr(os.getlogin, "mock")
    assert Thing().method(3) == 3

@pytest.mark.ranks(1)
def test_with_the_same_thread():
    dist.barrier()
"""


@pytest.mark.parametrize(
    "engine", ["threads", pytest.param("processes", marks=pytest.mark.slow)]
)
def test_what_a_test_replaces_is_for_itself(engine: str, tmp_path: Path) -> None:
    files = {"test_replaced.py": REPLACED}
    ran = run_pytest(tmp_path, "-rA", "--ranks-engine", engine, files=files)
    failed = [name for name, outcome in ran.outcomes.items() if outcome != "PASSED"]
    assert failed == [
        "test_frozen_time_and_a_loop[ranks=2]",
        "test_frozen_time_and_a_deadlock[ranks=2]",
        "test_time_that_is_none[ranks=2]",
    ], ran.text
    assert len(ran.outcomes) == 14
    assert "StallError: over the limit of 2 s" in ran.text
    assert "DeadlockError" in ran.text and "rank 1: assert 1 == 0" in ran.text
    assert "UnhandledThreadException" not in ran.text


ENDS = """
import unittest
import pytest
import torch
import torch.distributed as dist

pytestmark = pytest.mark.ranks(2)

def skip():
    raise unittest.SkipTest("nothing to clean")

def test_hides_nothing(request, rank):
    request.addfinalizer(lambda: pytest.skip("nothing to clean"))
    assert rank == 0, "the failure of rank 1"

def test_hides_no_error_after_it(request, rank):
    request.addfinalizer(lambda: 1 / 0)
    request.addfinalizer(skip)

def test_passes(request):
    request.addfinalizer(skip)

def test_marked_by_another(request, rank):
    if rank == 1:
        request.node.add_marker(pytest.mark.xfail(reason="known on rank 1"))
    assert rank == 1, "the failure of rank 0"

def test_marked_by_itself(request, rank):
    if rank == 1:
        request.node.add_marker(pytest.mark.xfail(reason="known on rank 1"))
    assert rank == 0

@pytest.mark.xfail
def test_marked(rank):
    assert rank == 0

def test_marked_by_all(request, rank):
    request.node.add_marker(pytest.mark.xfail(reason="known"))
    if rank == 0:
        dist.barrier()

@pytest.mark.holds(torch.ones(2))
@pytest.mark.holds(torch.zeros(2))
def test_marks_that_cannot_be_compared(request, rank):
    assert request.node.get_closest_marker("holds") is not None
"""


@pytest.mark.parametrize(
    "engine", ["threads", pytest.param("processes", marks=pytest.mark.slow)]
)
def test_failures_that_others_do_not_cover(engine: str, tmp_path: Path) -> None:
    ran = run_pytest(tmp_path, "-rA", "--ranks-engine", engine, files={"test_ends.py": ENDS})
    assert {name.partition("[")[0]: outcome for name, outcome in ran.outcomes.items()} == {
        "test_hides_nothing": "FAILED",
        "test_hides_no_error_after_it": "FAILED",
        "test_passes": "PASSED",
        "test_marked_by_another": "FAILED",
        "test_marked_by_itself": "XFAIL",
        "test_marked": "XFAIL",
        "test_marked_by_all": "XFAIL",
        "test_marks_that_cannot_be_compared": "PASSED",
    }, ran.text
    assert "rank 1: AssertionError: the failure of rank 1" in ran.text
    assert "both ranks: ZeroDivisionError" in ran.text
    assert "rank 0: AssertionError: the failure of rank 0" in ran.text


LOCAL = {
    "pytest.ini": "[pytest]\nranks_shared = dataset\n",
    "test_knows.py": """
import pytest

@pytest.fixture
def dataset():
    return []

@pytest.mark.ranks(2)
def test_knows(dataset, rank):
    assert dataset == []
""",
    "test_other.py": """
import pytest

@pytest.mark.ranks(2)
def test_other(rank):
    pass
""",
}


@pytest.mark.slow
def test_an_ini_setting_is_for_those_that_know_the_fixture(tmp_path: Path) -> None:
    ran = run_pytest(tmp_path, "-rA", files=LOCAL)
    assert set(ran.outcomes.values()) == {"PASSED"} and len(ran.outcomes) == 2, ran.text
