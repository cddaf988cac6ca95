"""What our test classes promise: whose instance, whose environment, what is kept and what is
left behind, and how a failure reads."""

from __future__ import annotations

import re
import sys
from pathlib import Path

import pytest

from tests.testing.suites import CASES, outcomes_of, run

ENDS = {"Continuous.test_3_fails": "failed"}
SKIPS = {
    "FreshGroups.test_5_skips": "after a call",
    "SkipsAtStart.test_1": "CUDA is not available",
    "SkipsAtStart.test_2": "CUDA is not available",
    "WithoutBackend.test": "the backend mpi is not available",
    "NoRanks.test": "world_size is 0 here, so there is no rank to run on",
    "NoThreads.test": "world_size is 0 here, so there is no rank to run on",
    "NoDevices.test": "world_size is 0 here, so there is no rank to run on",
}


PLAIN = [
    "OnThreads",
    "FreshGroups",
    "WithoutGroupAfter",
    "Late",
    "ByDecorator",
    "Parametrized",
    "OnProcesses",
    "ByEnvironment",
    "Continuous",
    "SkipsAtStart",
    "WithoutBackend",
    "NoRanks",
    "NoThreads",
    "NoDevices",
]
COMPILED = ["Compiled", "CompiledOnProcesses"]


@pytest.mark.timeout(100)
@pytest.mark.parametrize(
    ("kinds", "tests"), [(PLAIN, 36), pytest.param(COMPILED, 5, marks=pytest.mark.slow)]
)
def test_promises(kinds: list[str], tests: int) -> None:
    found = outcomes_of(CASES / "shapes.py", *kinds, seconds=90)
    assert len(found) == tests
    for name, (outcome, text) in found.items():
        expected = ENDS.get(name, "skipped" if name in SKIPS else "passed")
        assert (name, outcome) == (name, expected), text
        assert text == SKIPS[name] if name in SKIPS else True


def test_what_is_handed_on_is_as_new() -> None:
    found = outcomes_of(CASES / "handed_on.py")
    assert found.pop("Cleanups.test_1") == ("skipped", "nothing to test")
    outcome, text = found.pop("Coroutine.test")
    assert outcome == "error" and "Coroutine.test is async" in text
    assert len(found) == 23
    for name, (outcome, text) in found.items():
        assert (name, outcome) == (name, "passed"), text


def test_a_test_without_a_suite_leaves_nothing(tmp_path: Path) -> None:
    case = tmp_path / "alone.py"
    case.write_text(ALONE)
    done = run([sys.executable, str(case)])
    assert done.stdout == "1 0 True\n", done.stdout + done.stderr


ALONE = """
import unittest
import torch.distributed as dist
from phalanx.testing import MultiThreadedTestCase

class Alone(MultiThreadedTestCase):
    def setUp(self):
        super().setUp()
        self._spawn_threads()

    def test(self):
        dist.barrier()

before = dist.distributed_c10d._world
result = unittest.TestResult()
Alone("test").run(result)
print(result.testsRun, len(result.errors), dist.distributed_c10d._world is before)
"""


def test_what_checks_find_is_a_warning() -> None:
    script = str(CASES.parent / "outcomes.py")
    command = [sys.executable, script, str(CASES / "shapes.py"), "LeavesWorkAlone"]
    done = run(command)
    assert '"LeavesWorkAlone.test": ["passed"' in done.stdout
    assert re.search(
        r"shapes.py:\d+: PhalanxWarning: \[unmatched-message\]: send\(dst=1, tag=0\) of rank 0",
        done.stderr,
    )


DETAILS = """
import os
import threading
import time

import pytest
import torch
import torch.distributed as dist

from phalanx.testing import (
    MultiProcContinuousTest,
    MultiProcessTestCase,
    MultiThreadedTestCase,
)


class Threads(MultiThreadedTestCase):
    world_size = 2

    def setUp(self):
        super().setUp()
        self._spawn_threads()

    def test_fail(self):
        pytest.fail("told")  # here

    def test_sub(self):
        for number in range(3):
            with self.subTest("a message", number=number):
                self.assertNotEqual(number, 1)


class Processes(MultiProcessTestCase):
    world_size = 2

    def setUp(self):
        super().setUp()
        self._spawn_processes()

    def test_fail(self):
        pytest.fail("told")  # here

    def test_sub(self):
        with self.subTest(number=1):
            self.assertEqual(self.rank, 5)

    def test_send(self):
        store = dist.FileStore(self.file_name, 2)
        dist.init_process_group("gloo", store=store, rank=self.rank, world_size=2)
        if self.rank == 0:
            self.work = dist.isend(torch.ones(1), dst=1)


class Continuous(MultiProcContinuousTest):
    world_size = 2

    @classmethod
    def backend_str(cls):
        return "gloo"

    def test_fail(self):
        pytest.fail("told")  # here

    def test_send(self):
        if self.rank == 0:
            type(self).work = dist.isend(torch.ones(1), dst=1)

    def test_twice(self):
        dist.barrier()


class Dies(MultiProcContinuousTest):
    world_size = 2
    backend_str = Continuous.backend_str

    def setUp(self):
        super().setUp()
        time.sleep(1)

    def test_1_guilty(self):
        if self.rank == 1:
            threading.Timer(0.1, os._exit, (3,)).start()

    def test_2_innocent(self):
        dist.barrier()
"""


@pytest.mark.timeout(120)
def test_what_pytest_tells_of_the_classes(tmp_path: Path) -> None:
    """The user's line of `pytest.fail`, subtests, the replay line, and what checks found."""
    (tmp_path / "test_details.py").write_text(DETAILS)
    command = [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", "test_details.py"]
    done = run(command, folder=tmp_path, seconds=100)
    text = done.stdout
    assert "5 failed, 5 passed, 3 warnings" in text, text
    assert len(re.findall(r"^E +>  pytest.fail\(.told.\)  # here$", text, re.M)) == 3
    assert "_pytest/" not in text
    for kind in ("Threads", "Processes", "Continuous"):
        assert f'replay    pytest "test_details.py::{kind}::test_fail"' in text
    for kind in ("Processes", "Continuous"):
        assert f"test_details.py::{kind}::test_send\n" in text
    assert text.count("PhalanxWarning: [unmatched-message]: send(dst=1, tag=0) of rank 0") == 2
    assert "PhalanxWarning: rank 1 died with exit code 3" in text
    assert 'the last call: pytest "test_details.py::Dies::test_1_guilty"' in text
    if sys.version_info >= (3, 11):
        assert "in subTest('a message', number=1)" in text
        assert "in subTest(number=1)" in text


SAMPLE = """
import unittest

import torch.distributed as dist

from phalanx.testing import MultiProcessTestCase, MultiThreadedTestCase


class Threads(MultiThreadedTestCase):
    world_size = 3

    def setUp(self):
        super().setUp()
        self._spawn_threads()

    def test_alike(self):
        check(self)

    def test_differently(self):
        if self.rank == 1:
            raise ValueError("first line\\nsecond line")
        dist.barrier()


class Processes(MultiProcessTestCase):
    world_size = 3

    def setUp(self):
        super().setUp()
        self._spawn_processes()

    def test_alike(self):
        check(self)


def check(case):
    case.assertTrue(1 > 2, "told")


if __name__ == "__main__":
    unittest.main()
"""

ALIKE = """\
phalanx.testing.RankAssertionError: ranks 0-2 raised AssertionError: False is not true : told

  ranks 0-2   AssertionError: False is not true : told
              sample.py:37 in check
              >  case.assertTrue(1 > 2, "told")

  replay    python sample.py {kind}.test_alike

ranks 0-2:
Traceback (most recent call last):
  File "sample.py", line 17, in test_alike
    check(self)
  File "sample.py", line 37, in check
    case.assertTrue(1 > 2, "told")
AssertionError: False is not true : told
"""

DIFFERENTLY = """\
phalanx.testing.RankTestError: rank 1 raised ValueError: first line

  rank 1   ValueError: first line
           sample.py:21 in test_differently
           >  raise ValueError("first line\\nsecond line")

  stopped   rank 0 in barrier() (call #0) at sample.py:22; rank 2 ready to run

  replay    python sample.py Threads.test_differently

rank 1:
Traceback (most recent call last):
  File "sample.py", line 21, in test_differently
    raise ValueError("first line\\nsecond line")
ValueError: first line
second line
"""


def test_how_failures_read(tmp_path: Path) -> None:
    """The whole text that unittest prints: nothing of ours, of unittest or of torch in it."""
    (tmp_path / "sample.py").write_text(SAMPLE)
    done = run([sys.executable, "sample.py"], folder=tmp_path)
    parts = re.split(r"^(?:=|-){70}\n", done.stderr, flags=re.MULTILINE)
    told = {
        heading.split()[1] + "/" + re.findall(r"__main__\.(\w+)", heading)[0]: body
        for heading, body in zip(parts[1::2], parts[2::2], strict=False)
        if heading.startswith(("FAIL", "ERROR"))
    }
    texts = {name: without_carets(body, tmp_path) for name, body in told.items()}
    assert texts == {
        "test_alike/Threads": ALIKE.format(kind="Threads"),
        "test_alike/Processes": ALIKE.format(kind="Processes").replace("line 17", "line 33"),
        "test_differently/Threads": DIFFERENTLY,
    }


def without_carets(text: str, folder: Path) -> str:
    """Marks below a source line depend on the version of Python; the folder is a new one."""
    lines = [line for line in text.splitlines() if not re.fullmatch(r"\s*[~^]+\s*", line)]
    return "\n".join(lines).replace(f"{folder}/", "").strip() + "\n"
