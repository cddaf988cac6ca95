"""`phalanx run -m pytest`: each report names its test, and the test fails in pytest itself."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.forked_programs import run_forked

SUITES = Path(__file__).parent / "suites"

pytestmark = pytest.mark.programs


def run_suite(
    folder: Path, name: str, *options: str, pytest_options: tuple[str, ...] = ()
) -> subprocess.CompletedProcess[str]:
    """Run a copy of the suite in an empty folder, where no conftest and no ini file applies."""
    (folder / f"test_{name}.py").write_text((SUITES / f"{name}.py").read_text())
    (folder / "pytest.ini").write_text("[pytest]\n")
    program = ["-m", "pytest", "-q", "-p", "no:cacheprovider", *pytest_options]
    return run_forked(
        [sys.executable, "-m", "phalanx", "run", *options, *program],
        cwd=folder,
        timeout=120,
        merged=True,
    )


def of_rank(output: str, rank: int) -> str:
    """What this rank's pytest printed."""
    found = []
    for line in output.splitlines():
        label = re.match(r"\[([\d, -]+)\]( {1,})", line)
        if label is not None and str(rank) in re.split(r"[,\s-]+", label[1]):
            found.append(line[label.end() :].strip())
    return "\n".join(found)


def test_ranks_that_run_pytest_begin_each_test_together(tmp_path: Path) -> None:
    done = run_suite(tmp_path, "ranks_run_pytest", "-n", "2", pytest_options=("--tb=no",))
    assert done.returncode == 1
    first, second = of_rank(done.stdout, 0), of_rank(done.stdout, 1)
    assert "3 failed, 8 passed" in first
    assert "FAILED test_ranks_run_pytest.py::test_one_fails - phalanx.DeadlockError" in first
    assert "FAILED test_ranks_run_pytest.py::test_one_skips - phalanx.DeadlockError" in first
    assert "FAILED test_ranks_run_pytest.py::test_mismatch" in first
    assert "3 failed, 7 passed, 1 skipped" in second
    assert "FAILED test_ranks_run_pytest.py::test_one_fails - AssertionError" in second
    assert "FAILED test_ranks_run_pytest.py::test_no_group - ValueError" in second
    assert "rank 1 came to the end of test_one_skips(); rank 0 waits for it" in done.stdout
    assert "cannot be rewritten" not in done.stdout
    warning = done.stdout[done.stdout.index("warning [unwaited-work]") :]
    assert "\n  test      test_ranks_run_pytest.py::test_unwaited\n" in warning
    assert done.stdout.count("phalanx: 2 ranks, ") == 1


def test_a_report_names_the_test_of_the_rank(tmp_path: Path) -> None:
    one = ("--tb=short", "-k", "mismatch")
    for engine in ("threads", "processes"):
        done = run_suite(
            tmp_path, "ranks_run_pytest", "-n", "2", "--engine", engine, pytest_options=one
        )
        assert done.returncode == 1, done.stdout
        named = re.search(r"E +test +(\S+)", done.stdout)
        assert named is not None, done.stdout
        assert named[1] == "test_ranks_run_pytest.py::test_mismatch"


def test_no_test_is_named_where_several_come_to_the_line(tmp_path: Path) -> None:
    one = ("-k", "one_makes_it")
    for options, named in ((one, True), ((), False)):
        done = run_suite(tmp_path, "shared_line", "-n", "2", pytest_options=options)
        assert done.returncode == 3, done.stdout
        assert "\nCollectiveMismatchError: rank 1 called new_group([1])" in done.stdout
        assert ("\n  test  " in done.stdout) is named, done.stdout


@pytest.mark.parametrize("engine", ["threads", "processes"])
def test_tests_that_start_ranks_fail_for_what_became_of_them(
    tmp_path: Path, engine: str
) -> None:
    options = ("--engine", engine, "--no-record")
    done = run_suite(tmp_path, "tests_start_ranks", *options, pytest_options=("--tb=line",))
    text = done.stdout
    assert done.returncode == 1
    assert "1 failed, 5 passed, 1 error" in text
    assert "FAILED test_tests_start_ranks.py::test_does_not_look - phalanx.Collective" in text
    assert "ERROR test_tests_start_ranks.py::test_in_setup - phalanx.Collective" in text
    assert "  test      test_tests_start_ranks.py::test_does_not_look\n" in text
    assert "  test      test_tests_start_ranks.py::test_unwaited\n" in text
    closing = [line for line in text.splitlines() if line.startswith("phalanx: ")]
    assert closing == [
        "phalanx: 7 worlds of up to 2 ranks, 6 collectives on 6 groups checked: "
        "3 errors (3 mismatch), 1 warning (1 unwaited-work)"
    ]


def test_tests_that_did_not_run_are_named(tmp_path: Path) -> None:
    done = run_suite(tmp_path, "one_hangs", "-n", "2", "--timeout", "4")
    assert done.returncode == 3
    hung = of_rank(done.stdout, 1)
    assert "2 tests did not run" in hung
    assert "test_one_hangs.py::test_next\ntest_one_hangs.py::test_last" in hung
    assert "FAILED test_one_hangs.py::test_hangs - the run was stopped here" in done.stdout
    assert "\n  test      test_one_hangs.py::test_hangs\n" in done.stdout


def test_the_exit_status_is_that_of_pytest(tmp_path: Path) -> None:
    for options in (("-n", "2"), ()):
        run = [*options, "-m", "pytest", "-q", "-p", "no:cacheprovider", "--no-such-option"]
        done = run_forked(
            [sys.executable, "-m", "phalanx", "run", *run], cwd=tmp_path, timeout=120
        )
        assert done.returncode == 4, done.stderr


def test_a_pool_of_processes_is_told_of(tmp_path: Path) -> None:
    (tmp_path / "pytest.ini").write_text("[pytest]\n")
    (tmp_path / "test_pool.py").write_text(
        "import multiprocessing\n"
        "def test_pool():\n"
        "    with multiprocessing.get_context('fork').Pool(2) as pool:\n"
        "        assert pool.map(abs, [-1, 2]) == [1, 2]\n"
    )
    run = ["-m", "pytest", "-q", "-p", "no:cacheprovider"]
    done = run_forked(
        [sys.executable, "-m", "phalanx", "run", *run], cwd=tmp_path, timeout=120, merged=True
    )
    assert done.returncode == 0, done.stdout
    assert "phalanx: the workers of multiprocessing.Pool stayed processes" in done.stdout
    assert "phalanx.testing.Pool has the same methods on ranks" in done.stdout
