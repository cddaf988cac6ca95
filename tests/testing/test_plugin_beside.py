"""Tests on ranks beside what else pytest has: subtests, debuggers, xdist, junit, and so on."""

from __future__ import annotations

import re
import sys
import textwrap
import xml.etree.ElementTree as ElementTree
from pathlib import Path

import pytest

from tests.testing.pytest_runs import Ran, run_many, run_pytest

pytestmark = pytest.mark.timeout(180)  # whole runs of pytest, with many processes

ENGINES = pytest.mark.parametrize("engine", ["threads", "processes"])
MOSTLY_THREADS = pytest.mark.parametrize(
    "engine", ["threads", pytest.param("processes", marks=pytest.mark.slow)]
)


@pytest.fixture(scope="module")
def other(tmp_path_factory: pytest.TempPathFactory) -> tuple[Ran, Path]:
    folder = tmp_path_factory.mktemp("other")
    args = ("-rA", "--ranks-engine", "threads,processes", "--durations=1", "--junitxml=out.xml")
    ran = run_pytest(folder, *args, samples=("other",), env={"COLUMNS": "200"})
    return ran, folder / "out.xml"


@ENGINES
def test_subtests(other: tuple[Ran, Path], engine: str) -> None:
    ran, _ = other
    name = f"test_other.py::test_subtests[ranks=2-{engine}]"
    assert f"SUBFAILED[number] (number=1) {name} - both ranks: assert 1 != 1" in ran.text
    assert f"SUBFAILED[on one] (own=1) {name} - rank 1: assert 1 == 0" in ran.text
    assert f"FAILED {name} - contains 2 failed subtests" in ran.text


@MOSTLY_THREADS
def test_subtests_as_expected_and_with_their_cause(tmp_path: Path, engine: str) -> None:
    source = """
        import pytest
        import torch.distributed as dist

        @pytest.mark.ranks(2)
        def test_cause(subtests, rank):
            with subtests.test("a"):
                if rank:
                    raise ValueError("the cause")
                dist.barrier()

        @pytest.mark.ranks(2)
        @pytest.mark.xfail
        def test_expected(subtests):
            with subtests.test("a"):
                assert False
    """
    (tmp_path / "test_it.py").write_text(textwrap.dedent(source))
    ran = run_pytest(tmp_path, "-rA", "--ranks-engine", engine)
    assert "SUBFAILED[a] test_it.py::test_cause[ranks=2" in ran.text
    assert "- rank 1: ValueError: the cause" in ran.text
    assert "XPASS test_it.py::test_expected[ranks=2" in ran.text  # as without ranks


@MOSTLY_THREADS
def test_what_ranks_record_in_the_xml_file(tmp_path: Path, engine: str) -> None:
    source = """
        import pytest

        @pytest.mark.ranks(2)
        def test_it(rank, record_xml_attribute, record_testsuite_property):
            record_xml_attribute("kind", "small")
            record_testsuite_property("same", "for all")
            record_testsuite_property("own", rank)
    """
    (tmp_path / "test_it.py").write_text(textwrap.dedent(source))
    options = ("-o", "junit_family=xunit1", "--junitxml=out.xml", "--ranks-engine", engine)
    assert run_pytest(tmp_path, *options).code == 0
    suite = ElementTree.parse(tmp_path / "out.xml").getroot()[0]
    found = [(each.get("name"), each.get("value")) for each in suite.iter("property")]
    assert found == [("same", "for all"), ("own", "0"), ("own", "1")]
    assert [each.get("kind") for each in suite.iter("testcase")] == ["small"]


@ENGINES
def test_hypothesis_draws_for_all_ranks(other: tuple[Ran, Path], engine: str) -> None:
    shown = other[0].section(f"test_hypothesis[ranks=2-{engine}]")
    assert "both ranks" in shown
    assert "E       assert tensor(100) < 100" in shown
    assert re.search(r"test_hypothesis\(\nE +rank=\.\.\.,\nE +number=50,\nE +\)", shown)
    assert "phalanx" not in shown.partition("  timeline  ")[0]


@ENGINES
def test_hypothesis_in_a_class(other: tuple[Ran, Path], engine: str) -> None:
    ran, _ = other
    assert ran.outcomes[f"TestHypothesis::test_in_class[ranks=2-{engine}]"] == "PASSED"
    assert "outside a property-based test" not in ran.text
    told = ran.reasons[f"TestHypothesis::test_data[ranks=2-{engine}]"]
    assert told.startswith("Failed: data=st.data() cannot be used on ranks: each would draw")


@ENGINES
def test_warnings(other: tuple[Ran, Path], engine: str) -> None:
    ran, _ = other
    for rank in range(2):
        assert f"test_other.py:45: DeprecationWarning: from rank {rank}" in ran.text
    assert ran.text.count(f"test_other.py::test_warns[ranks=2-{engine}]\n") >= 2
    told = ran.reasons[f"test_warning_as_error[ranks=2-{engine}]"]
    assert told == "rank 1: UserWarning: turned into an error"
    assert f"test_returns[ranks=2-{engine}] returned <class 'int'> on a rank" in ran.text
    assert ran.outcomes[f"test_leaves_a_message[ranks=2-{engine}]"] == "PASSED"
    assert f"test_other.py::test_leaves_a_message[ranks=2-{engine}]\n" in ran.text
    assert (
        "PhalanxWarning: [unmatched-message]: send(dst=1, tag=0) of rank 0 was never received"
        in ran.text
    )


def test_what_cannot_run_on_ranks_is_refused(other: tuple[Ran, Path]) -> None:
    ran, _ = other
    for engine in ("threads", "processes"):
        assert ran.outcomes[f"test_async[ranks=2-{engine}]"] == "ERROR"
    assert "an async test cannot run on ranks" in ran.text
    assert ran.outcomes["TestOfUnittest::test_method"] == "ERROR"
    assert "@pytest.mark.ranks has no effect on test_other.py::TestOfUnittest" in ran.text


def test_durations(other: tuple[Ran, Path]) -> None:
    assert re.search(r"\d\.\d\ds call +test_other.py::\w+\[ranks=2-processes", other[0].text)


@ENGINES
def test_junit(other: tuple[Ran, Path], engine: str) -> None:
    cases = ElementTree.parse(other[1]).getroot().iter("testcase")
    case = next(
        each for each in cases if each.get("name") == f"test_properties[ranks=2-{engine}]"
    )
    found = {each.get("name"): each.get("value") for each in case.iter("property")}
    assert found == {"same": "5", "own[rank 0]": "0", "own[rank 1]": "1"}
    failure = case.find("failure")
    assert failure is not None
    assert failure.get("message") == "rank 1: assert 1 == 0"
    assert "rank 1:" in (failure.text or "")


SEVERAL = """
import pytest
import torch.distributed as dist

@pytest.mark.ranks(2)
@pytest.mark.parametrize("number", range(4))
def test_number(number, rank):
    dist.barrier()
    assert number != 1 or rank == 0

@pytest.mark.ranks(2)
def test_deadlock(rank):
    if rank == 1:
        dist.barrier()
"""


def test_runs_that_stop_or_choose(tmp_path: Path) -> None:
    runs = run_many(
        tmp_path,
        [
            ["-x"],
            ["-p", "cacheprovider"],
            ["-p", "cacheprovider", "--lf", "-rA"],
            ["--setup-show", "-k", "ranks2 and 0"],
            ["--setup-plan", "-k", "ranks2 and 0"],
            ["--fixtures-per-test", "-k", "ranks2 and 0"],
            ["-p", "no:logging", "-s", "-q"],
            ["-p", "no:capture", "-q", "--tb=no"],
        ],
        files={"test_several.py": SEVERAL},
    )
    stopped, _, last_failed, show, plan, per_test, without, bare = runs
    assert "1 failed, 1 passed" in stopped.text
    names = {"test_number[ranks=2-1]", "test_deadlock[ranks=2]"}
    assert set(last_failed.outcomes) == names
    assert set(last_failed.outcomes.values()) == {"FAILED"}
    assert "1 passed" in show.text
    assert "INTERNALERROR" not in plan.text + per_test.text
    assert "2 failed, 3 passed" in without.text
    assert "2 failed, 3 passed" in bare.text


@pytest.mark.slow
def test_xdist(tmp_path: Path) -> None:
    args = ("-n", "2", "-rA", "--ranks-engine", "threads,processes")
    ran = run_pytest(tmp_path, *args, files={"test_several.py": SEVERAL})
    assert "4 failed, 6 passed" in ran.text
    for engine in ("threads", "processes"):
        assert (
            ran.reasons[f"test_number[ranks=2-{engine}-1]"]
            == "rank 1: assert (1 != 1 or 1 == 0)"
        )
        shown = ran.section(f"test_deadlock[ranks=2-{engine}]")
        assert "DeadlockError: rank 0 returned; rank 1 waits for it in call #0" in shown
        assert ">  dist.barrier()" in shown


DEBUGGED = """
import pytest
import torch.distributed as dist

@pytest.mark.ranks(3)
def test_fails(rank):
    mine = rank * 10
    if rank == 1:
        assert mine == 11
    dist.barrier()

@pytest.mark.ranks(3)
def test_breakpoint(rank):
    mine = rank * 100
    if rank == 0:
        breakpoint()
    print("rank", rank, "goes on")
    dist.barrier()
    assert rank == 5
"""


@pytest.mark.slow
def test_debuggers(tmp_path: Path) -> None:
    files = {"test_debugged.py": DEBUGGED}
    after = run_pytest(tmp_path, "--pdb", "-k", "fails", files=files, stdin="p mine + 1\nc\n")
    assert "test_debugged.py(9)test_fails()" in after.text
    assert "(Pdb) 11" in after.text
    traced = run_pytest(tmp_path, "--trace", "-k", "fails", stdin="n\np mine + 2\nc\nc\nc\n")
    assert "test_debugged.py(8)test_fails()" in traced.text
    inside = run_pytest(tmp_path, "-k", "breakpoint", stdin="p mine + 7\nc\n")
    line = 17 if sys.version_info < (3, 13) else 16  # from then on, that of the breakpoint
    assert f"test_debugged.py({line})test_breakpoint()" in inside.text
    assert "(Pdb) 7" in inside.text
    # The ranks' output is collected again, that of the one that was debugged, too.
    for rank in range(3):
        heading = rf"Captured stdout call, rank {rank} -+\nrank {rank} goes on\n"
        assert re.search(heading, inside.text)


@pytest.mark.slow
def test_debuggers_need_threads(tmp_path: Path) -> None:
    args = ("--pdb", "--ranks-engine", "processes")
    ran = run_pytest(tmp_path, *args, files={"test_debugged.py": DEBUGGED}, stdin="c\n")
    assert ran.text.count("its ranks were processes, whose frames are gone") == 2
    assert "breakpoint() in a rank that is a process, which has no terminal" in ran.text
    assert "(Pdb)" not in ran.text
    traced = run_pytest(tmp_path, "--trace", "--ranks-engine", "processes", stdin="c\n")
    assert "--trace stops at the first line of a test" in traced.text
    assert "2 errors" in traced.text
    assert "PDB runcall" not in traced.text
    args, env = ("-k", "breakpoint", "--ranks-engine", "processes"), {"PYTHONBREAKPOINT": "0"}
    assert "goes on" in run_pytest(tmp_path, *args, env=env).text


MEASURED = {
    "measured.py": """
def one(value):
    if value:
        return 1
    return 2

def two():
    return 3
""",
    "test_measured.py": """
import measured
import pytest

pytestmark = pytest.mark.ranks(2)

def test_one(rank):
    assert measured.one(rank) == 2 - rank

def test_two(rank):
    assert measured.two() == 3
""",
    ".coveragerc": "[run]\npatch = subprocess\nparallel = true\n",
}


@MOSTLY_THREADS
def test_what_ranks_run_is_measured(tmp_path: Path, engine: str) -> None:
    args = ("--cov=measured", "--cov-report=term-missing", "--ranks-engine", engine)
    ran = run_pytest(tmp_path, *args, files=MEASURED)
    assert re.search(r"measured\.py +6 +0 +100%", ran.text), ran.text
    assert "Exception ignored" not in ran.text


ENDED = """
import os
import signal
import time
import pytest
import torch.distributed as dist

@pytest.mark.ranks(2)
def test_exit(rank):
    if rank == 1:
        pytest.exit("enough", returncode=7)
    dist.barrier()

@pytest.mark.ranks(2)
def test_interrupted(rank):
    if rank == 1:
        os.kill(int(os.environ["PID_OF_PYTEST"]), signal.SIGINT)
        time.sleep(5)
    dist.barrier()

@pytest.mark.ranks(2)
@pytest.mark.timeout(2, method="signal")
def test_of_pytest_timeout(rank):
    while rank == 1:
        time.sleep(0.01)

@pytest.mark.ranks(2)
def test_last():
    dist.barrier()
"""
PID = """
import os

def pytest_configure(config):
    os.environ.setdefault("PID_OF_PYTEST", str(os.getpid()))
"""


@pytest.mark.slow  # ends a run by time limits of seconds
@ENGINES
def test_the_run_can_be_ended(tmp_path: Path, engine: str) -> None:
    files = {"test_ended.py": ENDED, "conftest.py": PID}
    exits, interrupted, timeout = run_many(
        tmp_path,
        [
            ["--ranks-engine", engine, "-k", "exit or last"],
            ["--ranks-engine", engine, "-k", "interrupted or last"],
            ["--ranks-engine", engine, "-k", "of_pytest_timeout or last"],
        ],
        files=files,
    )
    assert "Exit: enough" in exits.text
    assert exits.code == 7
    assert "KeyboardInterrupt" in interrupted.text
    assert interrupted.code == 2
    shown = interrupted.text.partition("interrupted; each rank was at")[2]
    assert re.search(r"test_ended\.py:1[89] in test_interrupted", shown)
    assert "/test_ended.py:14: KeyboardInterrupt" in shown
    assert "Failed: Timeout (>2.0s) from pytest-timeout" in timeout.text
    assert "1 failed, 1 passed" in timeout.text


PRINTED = """
import logging
import sys
import pytest

@pytest.mark.ranks(2)
def test_prints(rank):
    print("on both")
    print("on rank", rank)

@pytest.mark.ranks(2)
def test_disabled(capsys, rank):
    print("hidden")
    with capsys.disabled():
        print("shown at once")
        print("shown as error", file=sys.stderr)
    assert capsys.readouterr().out == "hidden\\n"

@pytest.mark.ranks(2)
def test_logs(rank):
    logging.getLogger("live").warning("from rank %d", rank)
"""


def test_output_that_is_not_captured(tmp_path: Path) -> None:
    both = ["--ranks-engine", "threads,processes"]
    shown, live, caught = run_many(
        tmp_path,
        [["-q", "-s", *both], ["-q", "-o", "log_cli=true"], ["-q", *both]],
        files={"test_printed.py": PRINTED},
    )
    assert "6 passed" in shown.text
    for line in ("[0-1] on both", "[0]   on rank 0", "[1]   on rank 1", "[0-1] shown at once"):
        assert shown.text.count(line) == 2
    assert "hidden" not in shown.text
    for rank in range(2):
        assert f"WARNING  live:test_printed.py:21 from rank {rank}" in live.text
    assert "shown at once" in live.text
    for line in ("shown at once\n", "shown as error\n"):
        assert caught.text.count(line) == 4  # on two ranks, on each engine
    for mark in ("\x1b", "[0-1]", "hidden", "on both"):
        assert mark not in caught.text


LEFT = {
    "test_a.py": """
import pytest

@pytest.fixture(scope="module")
def broken():
    yield
    raise RuntimeError("in the teardown of the module")

@pytest.mark.ranks(2)
def test_ranks(broken):
    pass
""",
    "test_b.py": """
import os
import threading
import time

def test_nothing_is_left():
    assert type(os.environ).__name__ == "_Environ"
    assert type(time.sleep).__name__ == "builtin_function_or_method"
    assert not [each.name for each in threading.enumerate() if "rank" in each.name]
""",
}


def test_nothing_of_ranks_is_left_for_other_tests(tmp_path: Path) -> None:
    ran = run_pytest(tmp_path, files=LEFT)
    assert "2 passed, 1 error" in ran.text


def test_what_a_wide_fixture_has_patched_stays_patched_between_tests(tmp_path: Path) -> None:
    """And what it puts back in the end is what it found. What somebody has frozen for the
    collector stays frozen, too."""
    source = """
        import gc
        import os
        import pytest
        import time
        from unittest import mock

        OWN = (time.sleep, os.umask)
        gc.freeze()
        FROZEN = gc.get_freeze_count()

        @pytest.fixture(scope="session", autouse=True)
        def patched():
            with mock.patch("time.sleep") as sleep, mock.patch("os.umask") as umask:
                yield sleep, umask
            assert (time.sleep, os.umask) == OWN

        @pytest.mark.ranks(2)
        @pytest.mark.parametrize("time", range(2))
        def test_on_ranks(time):
            pass

        def test_alone(patched):
            assert (time.sleep, os.umask) == patched
            assert gc.get_freeze_count() > FROZEN / 2  # some go with what held them
    """
    (tmp_path / "test_it.py").write_text(textwrap.dedent(source))
    ran = run_pytest(tmp_path, "-rA")
    assert set(ran.outcomes.values()) == {"PASSED"} and len(ran.outcomes) == 3, ran.text
    assert "3 passed" in ran.text, ran.text


@pytest.mark.slow
def test_a_file_that_a_rank_has_made_its_output_is_closed_with_it(tmp_path: Path) -> None:
    source = """
        import os
        import pytest

        @pytest.mark.ranks(2)
        @pytest.mark.parametrize("time", range(4))
        def test_output(time, tmp_path, rank):
            file = os.open(tmp_path / f"{rank}", os.O_CREAT | os.O_WRONLY)
            os.dup2(file, 1)
            os.close(file)

        def test_none_is_left():
            numbers = os.listdir("/proc/self/fd")
            names = [os.path.realpath(f"/proc/self/fd/{number}") for number in numbers]
            assert not [name for name in names if "test_output" in name]
    """
    (tmp_path / "test_it.py").write_text(textwrap.dedent(source))
    ran = run_pytest(tmp_path, "-rA")
    assert set(ran.outcomes.values()) == {"PASSED"} and len(ran.outcomes) == 5, ran.text


@pytest.mark.slow
def test_a_group_that_somebody_has_kept_from_being_made(tmp_path: Path) -> None:
    source = """
        import pytest
        import torch.distributed as dist
        from unittest import mock

        @pytest.fixture(scope="module", autouse=True)
        def no_group():
            with mock.patch("torch.distributed.init_process_group"):
                yield

        @pytest.mark.ranks(2)
        def test_it():
            assert not dist.is_initialized()
    """
    (tmp_path / "test_it.py").write_text(textwrap.dedent(source))
    ran = run_pytest(tmp_path, "-rA")
    assert ran.outcomes == {"test_it[ranks=2]": "PASSED"}, ran.text


@pytest.mark.slow
def test_a_thread_of_an_earlier_test_does_not_move_a_rank(tmp_path: Path) -> None:
    """Threads share folder and mask with the one that started them; ranks do not any more."""
    source = """
        import os
        import pytest
        from concurrent.futures import ThreadPoolExecutor

        POOL = ThreadPoolExecutor(1)
        MASK = os.umask(0o022)
        os.umask(MASK)

        @pytest.mark.ranks(2)
        def test_starts(rank):
            if rank == 0:
                POOL.submit(int).result()

        @pytest.mark.ranks(2)
        def test_uses(rank, world, tmp_path):
            before = os.getcwd()
            world.barrier()
            if rank == 1:
                POOL.submit(os.chdir, tmp_path).result()
                POOL.submit(os.umask, 0o077).result()
            world.barrier()
            assert os.getcwd() == before

        @pytest.mark.ranks(2)
        def test_after(tmp_path, rank):
            (tmp_path / str(rank)).touch()
            assert (tmp_path / str(rank)).stat().st_mode & 0o777 == 0o666 & ~MASK
    """
    (tmp_path / "test_it.py").write_text(textwrap.dedent(source))
    ran = run_pytest(tmp_path, "-rA")
    assert set(ran.outcomes.values()) == {"PASSED"} and len(ran.outcomes) == 3, ran.text
