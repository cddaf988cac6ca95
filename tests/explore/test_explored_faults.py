"""Programs that are explored with faults: bugs are found, replays are exact, results count."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch.distributed as dist

import phalanx
from phalanx.cli.main import main
from phalanx.errors import DifferentResultsError
from phalanx.faults import call, kill

PROGRAMS = Path(__file__).parents[2] / "benchmarks" / "orders"


def own_store() -> Any:
    return dist.distributed_c10d._get_default_store()


def explore_program(name: str, *more: str) -> int:
    given = ["-n", "2", "-q", "--store", "none", "--faults", "kill", "--schedules", "120"]
    return main(["explore", *given, *more, str(PROGRAMS / name)])


def test_drawn_kills_find_a_lock_whose_holder_dies(capsys) -> None:
    assert explore_program("b40_lock_holder_dies.py") == 1
    out = capsys.readouterr().out
    assert "TimeoutError: rank" in out
    assert "is killed" in out
    assert "was killed at" in out


def test_the_right_twin_is_not_blamed(capsys) -> None:
    assert explore_program("r40_lock_holder_dies.py") == 0


def test_drawn_kills_find_a_torn_checkpoint(capsys) -> None:
    assert explore_program("b33_torn_checkpoint.py") == 1
    assert "is the latest without the parts of" in capsys.readouterr().out


def take_turns() -> int:
    rank, store = dist.get_rank(), own_store()
    store.set(f"begun {rank}", "1")
    if store.add("count", 1) == 2 and rank == 1:
        store.set("second", "1")
    store.set(f"ended {rank}", "1")
    if rank == 0 and store.check(["begun 1"]):
        raise_if_alone(store)
    return rank


def raise_if_alone(store: Any) -> None:
    if not store.check(["ended 1"]):
        raise ValueError("rank 1 has not ended")


def test_a_token_with_faults_repeats_its_run_exactly(capsys) -> None:
    with pytest.raises(phalanx.RankFailedError) as caught:
        phalanx.explore(take_turns, ranks=2, schedules=100, faults="kill", store=None)
    said = str(caught.value).splitlines()
    replay = next(line for line in said if "replay=" in line)
    token = replay.partition("replay='")[2].partition("'")[0]
    fingerprints = set()
    for _ in range(5):
        with pytest.raises(phalanx.RankFailedError) as again:
            phalanx.explore(take_turns, ranks=2, replay=token, store=None)
        assert "ValueError: rank 1 has not ended" in str(again.value)
        fingerprints.add(str(again.value))
    assert len(fingerprints) == 1


def lose_and_tell() -> int:
    try:
        dist.barrier()
    except RuntimeError:
        return 0
    return 1


def test_results_are_compared_with_those_without_faults(capsys) -> None:
    with pytest.raises(DifferentResultsError) as caught:
        phalanx.explore(
            lose_and_tell,
            ranks=3,
            schedules=30,
            faults=[kill(rank=1, at=call(1))],
            same_result=True,
            store=None,
        )
    assert "ranks 0, 2 returned 1 without and 0 with the faults" in str(caught.value)


def mind_own_business() -> int:
    own_store().set(f"key {dist.get_rank()}", "1")
    return dist.get_rank()


def test_a_killed_rank_has_no_result_to_compare(capsys) -> None:
    found = phalanx.explore(
        mind_own_business,
        ranks=3,
        schedules=30,
        faults="kill",
        same_result=True,
        store=None,
    )
    assert found.failures == ()


def leave_a_lock() -> None:
    store = own_store()
    if dist.get_rank() == 0:
        store.set("lock", "taken")
        store.set("lock", "free")
        store.set("done", "1")
    else:
        phalanx.always(lambda: store.check(["lock"]) is not None, "the store answers")


def test_what_always_holds_is_looked_at_with_faults_too(capsys) -> None:
    found = phalanx.explore(leave_a_lock, ranks=2, schedules=40, faults="kill", store=None)
    assert found.failures == ()
