"""Fixtures in tests on ranks: which are made once per rank, which once per test, and where."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.testing.pytest_runs import run_pytest

pytestmark = pytest.mark.timeout(180)  # whole runs of pytest, with many processes


@pytest.mark.parametrize("engine", ["threads", "processes"])
def test_samples_pass(tmp_path: Path, engine: str) -> None:
    ran = run_pytest(tmp_path, "--ranks-engine", engine, samples=("made",))
    assert ran.code == 0, ran.text
    assert "31 passed" in ran.text


REFUSED = """
import threading
import pytest
import phalanx.testing

ranks = pytest.mark.ranks(2)

def test_unmarked(rank):
    pass

@pytest.fixture(scope="module")
def wide(rank):
    return rank

@ranks
def test_wide(wide):
    pass

@ranks
def test_capfd(capfd):
    pass

@ranks
def test_missing(request):
    request.getfixturevalue("no_such")

@pytest.fixture(scope="module")
def lock():
    return threading.Lock()

@ranks
def test_lock(lock):
    pass

@ranks
def test_lock_by_name(request):
    assert request.getfixturevalue("lock")

@pytest.mark.ranks(2, shared="nothing_here")
def test_unknown_name():
    pass

@pytest.mark.parametrize("locked", [threading.Lock()])
@ranks
def test_lock_as_parameter(locked):
    pass

def test_marked_late():
    pass

@pytest.fixture
async def later():
    pass

@ranks
def test_async_fixture(later):
    pass
"""
MARKED_LATE = """
import pytest

def pytest_collection_finish(session):
    for item in session.items:
        if item.name == "test_marked_late":
            item.add_marker(pytest.mark.ranks(2))
"""
TOLD = {
    "test_unmarked": "once_per_rank). Here the test asks for it",
    "test_wide": "once_per_rank). Here the fixture 'wide' (test_refused.py:11) asks for it",
    "test_missing": "fixture 'no_such' not found",
    "test_unknown_name": "shared='nothing_here': there is no such fixture here",
    "test_marked_late": "test_marked_late: it came after the test was collected",
    "test_async_fixture": "the fixture 'later' is async",
}
ON_THREADS = {"test_capfd": "capfd cannot tell ranks apart that share a process"}
ON_PROCESSES = {
    "test_lock": "its value cannot be sent to ranks that are processes: cannot pickle",
    "test_lock_as_parameter": "the parameter 'locked' cannot be sent to ranks",
    "test_lock_by_name": "the fixture 'lock' is made once, in pytest's process",
}


@pytest.mark.parametrize(
    "engine", ["threads", pytest.param("processes", marks=pytest.mark.slow)]
)
def test_what_cannot_be_is_told(tmp_path: Path, engine: str) -> None:
    args = ("-rA", "--ranks-engine", engine)
    files = {"test_refused.py": REFUSED, "conftest.py": MARKED_LATE}
    ran = run_pytest(tmp_path, *args, files=files)
    expected = {**TOLD, **(ON_THREADS if engine == "threads" else ON_PROCESSES)}
    passed = {name for name, outcome in ran.outcomes.items() if outcome == "PASSED"}
    of_engine = {"test_capfd", "test_lock", "test_lock_by_name", "test_lock_as_parameter"}
    assert {name.partition("[")[0] for name in passed} == of_engine - set(expected)
    for text in expected.values():
        assert text in ran.text
    assert "All traceback entries are hidden" not in ran.text


GROUPS = """
import os
import pytest
import torch
import torch.distributed as dist

@pytest.fixture
def group(rank, world_size):
    dist.init_process_group("gloo", rank=rank, world_size=world_size)
    yield
    dist.destroy_process_group()

@pytest.mark.ranks(2, init=False)
@pytest.mark.parametrize("n", range(2))
def test_own(group, rank, world, n):
    tensor = torch.ones(1)
    dist.all_reduce(tensor)
    assert tensor == 2 and world.rank == rank

@pytest.mark.ranks(2)
def test_given(rank):
    dist.barrier()

@pytest.mark.ranks(2, init=False)
def test_none(rank):
    assert not dist.is_initialized() and os.environ["RANK"] == str(rank)

@pytest.mark.ranks(2)
def test_twice(group):
    pass
"""


@pytest.mark.parametrize(
    "engine", ["threads", pytest.param("processes", marks=pytest.mark.slow)]
)
def test_a_test_may_start_its_group_itself(tmp_path: Path, engine: str) -> None:
    ran = run_pytest(tmp_path, "--ranks-engine", engine, files={"test_it.py": GROUPS})
    assert "4 passed" in ran.text and "1 failed" in ran.text, ran.text
    assert "hint      ranks of a test have a default group already" in ran.text, ran.text


CHANGING = """
import os
import pytest

@pytest.mark.ranks(2, engine="processes")
@pytest.mark.parametrize("number", [os.getpid()])
def test_it(number):
    pass
"""


@pytest.mark.slow
def test_ids_that_differ_from_process_to_process_are_told(tmp_path: Path) -> None:
    ran = run_pytest(tmp_path, files={"test_it.py": CHANGING})
    assert "makes an id that differs from process to process" in ran.text, ran.text


FOLDERS = {
    "conftest.py": """
import pytest

@pytest.fixture(scope="session")
def top():
    return "top"

@pytest.fixture
def each(rank):
    return ("root", rank)
""",
    "inner/__init__.py": "",
    "inner/helping.py": "VALUE = 3\n",
    "inner/conftest.py": """
import pytest

@pytest.fixture
def each(each):
    return ("inner", *each)

@pytest.fixture(scope="package")
def wide():
    return ["wide"]
""",
    "inner/test_a.py": """
import pytest
from . import helping

@pytest.mark.ranks(2)
def test_a(each, top, rank, wide):
    assert (each, top, wide) == (("inner", "root", rank), "top", ["wide"])
    assert helping.VALUE == 3
""",
    "inner/deep/test_b.py": """
import pytest

@pytest.mark.ranks(2)
def test_b(each, rank):
    assert each == ("inner", "root", rank)
""",
    "test_c.py": """
import os
import pytest

@pytest.fixture(scope="module", autouse=True)
def surroundings(tmp_path_factory):
    folder = os.getcwd()
    os.environ["SET_BY_A_FIXTURE"] = "yes"
    os.chdir(tmp_path_factory.mktemp("elsewhere"))
    yield
    os.chdir(folder)
    del os.environ["SET_BY_A_FIXTURE"]

@pytest.mark.ranks(2)
def test_c(each, rank):
    assert each == ("root", rank)
    assert os.environ["SET_BY_A_FIXTURE"] == "yes"
    assert os.path.basename(os.getcwd()) == "elsewhere0"
""",
    "test_d.py": """
import os
import pytest

@pytest.mark.ranks(2)
def test_d():
    assert "SET_BY_A_FIXTURE" not in os.environ
""",
}


@pytest.mark.slow
@pytest.mark.parametrize("mode", ["prepend", "importlib"])
def test_ranks_in_processes_see_the_conftest_files(tmp_path: Path, mode: str) -> None:
    args = ("--ranks-engine", "processes", f"--import-mode={mode}")
    ran = run_pytest(tmp_path, *args, files=FOLDERS)
    assert "4 passed" in ran.text, ran.text


ELSEWHERE = {
    "test_raises.py": """
import os
import pytest

if "RANK" in os.environ:
    raise RuntimeError("only in ranks")

@pytest.mark.xfail(reason="covers no test that was not run")
@pytest.mark.ranks(2, engine="processes")
def test_x():
    pass
""",
    "test_leaves.py": """
import os
import pytest

if "RANK" in os.environ:
    os._exit(4)

@pytest.mark.ranks(2, engine="processes")
def test_x():
    pass
""",
    "test_other.py": """
import pytest

@pytest.mark.ranks(2, engine="processes")
def test_y():
    pass
""",
}


@pytest.mark.slow
def test_a_file_that_ranks_cannot_collect(tmp_path: Path) -> None:
    ran = run_pytest(tmp_path, files=ELSEWHERE)
    assert "2 failed, 1 passed" in ran.text
    assert "Failed: a rank did not find test_raises.py::test_x[ranks=2]:" in ran.text
    assert "E   RuntimeError: only in ranks" in ran.text
    assert "test_leaves.py::test_x[ranks=2] - both ranks: died with exit code 4" in ran.text
