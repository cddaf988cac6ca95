"""No failure is lost, on no engine, and the suite goes on. Each case of `ported/lost.py` is one
that torch's own classes report as passed, or after which they stop, or the ordinary case beside
it; `ported/endless.py` has tests that never end."""

from __future__ import annotations

import pytest

from tests.testing.suites import CASES, Found, outcomes_of

ENDINGS = {
    "test_pytest_fail_on_one": ("failed", "rank 1 raised {failed}: told by pytest"),
    "test_pytest_fail_on_all": ("failed", "ranks 0, 1 raised {failed}: told by pytest"),
    "test_pytest_skip_on_all": ("skipped", "skipped by pytest"),
    "test_skip_on_all": ("skipped", "skipped by unittest"),
    "test_skip_on_one": ("skipped", "rank 1: only here"),
    "test_skip_on_one_and_failure_on_the_other": ("failed", "rank 0 raised AssertionError: "),
    "test_skip_on_one_while_the_other_waits": ("skipped", "rank 1: only here"),
    "test_exit_1_on_one": ("error", "rank 1 raised SystemExit: 1"),
    "test_exit_with_text": ("error", "rank 1 raised SystemExit: a text means failure"),
    "test_exit_0": ("passed", ""),
    "test_failure_on_one": ("failed", "rank 1 raised AssertionError: "),
    "test_error_in_cleanup": ("error", "ranks 0, 1 raised OSError: cleaning up went wrong"),
    "test_known_failure": ("expected failure", ""),
    "test_mismatch": ("error", "rank 0 called barrier where rank 1 called all_reduce"),
    "test_waits_for_one_that_returned": ("error", "rank 1 returned; rank 0 waits for it"),
    "test_zz_the_suite_goes_on": ("passed", ""),
}
DEATHS = {
    "test_killed": ("error", "rank 1 died of SIGKILL"),
    "test_os_exit_3": ("error", "rank 1 died with exit code 3"),
    "test_segmentation_fault": ("error", "rank 1 died of SIGSEGV"),
}
OF_THREADS = {
    "test_os_exit_3": ("error", "rank 1 called os._exit with code 3"),
    "test_set_up": ("error", "ranks 0, 1 raised OSError: setting up went wrong"),
    "test_tear_down": ("error", "ranks 0, 1 raised OSError: tearing down went wrong"),
}
EXPECTED = {
    "Threads": {**ENDINGS, **OF_THREADS},
    "Processes": {**ENDINGS, **DEATHS},
    "Continuous": {**ENDINGS, **DEATHS},
}


@pytest.mark.timeout(200)
@pytest.mark.parametrize(
    "kind",
    [
        "Threads",
        pytest.param("Processes", marks=pytest.mark.slow),
        pytest.param("Continuous", marks=pytest.mark.slow),
    ],
)
def test_each_failure_is_told(kind: str) -> None:
    found = outcomes_of(CASES / "lost.py", kind, seconds=180)
    assert set(found) == {f"{kind}.{name}" for name in EXPECTED[kind]}
    failed = "Failed" if kind == "Threads" else "AssertionError"
    for name, (outcome, text) in EXPECTED[kind].items():
        told_outcome, told = found[f"{kind}.{name}"]
        assert (told_outcome, name) == (outcome, name), told
        assert text.format(failed=failed) in first_line(told), name


def first_line(text: str) -> str:
    return next((line for line in text.splitlines() if line.strip()), "")


def test_a_test_that_ran_on_no_rank_has_not_passed_and_a_skip_hides_no_deadlock() -> None:
    kinds = ["ThreadsNeverSpawned", "ProcessesNeverSpawned", "ThreeThreads"]
    found = outcomes_of(CASES / "lost.py", *kinds)
    outcome, text = found["ThreeThreads.test_skip_beside_a_deadlock"]
    assert outcome == "error"
    assert "DeadlockError: ranks 0 and 1 wait for each other" in text
    for name, call in (("Threads", "_spawn_threads"), ("Processes", "_spawn_processes")):
        outcome, text = found[f"{name}NeverSpawned.test_runs_on_no_rank"]
        assert outcome == "error"
        assert f"the test ran on no rank; call self.{call}() at the end of setUp" in text


def check_endless(found: Found) -> None:
    for name, (outcome, text) in found.items():
        if name.endswith("goes_on"):
            assert outcome == "passed", text
        else:
            assert outcome == "error", name
            assert "StallError: over the limit of 1 s" in first_line(text)
            assert "endless.py:" in text and "rank 0   returned" in text


@pytest.mark.slow
def test_a_test_that_computes_for_ever_is_ended() -> None:
    kinds = ["Threads", "Processes"]
    names = [
        f"{kind}.test_{name}" for kind in kinds for name in ("computes", "zz_the_suite_goes_on")
    ]
    found = outcomes_of(CASES / "endless.py", *names, DISTRIBUTED_TESTS_DEFAULT_TIMEOUT="1")
    assert len(found) == 4
    check_endless(found)
    for kind in kinds:
        assert "in spin_for_ever" in found[f"{kind}.test_computes"][1]
        assert "called from" in found[f"{kind}.test_computes"][1]


@pytest.mark.slow
@pytest.mark.timeout(200)
def test_all_ways_to_last_for_ever_are_ended() -> None:
    found = outcomes_of(
        CASES / "endless.py", seconds=180, DISTRIBUTED_TESTS_DEFAULT_TIMEOUT="1"
    )
    assert len(found) == 13
    check_endless(found)
