"""The exit code of every rank counts, and a test can say which one it expects. Nothing is left
behind of ranks that died."""

from __future__ import annotations

from pathlib import Path

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
    "test_leaves_with_zero": ("passed", ""),
    "test_skip_while_another_waits": ("skipped", "rank 1: not here"),
}
OTHERS = {
    "OwnCheck.test_as_expected": ("passed", ""),
    "OwnCheck.test_otherwise": ("failed", "AssertionError: [0, 0]"),
    "OwnCheck.test_a_rank_raises_though": ("error", "rank 0 raised ValueError: not planned"),
    "OwnCheck.test_a_rank_dies_otherwise": ("error", "last words"),
    "OwnCheck.test_a_rank_hangs_though": ("error", "stopped   rank 1 "),
    "Seen.test_processes": ("passed", ""),
    "OwnStart.test_refused": ("error", "_start_processes(OwnStart.setUp.<locals>.start): the"),
}


@pytest.mark.timeout(100)
def test_exit_codes(tmp_path: Path) -> None:
    mark = {"TMPDIR": str(tmp_path), "PHALANX_TEST_MARK": str(tmp_path)}
    found = outcomes_of(CASES / "codes.py", seconds=90, **mark)
    expected = {f"Codes.{name}": each for name, each in EXPECTED.items()} | OTHERS
    assert set(found) == set(expected)
    for name, (outcome, text) in expected.items():
        told_outcome, told = found[name]
        assert (name, told_outcome) == (name, outcome), told
        assert text in told, name
    assert [each.name for each in tmp_path.iterdir()] == []
    assert not processes_with(f"PHALANX_TEST_MARK={tmp_path}")


def processes_with(variable: str) -> list[str]:
    found = []
    for environ in Path("/proc").glob("[0-9]*/environ"):
        try:
            if variable.encode() in environ.read_bytes():
                found.append(environ.parent.name)
        except OSError:
            continue
    return found
