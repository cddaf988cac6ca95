"""What a test leaves in processes that are kept does not reach the tests after it."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.testing.pytest_runs import run_pytest

pytestmark = pytest.mark.timeout(180)  # whole runs of pytest, with many processes

LEFT = {
    "test_first.py": """
import os
import threading
import time
import pytest
import torch

pytestmark = pytest.mark.ranks(2, engine="processes")

@pytest.fixture(scope="module")
def variable():
    os.environ["SET_BY_A_FIXTURE"] = "1"
    yield
    del os.environ["SET_BY_A_FIXTURE"]

def test_fails(rank):
    assert rank == 5  # the next test gets new processes

def test_sets(variable):
    assert os.environ["SET_BY_A_FIXTURE"] == "1"
""",
    "test_second.py": """
import os
import threading
import time
import pytest
import torch

processes = pytest.mark.ranks(2, engine="processes")

@processes
def test_environment():
    assert "SET_BY_A_FIXTURE" not in os.environ

@processes
def test_leaves_settings():
    torch.set_default_dtype(torch.float64)
    torch.set_grad_enabled(False)

@processes
def test_settings():
    assert torch.get_default_dtype() == torch.float32 and torch.is_grad_enabled()

@processes
def test_guilty():
    timer = threading.Timer(0.1, os._exit, (3,))
    timer.daemon = True  # the test would wait for it
    timer.start()

def test_between():
    time.sleep(1.5)

@processes
def test_innocent():
    pass
""",
}


def test_what_a_test_leaves_stays_with_it(tmp_path: Path) -> None:
    ran = run_pytest(tmp_path, "-rA", files=LEFT)
    failed = [name for name, outcome in ran.outcomes.items() if outcome == "FAILED"]
    assert len(ran.outcomes) == 8 and failed == ["test_fails[ranks=2]"], ran.text
    assert "PhalanxWarning: ranks 0, 1 died with exit code 3" in ran.text
    assert 'the last call: pytest "test_second.py::test_guilty[ranks=2]"' in ran.text


SET = """
import logging
import random
import numpy
import pytest
import torch
import torch.distributed as dist

torch.set_default_dtype(torch.float64)
torch.set_default_device("meta")
torch.set_printoptions(precision=2)
logging.getLogger().setLevel(logging.DEBUG)

pytestmark = pytest.mark.ranks(2)

@pytest.mark.parametrize("n", range(3))
def test_settings(n, caplog):
    assert torch.ones(2).is_meta and torch.ones(2).dtype == torch.float64
    logging.debug("heard")
    assert "heard" in caplog.text
    tensor = torch.full((1,), 1.23456, device="cpu")
    dist.all_reduce(tensor)
    assert str(tensor).startswith("tensor([2.47]")
    torch.set_default_device("cpu" if n else None)
    torch.set_default_dtype(torch.float32)
    logging.disable()

@pytest.fixture(scope="module", autouse=True)
def seeded():
    random.seed(5)
    numpy.random.seed(5)
    torch.manual_seed(5)

@pytest.mark.parametrize("n", range(2))
def test_numbers(n):
    generator = torch.Generator("cpu").manual_seed(5)
    expected = torch.rand(3, generator=generator, device="cpu").tolist()
    assert torch.rand(3, device="cpu").tolist() == expected
    assert random.random() == random.Random(5).random()
    assert numpy.random.rand() == numpy.random.RandomState(5).rand()
"""


@pytest.mark.parametrize(
    "engine", ["threads", pytest.param("processes", marks=pytest.mark.slow)]
)
def test_what_a_file_sets_holds_in_each_of_its_tests(tmp_path: Path, engine: str) -> None:
    ran = run_pytest(tmp_path, "--ranks-engine", engine, files={"test_set.py": SET})
    assert "5 passed" in ran.text, ran.text


WIDE = """
import os
import pytest

def log(what):
    if "RANK" in os.environ:
        with open("log.txt", "a") as file:
            file.write(f"{what} {os.getpid()}\\n")

def setup_module():
    log("+module")

def teardown_module():
    log("-module")

@pytest.mark.ranks(2, engine="processes")
class TestA:
    @classmethod
    def setup_class(cls):
        log("+class")

    @classmethod
    def teardown_class(cls):
        log("-class")

    def test_1(self):
        pass

    @pytest.mark.ranks(1)
    def test_2(self):
        pass
"""


@pytest.mark.slow
def test_what_a_class_and_a_module_set_up_in_ranks_is_torn_down_there(tmp_path: Path) -> None:
    ran = run_pytest(tmp_path, files={"test_wide.py": WIDE})
    assert "2 passed" in ran.text, ran.text
    by_process: dict[str, list[str]] = {}
    for line in (tmp_path / "log.txt").read_text().splitlines():
        what, pid = line.split()
        by_process.setdefault(pid, []).append(what)
    assert list(by_process.values()) == [["+module", "+class", "-class", "-module"]] * 3


BLAMED = {
    "test_module.py": """
import pytest

used = False

def teardown_module():
    assert not used

@pytest.mark.ranks(2, engine="processes")
def test_module():
    global used
    used = True
""",
    "test_next.py": """
import pytest

pytestmark = pytest.mark.ranks(2, engine="processes")

def test_next_file():
    pass

class TestA:
    used = False

    @classmethod
    def teardown_class(cls):
        assert not cls.used, "used"

    def test_a(self):
        type(self).used = True

class TestB:
    def test_b(self):
        pass
""",
}


@pytest.mark.slow
def test_a_teardown_in_ranks_fails_where_it_belongs(tmp_path: Path) -> None:
    ran = run_pytest(tmp_path, "-rA", files=BLAMED)
    assert "4 passed, 2 errors" in ran.text, ran.text
    assert "ERROR test_module.py::test_module[ranks=2] - " in ran.text
    assert "ERROR test_next.py::TestA::test_a[ranks=2] - " in ran.text
    shown = ran.section("ERROR at teardown of TestA.test_a[ranks=2]")
    assert "ranks 0, 1 raised AssertionError: used" in shown
    assert ">  assert not cls.used" in shown


HALF = {
    "test_half.py": """
import pytest
import torch.distributed as dist

@pytest.mark.ranks(2, engine="processes")
class TestA:
    @classmethod
    def teardown_class(cls):
        assert not cls.used, "in ranks"

    used = False

    def test_one_has_no_group(self, rank):
        if rank == 0:
            dist.destroy_process_group()

    def test_forks(self):
        import os, sys
        child = os.fork()
        assert child, "in the child"
        os.waitpid(child, 0)

    @pytest.fixture
    def broken(self):
        yield
        raise ValueError("in the fixture")

    @pytest.mark.ranks(2, engine="processes", shared=("broken",))
    def test_both_fail(self, broken):
        type(self).used = True
""",
    "test_last.py": """
import pytest
from phalanx.testing import once_per_test

@once_per_test
@pytest.fixture
def leaving():
    yield
    pytest.exit("enough")

@pytest.mark.ranks(2, engine="processes")
class TestB:
    used = False

    @classmethod
    def teardown_class(cls):
        assert not cls.used

    def test_leaves(self, leaving):
        type(self).used = True

def test_never_reached():
    pass
""",
}


@pytest.mark.slow
def test_teardowns_in_ranks_beside_other_ends(tmp_path: Path) -> None:
    ran = run_pytest(tmp_path, "-rA", "test_half.py", "test_last.py", files=HALF)
    assert "Exit: enough" in ran.text and "test_never_reached" not in ran.text, ran.text
    assert "PartFailed: in the child" in ran.text
    shown = ran.section("ERROR at teardown of TestA.test_both_fail[ranks=2]")
    assert "ValueError: in the fixture" in shown and "test_half.py:" in shown
    assert "ranks 0, 1 raised AssertionError: in ranks" in shown
