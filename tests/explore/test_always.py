"""`phalanx.always`: what must hold in every order, whatever the program catches."""

from __future__ import annotations

import contextlib
import subprocess
import sys
from typing import Any

import pytest
import torch.distributed as dist

import phalanx


def store() -> Any:
    return dist.distributed_c10d._get_default_store()


def explore(program: Any, ranks: int = 2) -> Any:
    return phalanx.explore(
        program, ranks=ranks, schedules=30, strategy="random", raises=False, store=None
    )


def test_without_a_run_it_is_an_assertion() -> None:
    phalanx.always(True, "fine")
    phalanx.always(lambda: True)
    with pytest.raises(AssertionError) as raised:
        phalanx.always([], "the list is empty", [], 3)
    assert str(raised.value) == "the invariant does not hold: the list is empty: [], 3"
    assert not isinstance(raised.value, phalanx.InvariantError)
    with pytest.raises(AssertionError, match=r"does not hold: phalanx.always\(1 > 2\)"):
        phalanx.always(1 > 2)


def test_in_a_run_that_is_not_explored_it_is_an_assertion() -> None:
    def program() -> None:
        phalanx.always(dist.get_rank() == 0, "only rank 0 comes here", dist.get_rank())

    with pytest.raises(phalanx.RankFailedError, match="only rank 0 comes here: 1") as raised:
        phalanx.run(program, ranks=2)
    assert type(raised.value.failures[1]) is AssertionError


def swallows() -> None:
    with contextlib.suppress(AssertionError):
        phalanx.always(store().add("n", 1) < 2 or dist.get_rank() == 1, "rank 0 is first")


def test_a_program_cannot_swallow_it() -> None:
    (failure,) = explore(swallows).failures
    assert failure.kind == "invariant"
    assert isinstance(failure.error, phalanx.InvariantError)
    assert isinstance(failure.error, AssertionError)
    assert failure.title == "rank 0: the invariant does not hold: rank 0 is first"


def looks_later() -> None:
    seen: list[int] = []
    phalanx.always(lambda: len(seen) < 2, "too many")
    seen.append(1)
    dist.barrier()
    seen.append(store().add("n", 1))
    dist.barrier()


def test_a_function_is_looked_at_at_each_call() -> None:
    (failure,) = explore(looks_later).failures
    assert failure.kind == "invariant"
    line = looks_later.__code__.co_firstlineno + 6
    assert f"seen when the rank came to test_always.py:{line} in looks_later" in (
        failure.story.replace("explore/", "")
    )
    with pytest.raises(phalanx.RankFailedError, match="the invariant does not hold: too many"):
        phalanx.run(looks_later, ranks=2)


def ends_wrongly() -> None:
    seen: list[int] = []
    phalanx.always(lambda: not seen, "nothing is left")
    seen.append(store().add("n", 1))


def test_a_function_is_looked_at_when_the_rank_ends() -> None:
    (failure,) = explore(ends_wrongly).failures
    assert "the invariant does not hold: nothing is left" in failure.title


def asks_others() -> None:
    def holds() -> bool:
        return bool(store().add("looks", 1))

    phalanx.always(holds)
    dist.barrier()


def test_a_function_may_make_calls_of_its_own() -> None:
    assert explore(asks_others).passed


def test_the_same_function_counts_once() -> None:
    looks: list[int] = []

    def holds() -> bool:
        looks.append(1)
        return True

    def program() -> None:
        for _ in range(10):
            phalanx.always(holds, "it holds")
        dist.barrier()

    phalanx.run(program, ranks=1)
    assert 12 <= len(looks) < 20  # ten times here, then once for each call and at the end


def test_it_needs_no_torch() -> None:
    look = "import sys, phalanx; phalanx.always(1); print('torch' in sys.modules)"
    found = subprocess.run([sys.executable, "-c", look], capture_output=True, text=True)
    assert (found.stdout, found.stderr) == ("False\n", "")
