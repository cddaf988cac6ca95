"""Real training code on ranks equals single-process training on the joined batch.

The programs are those of `tests/device/check_cuda.py`, which runs them on a GPU as well.
"""

from __future__ import annotations

import runpy
from pathlib import Path
from typing import Any

import pytest

CHECKS = Path(__file__).parents[1] / "device" / "check_cuda.py"


@pytest.fixture(scope="module")
def checks() -> dict[str, Any]:
    return runpy.run_path(str(CHECKS))


@pytest.mark.parametrize("name", ["ddp", "fsdp", "tensor_parallel", "pipeline"])
def test_training_equals_one_process(checks: dict[str, Any], name: str) -> None:
    checks["check_training"](name, "cpu", "gloo")


def test_the_check_can_fail(checks: dict[str, Any]) -> None:
    wanted = checks["reference"]("cpu")
    with pytest.raises(AssertionError):
        checks["close"](wanted + 1e-3, wanted)
