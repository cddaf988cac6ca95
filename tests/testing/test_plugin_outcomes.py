"""No failure is lost: every way in which a rank can end, on threads and on processes."""

from __future__ import annotations

import pytest

from tests.testing.pytest_runs import Ran, run_pytest

pytestmark = pytest.mark.timeout(180)  # whole runs of pytest, with many processes

ENDS = {
    "test_passes": "PASSED",
    "test_fail_on_one": "FAILED rank 1: Failed: on one",
    "test_fail_on_all": "FAILED both ranks: Failed: on all",
    "test_assert_on_one": "FAILED rank 1: assert 1 == 0",
    "test_skip_on_one": "PASSED",
    "test_others_wait_for_a_skipped": "FAILED DeadlockError: rank 1 returned",
    "test_sys_exit_1": "FAILED rank 1: SystemExit: 1",
    "test_sys_exit_0": "FAILED both ranks: SystemExit: 0",
    "test_os_exit_3": "FAILED rank 1: ",
    "test_os_exit_0": "FAILED rank 1: ",
    "test_odd_exception": "FAILED rank 1: test_ends.test_odd_exception.<locals>.Odd: odd",
    "test_xfail_call": "XFAIL known",
    "test_xfail_call_hides_nothing": "FAILED rank 0: ValueError: not known",
    "test_xfail_mark": "XFAIL",
    "test_xfail_mark_other_error": "FAILED both ranks: KeyError: 'other'",
    "test_xpass_strict": "FAILED [XPASS(strict)]",
    "test_broken_setup": "FAILED rank 1: RuntimeError: cannot make",
    "test_broken_teardown": "FAILED rank 1: RuntimeError: cannot drop",
    "test_raises": "PASSED",
    "test_teardown_communicates": "FAILED rank 1: assert 1 == 0",
    "test_deadlock": "FAILED DeadlockError: rank 0 returned; rank 1 waits for it in call #0",
    "test_goes_on": "PASSED",
    "test_broken_text": "FAILED rank 1: test_ends.test_broken_text.<locals>.Broken: <exception",
    "test_xfail_mark_on_one_only": "FAILED rank ",
    "test_xfail_mark_by_a_rank": "XFAIL found out late",
    "test_xfail_mark_and_teardown": "FAILED rank 1: assert 1 == 0",
}
SKIPS = {
    "33": "not today",
    "42": "as unittest does",
    "46": "could not import 'no_such_module'",
}


@pytest.fixture(scope="module")
def ends(tmp_path_factory: pytest.TempPathFactory) -> Ran:
    folder = tmp_path_factory.mktemp("ends")
    args = ("-rA", "--tb=no", "--ranks-engine", "threads,processes")
    return run_pytest(folder, *args, samples=("ends",), env={"COLUMNS": "200"})


@pytest.mark.parametrize("engine", ["threads", "processes"])
@pytest.mark.parametrize("name", ENDS)
def test_end(ends: Ran, name: str, engine: str) -> None:
    node = f"{name}[ranks=2-{engine}]"
    told = f"{ends.outcomes[node]} {ends.reasons[node]}".strip()
    assert told.startswith(ENDS[name])


def test_how_a_rank_left(ends: Ran) -> None:
    assert (
        ends.reasons["test_os_exit_3[ranks=2-threads]"] == "rank 1: called os._exit with code 3"
    )
    assert ends.reasons["test_os_exit_3[ranks=2-processes]"] == "rank 1: died with exit code 3"


@pytest.mark.parametrize("engine", ["threads", "processes"])
def test_who_skipped_is_told_where_others_wait(ends: Ran, engine: str) -> None:
    told = ends.reasons[f"test_others_wait_for_a_skipped[ranks=2-{engine}]"]
    assert told.endswith("(rank 1 skipped)")


def test_skips_on_all_ranks(ends: Ran) -> None:
    for line, reason in SKIPS.items():
        assert f"SKIPPED [2] test_ends.py:{line}: {reason}" in ends.text


def test_all_are_counted(ends: Ran) -> None:
    assert "38 failed, 10 passed, 6 skipped, 6 xfailed" in ends.text
    assert ends.code == 1


KILLED = """
import ctypes, os, signal
import pytest
import torch.distributed as dist

pytestmark = pytest.mark.ranks(3, engine="processes")

def test_killed(rank):
    print("rank", rank, "is here")
    if rank == 1:
        os.kill(os.getpid(), signal.SIGKILL)
    dist.barrier()

def test_next():
    dist.barrier()

def test_fault(rank):
    if rank == 2:
        ctypes.string_at(0)
    dist.barrier()

def test_after():
    dist.barrier()
"""


@pytest.mark.slow
def test_a_killed_rank_costs_one_test(tmp_path) -> None:  # type: ignore[no-untyped-def]
    ran = run_pytest(tmp_path, "-rA", files={"test_killed.py": KILLED})
    assert list(ran.outcomes.values()).count("PASSED") == 2
    assert ran.reasons["test_killed[ranks=3]"] == "rank 1: died of SIGKILL"
    assert ran.reasons["test_fault[ranks=3]"] == "rank 2: died of SIGSEGV"
    killed = ran.section("test_killed[ranks=3]")
    assert "stopped   ranks 0, 2 in barrier() (call #0) at test_killed.py:12" in killed
    for rank in range(3):  # what the dead one had printed, too
        assert f"Captured stdout call, rank {rank} --" in killed
        assert f"rank {rank} is here" in killed
    assert ">  ctypes.string_at(0)" in ran.section("test_fault[ranks=3]")


HANGS = """
import time
import pytest
import torch.distributed as dist

@pytest.mark.ranks(2, timeout=1.5)
@pytest.mark.parametrize("how", ["spins", "sleeps"])
def test_hangs(rank, how):
    while rank == 1:
        time.sleep(0.01 if how == "sleeps" else 0)

def test_ordinary():
    pass

@pytest.mark.ranks(2)
def test_goes_on():
    dist.barrier()
"""


@pytest.mark.slow
@pytest.mark.parametrize("engine", ["threads", "processes"])
def test_a_hung_test_does_not_hang_pytest(tmp_path, engine: str) -> None:  # type: ignore[no-untyped-def]
    ran = run_pytest(
        tmp_path, "-rA", "--ranks-engine", engine, files={"test_hangs.py": HANGS}, timeout=50
    )
    assert "2 failed, 2 passed" in ran.text
    for how in ("spins", "sleeps"):
        shown = ran.section(f"test_hangs[ranks=2-{how}]")
        assert "StallError: over the limit of 1.5 s" in shown
        assert "test_hangs.py:10 in test_hangs" in shown
