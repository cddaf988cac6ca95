"""Refusals, and results that no single process has: the same on threads and on real Gloo."""

from __future__ import annotations

from typing import Any

import pytest
import torch

import phalanx
from tests.stack.programs import PROGRAMS, Program, run

# The warnings are torch's, about what these programs use and about what they are refused
pytestmark = pytest.mark.filterwarnings("ignore")

RANKS = 3


@pytest.mark.parametrize("program", PROGRAMS, ids=lambda program: program.__name__)
def test_as_on_gloo(program: Program) -> None:
    """Processes of its own for each: one that fails leaves messages on the way."""
    here = phalanx.run(run, program, ranks=RANKS, backend="gloo")
    there = phalanx.run(
        run, program, ranks=RANKS, engine="processes", backend="gloo", timeout=50
    )
    for rank, (got, wanted) in enumerate(zip(here, there, strict=True)):
        assert_alike(got, wanted, f"rank {rank}")


def assert_alike(got: Any, wanted: Any, where: str) -> None:
    """Tensors up to the order of additions, everything else exactly."""
    if isinstance(wanted, dict):
        assert isinstance(got, dict), f"{where}: {got}"
        assert got.keys() == wanted.keys(), where
        for name, value in wanted.items():
            assert_alike(got[name], value, f"{where}, {name}")
    elif isinstance(wanted, torch.Tensor):
        torch.testing.assert_close(
            got, wanted, atol=1e-6, rtol=0, msg=lambda t: f"{where}: {t}"
        )
    else:
        assert got == wanted, where
