"""What Gloo refuses is refused here, with an error of the same class, and nothing else is.

Real Gloo is the referee: the same calls run in processes. What Gloo answers with wrong data
is refused here, too, and Gloo must still get it wrong, or the rule has had its day.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
import torch.distributed._functional_collectives as functional

import phalanx
from tests.backend.refusals import (
    CALLS,
    MORE_DTYPES,
    RANKS,
    SOME_DTYPES,
    WRONG,
    answer,
    by_dtype,
)
from tests.forked_programs import start_forked

# of torch 2.13, about names that 2.11 has only, about complex32 and compressed tensors
pytestmark = [
    pytest.mark.filterwarnings("ignore::FutureWarning"),
    pytest.mark.filterwarnings("ignore:ComplexHalf support:UserWarning"),
    pytest.mark.filterwarnings("ignore:Sparse CSR tensor support:UserWarning"),
]

ROOT = Path(__file__).parent.parent.parent


def on_gloo(folder: Path, wanted: str) -> list[dict[str, Any]]:
    command = [sys.executable, "-m", "tests.backend.refusals"]
    with ExitStack() as stack:
        processes = [
            stack.enter_context(
                start_forked([*command, str(rank), str(folder), wanted], cwd=ROOT)
            )
            for rank in range(RANKS)
        ]
        for process in processes:
            assert process.wait(timeout=55) == 0, process.communicate()
    return [torch.load(folder / f"{rank}.pt", weights_only=False) for rank in range(RANKS)]


@pytest.fixture(scope="module")
def gloo(tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, Any]]:
    return on_gloo(tmp_path_factory.mktemp("gloo"), "quick")


def here(calls: dict[str, Callable[[], Any]]) -> list[dict[str, frozenset[str]]]:
    def program() -> dict[str, frozenset[str]]:
        return {name: answer(call) for name, call in calls.items()}

    return phalanx.run(program, ranks=RANKS, backend="gloo")


def check_same(
    ours: list[dict[str, frozenset[str]]], theirs: list[dict[str, frozenset[str]]]
) -> None:
    """Ours may be caught by more classes."""
    differences = [
        f"{name}, rank {rank}: {sorted(ours[rank][name])} here, {sorted(found[name])} on Gloo"
        for rank, found in enumerate(theirs)
        for name in ours[rank]
        if bool(found[name]) != bool(ours[rank][name]) or not found[name] <= ours[rank][name]
    ]
    assert not differences, "\n".join(differences)


def test_mistakes_and_layouts(gloo: list[dict[str, Any]]) -> None:
    check_same(here(CALLS), gloo)


def test_dtypes_and_reduce_operations(gloo: list[dict[str, Any]]) -> None:
    ours = here(dict(by_dtype(SOME_DTYPES)))
    check_same(ours, gloo)
    refused = sum(map(bool, ours[0].values()))
    assert 100 < refused < len(ours[0]) - 100


@pytest.mark.slow
def test_more_dtypes(tmp_path: Path) -> None:
    check_same(here(dict(by_dtype(MORE_DTYPES))), on_gloo(tmp_path, "more"))


@pytest.mark.parametrize("name", WRONG)
def test_what_gloo_gets_wrong_is_refused(name: str, gloo: list[dict[str, Any]]) -> None:
    results = [found[name] for found in gloo]
    assert not all(torch.equal(left, right) for left, right in results)

    def program() -> str:
        with pytest.raises(dist.DistError) as raised:
            WRONG[name]()
        return f"{type(raised.value).__name__}: {raised.value}"

    texts = phalanx.run(program, ranks=RANKS, backend="gloo")
    assert "pass c = tensor.contiguous()" in texts[0]
    # where only the root can see it, the others wait for it in vain
    known = ("InvalidCallError", "differs   memory layout", "rank 0 returned")
    assert all(any(told in text for told in known) for text in texts)


def test_a_refused_call_leaves_the_group_as_it_was() -> None:
    def program() -> float:
        for _ in range(3):
            with pytest.raises(RuntimeError, match="take no int16"):
                dist.all_reduce(torch.ones(1, dtype=torch.int16))
        total = torch.ones(1)
        dist.all_reduce(total)
        return total.item()

    assert phalanx.run(program, ranks=RANKS) == [RANKS] * RANKS


def test_nccl_takes_no_cpu_tensors_and_says_so() -> None:
    def program() -> None:
        with pytest.raises(RuntimeError, match="no backend for cpu tensors"):
            dist.all_reduce(torch.ones(1))

    phalanx.run(program, ranks=2, backend="nccl")


def test_functional_collectives_take_leaves() -> None:
    def program() -> list[float]:
        leaf = torch.ones(2, requires_grad=True)
        found = functional.all_gather_tensor(leaf, 0, dist.group.WORLD)
        return found.tolist()

    assert phalanx.run(program, ranks=2, backend="gloo") == [[1.0] * 4] * 2


def test_leaves_are_written_under_no_grad() -> None:
    def program() -> bool:
        outputs = [torch.zeros(2, requires_grad=True) for _ in range(RANKS)]
        with torch.no_grad():
            dist.all_gather(outputs, torch.ones(2))
        return all(output.is_leaf and output.sum() == 2 for output in outputs)

    assert all(phalanx.run(program, ranks=RANKS, backend="gloo"))
