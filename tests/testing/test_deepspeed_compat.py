"""The shapes of other harnesses: a suite like DeepSpeed's under real pytest, and launchers."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest
import torch.distributed as dist

import phalanx
import phalanx.testing
from phalanx.testing import DistributedFixture, debug_launcher
from tests.testing.pytest_runs import run_pytest

EXPECTED = {
    "TestInit::test[ranks=3]": "PASSED",
    "TestArguments::test[ranks=2-hello-50-cube-7-purple]": "PASSED",
    "TestArguments::test[ranks=2-hello-60-cube-7-purple]": "PASSED",
    "TestCheckpoint::test_load[ranks=1-hello]": "PASSED",
    "TestCheckpoint::test_load[ranks=4-hello]": "PASSED",
    "TestCheckpoint::test_own_size[ranks=2]": "PASSED",
    "TestCheckpoint::test_broken[ranks=2]": "ERROR",
    "TestWithoutGroup::test[ranks=2]": "PASSED",
    "TestWithoutEnvironment::test[ranks=2]": "PASSED",
    "TestBase::test[ranks=2]": "PASSED",
    "TestDerived::test[ranks=3]": "PASSED",
    "TestEnds::test_fails[ranks=2]": "FAILED",
    "TestEnds::test_backend[ranks=2]": "PASSED",
    "TestHangs::test[ranks=2]": "FAILED",
}


@pytest.mark.parametrize(
    "engine", ["threads", pytest.param("processes", marks=pytest.mark.slow)]
)
def test_a_suite_of_deepspeeds_shape(engine: str, tmp_path: Path) -> None:
    ran = run_pytest(tmp_path, "-rA", "--ranks-engine", engine, samples=("distributed_tests",))
    found = {name: end for name, end in ran.outcomes.items() if end != "SKIPPED"}
    assert found == EXPECTED, ran.text
    for reason in ("not today", "no need", "needs an accelerator (requires_cuda_env)"):
        assert reason in ran.text
    assert "3 skipped" in ran.text
    assert ran.reasons["TestEnds::test_fails[ranks=2]"] == "rank 1: assert 1 == 0"
    assert "rank 1 raised AssertionError: no disk" in ran.text
    assert "1 s" in ran.reasons["TestHangs::test[ranks=2]"]
    assert "never gets here" not in ran.text.replace('RuntimeError("never gets here")', "")


def test_a_fixture_has_one_size() -> None:
    with pytest.raises(phalanx.UsageError, match="runs on one number of ranks"):

        class several(DistributedFixture):  # noqa: N801
            world_size = (1, 2)  # type: ignore[assignment]

            def run(self) -> None: ...


def launched(folder: str, word: str) -> None:
    assert dist.get_backend() == "gloo"
    assert os.environ["ACCELERATE_USE_CPU"] == "yes"
    Path(folder, f"{word}{dist.get_rank()}").write_text(str(dist.get_world_size()))


@pytest.mark.parametrize("engine", ["processes", "threads"])
def test_debug_launcher(engine: str, tmp_path: Path) -> None:
    debug_launcher(launched, (str(tmp_path), "rank"), 3, engine=engine)
    found = {path.name: path.read_text() for path in tmp_path.iterdir()}
    assert found == {"rank0": "3", "rank1": "3", "rank2": "3"}
    assert "ACCELERATE_USE_CPU" not in os.environ


def fails() -> None:
    raise ValueError(f"on rank {dist.get_rank()}")


def test_debug_launcher_tells_of_failures() -> None:
    with pytest.raises(phalanx.RankFailedError, match="ValueError: on rank 0"):
        debug_launcher(fails, engine="threads")


def test_without_pytest_the_classes_say_what_to_install(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    phalanx.testing.DistributedTest  # noqa: B018 (it is there now, and comes back)
    for name in ("deepspeed_compat", "debug_launcher"):
        monkeypatch.delitem(sys.modules, f"phalanx.testing.torch_compat.{name}", raising=False)
    for name in ("DistributedTest", "debug_launcher"):
        monkeypatch.delitem(vars(phalanx.testing), name)
    monkeypatch.setitem(sys.modules, "pytest", None)
    with pytest.raises(ModuleNotFoundError, match="not installed here: pip install pytest"):
        phalanx.testing.DistributedTest  # noqa: B018
    phalanx.testing.debug_launcher(launched, (str(tmp_path), "rank"), 1, engine="threads")
    assert (tmp_path / "rank0").exists()
