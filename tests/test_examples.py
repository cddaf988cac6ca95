"""Every example runs as its first lines say."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from tests.forked_programs import run_forked

ROOT = Path(__file__).parent.parent
TESTS = sorted((ROOT / "examples").glob("test_*.py"))
EXAMPLES = sorted(set((ROOT / "examples").glob("*.py")) - set(TESTS))


def _tier(path: Path) -> object:
    """One example in every run of the tests, all of them in the whole one."""
    marks = () if path.stem == "ddp_train" else pytest.mark.slow
    return pytest.param(path, marks=marks, id=path.stem)


@pytest.mark.parametrize("example", [*map(_tier, EXAMPLES)])
def test_example_runs_on_four_ranks(example: Path) -> None:
    name = example.relative_to(ROOT)
    command = [sys.executable, "-m", "phalanx", "run", "-n", "4", str(name)]
    done = run_forked(command, cwd=ROOT, timeout=50)
    assert done.returncode == 0, done.stderr
    assert done.stdout
    assert f"phalanx run -n 4 {name}" in example.read_text(), "it says how to run it"


@pytest.mark.slow
@pytest.mark.parametrize("engine", ["threads", "processes"])
@pytest.mark.parametrize("example", TESTS, ids=lambda path: path.stem)
def test_tests_on_ranks_pass(example: Path, engine: str) -> None:
    name = example.relative_to(ROOT)
    command = ["-m", "pytest", "-q", "-p", "no:cacheprovider", str(name)]
    command += ["--ranks-engine", engine]
    done = run_forked([sys.executable, *command], cwd=ROOT, timeout=50)
    assert done.returncode == 0, done.stdout
    assert f"pytest {name}" in example.read_text(), "it says how to run it"


FAULT_TOLERANT = {
    "survivors": (["--clock", "virtual"], "kill(rank=2, at=call(7))", "trained 8 steps"),
    "quorum": (
        ["--clock", "virtual"],
        "kill(rank=1, at=call(6))",
        "step 6: replicas [0, 2, 3]",
    ),
    "restart": (["--max-restarts", "3"], "kill(rank=2, at=call(9))", "restart 1 of at most 3"),
}


@pytest.mark.programs
@pytest.mark.parametrize("name", FAULT_TOLERANT)
def test_fault_tolerant_examples_outlive_the_plan_that_they_name(
    name: str, tmp_path: Path
) -> None:
    options, plan, said = FAULT_TOLERANT[name]
    path = ROOT / "examples" / "fault_tolerance" / f"{name}.py"
    assert plan in " ".join(path.read_text().split())
    command = ["-m", "phalanx", "run", "-n", "4", *options, "--faults", plan, str(path)]
    done = run_forked([sys.executable, *command, str(tmp_path)], cwd=tmp_path, timeout=50)
    assert done.returncode == 0, done.stderr
    assert said in done.stdout + done.stderr
    assert f"happened: {plan}" in done.stderr


@pytest.mark.slow
@pytest.mark.timeout(200)
@pytest.mark.parametrize("words", [["in-place"], []], ids=["torn", "whole"])
def test_a_kill_tears_the_checkpoint_that_is_overwritten(
    words: list[str], tmp_path: Path
) -> None:
    path = ROOT / "examples" / "fault_tolerance" / "checkpoint.py"
    command = ["-m", "phalanx", "explore", "-n", "2", "--max-restarts", "3", "--faults", "kill"]
    command += ["--no-store", "--schedules", "60", str(path), str(tmp_path / "saved"), *words]
    done = run_forked([sys.executable, *command], cwd=tmp_path, timeout=180)
    assert done.returncode == (1 if words else 0), done.stderr
    assert ("the shards of the checkpoint are of steps [" in done.stdout) is bool(words)


def test_there_are_examples() -> None:
    assert "ddp_train" in {path.stem for path in EXAMPLES}
    assert TESTS
