"""The same programs in threads here and in processes on real Gloo: the same results."""

from __future__ import annotations

import sys
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
import torch

import phalanx
from tests.backend.programs import PROGRAMS, RANKS
from tests.forked_programs import start_forked

ROOT = Path(__file__).parent.parent.parent


@pytest.fixture(scope="module")
def on_gloo(tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, Any]]:
    """What every rank of the processes got from each program."""
    folder = tmp_path_factory.mktemp("gloo")
    command = [sys.executable, "-m", "tests.backend.programs"]
    ends = []
    with ExitStack() as stack:
        processes = [
            stack.enter_context(start_forked([*command, str(rank), str(folder)], cwd=ROOT))
            for rank in range(RANKS)
        ]
        for process in processes:
            _, text = process.communicate(timeout=50)
            ends.append((process.returncode, text))
    failed = [f"rank {rank}: {end[1]}" for rank, end in enumerate(ends) if end[0]]
    assert not failed, "\n".join(failed)
    return [torch.load(folder / f"{rank}.pt", weights_only=False) for rank in range(RANKS)]


# torch 2.13's about its own differentiable collectives, which programs still use
@pytest.mark.filterwarnings(r"ignore:torch\.distributed\.nn\.functional:FutureWarning")
# torch 2.11's about sparse tensors, also where the checks are on
@pytest.mark.filterwarnings(r"ignore:Sparse invariant checks:UserWarning")
@pytest.mark.parametrize("name", PROGRAMS)
def test_the_same_as_on_gloo(name: str, on_gloo: list[dict[str, Any]]) -> None:
    for rank, result in enumerate(phalanx.run(PROGRAMS[name], ranks=RANKS, backend="gloo")):
        assert_same(result, on_gloo[rank][name])


def assert_same(ours: Any, theirs: Any) -> None:
    if isinstance(theirs, torch.Tensor):
        torch.testing.assert_close(ours, theirs)
    elif isinstance(theirs, (list, tuple)):
        assert type(ours) is type(theirs) and len(ours) == len(theirs)
        for one, other in zip(ours, theirs, strict=True):
            assert_same(one, other)
    elif isinstance(theirs, frozenset):
        assert ours >= theirs and bool(ours) == bool(theirs)
    else:
        assert ours == theirs
