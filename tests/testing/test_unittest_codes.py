"""The exit code of every rank counts, and a test can say which one it expects."""

from __future__ import annotations

import pytest

from tests.testing.suites import CASES, outcomes_of

EXPECTED = {
    "test_all_abort": ("passed", ""),
    "test_first_aborts": ("passed", ""),
    "test_first_aborts_late": ("passed", ""),
    "test_only_second_aborts": ("failed", "rank 0 ended with 0, but exit code -6 was expected"),
    "test_nobody_aborts": ("failed", "rank 0 ended with 0, but exit code -6 was expected"),
    "test_any_and_the_survivor_passes": ("passed", ""),
    "test_any_and_the_survivor_fails": ("error", "AssertionError: what the survivor saw"),
    "test_error_code_of_torchs_harness": ("error", "ranks 0, 1 raised SystemExit: 10"),
    "test_skip_while_another_waits": ("skipped", "rank 1: not here"),
}


@pytest.mark.timeout(100)
def test_exit_codes() -> None:
    found = outcomes_of(CASES / "codes.py", seconds=90)
    assert set(found) == {f"Codes.{name}" for name in EXPECTED}
    for name, (outcome, text) in EXPECTED.items():
        told_outcome, told = found[f"Codes.{name}"]
        assert (name, told_outcome) == (name, outcome), told
        assert text in told, name
