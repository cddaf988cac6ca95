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


def test_there_are_examples() -> None:
    assert "ddp_train" in {path.stem for path in EXAMPLES}
    assert TESTS
