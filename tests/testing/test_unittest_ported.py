"""A suite that was made for torch's test classes runs after changing one import, and each of
its tests ends as it does with torch's own classes."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from tests.testing.suites import CASES, EXPECTTEST, Found, moved_over, outcomes_of, run

SUITE = CASES / "suite_for_torch.py"

FAILED = {
    "OnThreads.test_fails_on_all",
    "OnThreads.test_fails_on_one",
    "OnProcesses.test_fails_on_all",
    "WithOwnRun.test_fails",
}
XFAILED = {"OnThreads.test_expected_failure", "OnProcesses.test_expected_failure"}
SKIPPED = {
    "OnThreads.test_skipped_by_all",
    "OnThreads.test_skipped_by_decorator",
    "OnProcesses.test_for_many_ranks",
    "OnProcesses.test_skipped_in_the_rank",
    "OnProcesses.test_skipped_by_code",
    "KeepsItsGroup.test_4_skipped",
    "KeepsItsGroup.test_5_skipped_by_code",
}
BY_MACHINE = {
    "OnThreads.test_for_gpus",
    "OnProcesses.test_for_gpus",
    "OnProcesses.test_for_nccl",
    "OnProcesses.test_for_mpi",
}
"""Skipped or passed, as the machine is."""

TESTS = 50

DIFFERENCES = {
    "KeepsItsGroup.test_4_skipped": "failed",
    "KeepsItsGroup.test_6_after_skips": "skipped",
}
"""How tests end with torch's classes that end otherwise with ours: in its continuous class a
skip that is no exit code is a failure, and after a failure all is skipped."""


def simple(found: Found) -> dict[str, str]:
    """torch's classes make an error of every failed assertion in a rank."""
    return {
        name: "failed" if outcome == "error" else outcome
        for name, (outcome, _) in found.items()
    }


@pytest.fixture(scope="module")
def with_ours(tmp_path_factory: pytest.TempPathFactory) -> Found:
    copy = moved_over(SUITE, tmp_path_factory.mktemp("moved"))
    return outcomes_of(copy, seconds=150)


@pytest.mark.timeout(170)
def test_the_suite_runs_after_changing_one_import(with_ours: Found) -> None:
    assert len(with_ours) == TESTS
    for name, outcome in simple(with_ours).items():
        expected = (
            {"failed"}
            if name in FAILED
            else {"expected failure"}
            if name in XFAILED
            else {"skipped"}
            if name in SKIPPED
            else {"skipped", "passed"}
            if name in BY_MACHINE
            else {"passed"}
        )
        assert outcome in expected, (name, with_ours[name][1])


@pytest.mark.slow
@pytest.mark.timeout(1500)
def test_each_test_ends_as_with_torchs_own_classes(with_ours: Found, tmp_path: Path) -> None:
    (tmp_path / "expecttest.py").write_text(EXPECTTEST)
    copy = tmp_path / SUITE.name
    copy.write_text(SUITE.read_text())
    with_torchs = outcomes_of(copy, seconds=1400, PYTHONPATH=str(tmp_path))
    assert {**simple(with_ours), **DIFFERENCES} == simple(with_torchs)


@pytest.mark.slow
def test_classes_that_torch_derives_from_its_own(tmp_path: Path) -> None:
    (tmp_path / "expecttest.py").write_text(EXPECTTEST)
    found = outcomes_of(CASES / "derived.py", PYTHONPATH=str(tmp_path))
    assert found.pop("OnThreads.test_shards") == ("passed", "")
    assert found.pop("OnProcesses.test_shards") == ("passed", "")
    outcome, text = found.pop("OnProcesses.test_fails")
    assert (outcome, found) == ("failed", {})
    assert "RankAssertionError: rank 1 raised AssertionError: Scalars are not equal!" in text


@pytest.mark.slow
def test_torchs_own_tools_for_making_tests(tmp_path: Path) -> None:
    (tmp_path / "expecttest.py").write_text(EXPECTTEST)
    found = simple(outcomes_of(CASES / "parametrized.py", PYTHONPATH=str(tmp_path)))
    passed = [name for name, outcome in found.items() if outcome == "passed"]
    failed = [name for name, outcome in found.items() if outcome == "failed"]
    assert sorted(passed) == [
        "Continuous.test_size_size_1",
        "ContinuousForDevicesCPU.test_device_cpu",
        "ForDevicesCPU.test_sum_cpu_float32",
        "ForDevicesCPU.test_sum_cpu_int64",
        "OnProcesses.test_size_size_1",
        "OnProcesses.test_size_size_2",
        "OnThreads.test_sum_size_1",
        "OnThreads.test_sum_size_2",
    ]
    assert failed == ["Continuous.test_size_size_2"]


@pytest.mark.parametrize(
    "how",
    ["pytest", *(pytest.param(each, marks=pytest.mark.slow) for each in ("module", "script"))],
)
def test_every_way_to_run_it(how: str, tmp_path: Path) -> None:
    copy = moved_over(SUITE, tmp_path)
    chosen = ["OnThreads", "OnThreadsByMethod", "OnProcesses.test_all_reduce"]
    if how == "pytest":
        nodes = [f"{copy.name}::{name.replace('.', '::')}" for name in chosen]
        command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", *nodes]
    elif how == "module":
        command = [sys.executable, "-m", "unittest", *(f"{copy.stem}.{n}" for n in chosen)]
    else:
        command = [sys.executable, copy.name, *chosen]
    done = run(command, folder=tmp_path)
    assert done.returncode == 1
    if how == "pytest":
        assert "2 failed, 16 passed, 3 skipped, 1 xfailed" in done.stdout
        assert (
            "RankAssertionError: ranks 0-3 raised AssertionError: Tensor-likes" in done.stdout
        )
        replay = f'replay    pytest "{copy.name}::OnThreads::test_fails_on_one"'
        assert replay in done.stdout
    else:
        assert "Ran 22 tests" in done.stderr
        assert "FAILED (failures=1, errors=1, skipped=3, expected failures=1)" in done.stderr
        assert "rank 2 raised ValueError: only here" in done.stderr
        replay = "-m unittest suite_for_torch." if how == "module" else "suite_for_torch.py "
        assert f"replay    python {replay}OnThreads.test_fails_on_one" in done.stderr
