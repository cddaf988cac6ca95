"""`phalanx.testing.Pool`: the methods of `torch.multiprocessing.Pool`, on ranks."""

from __future__ import annotations

import os
from collections.abc import Iterator
from functools import partial

import pytest
import torch
import torch.distributed as dist

from phalanx.errors import CollectiveMismatchError, RankFailedError, UsageError
from phalanx.testing import Pool

PAIRS = [(rank, 2) for rank in range(2)]


def begin(word: str) -> None:
    os.environ["BEGUN_WITH"] = word


def set_up(rank: int, size: int) -> None:
    os.environ.update(MASTER_ADDR="localhost", MASTER_PORT="8088")
    dist.init_process_group("gloo", rank=rank, world_size=size)


def total(rank: int, size: int, *, factor: int = 1) -> tuple[int, int]:
    t = torch.tensor(factor * (rank + 1))
    dist.all_reduce(t)
    return dist.get_rank(), int(t)


def fail_on_one(rank: int, size: int) -> None:
    if rank == 1:
        raise KeyError("one")
    total(rank, size)


def disagree(rank: int, size: int) -> None:
    if rank:
        dist.barrier()
    else:
        total(rank, size)


def look(number: int) -> tuple[int, str]:
    return number, os.environ["BEGUN_WITH"]


@pytest.fixture(params=["threads", pytest.param("processes", marks=pytest.mark.programs)])
def pool(request: pytest.FixtureRequest) -> Iterator[Pool]:
    with Pool(2, begin, ("word",), engine=request.param) as made:
        made.starmap(set_up, PAIRS)
        yield made


def test_tasks_run_on_ranks_with_the_group_of_an_earlier_call(pool: Pool) -> None:
    assert pool.starmap(partial(total, factor=2), PAIRS) == [(0, 6), (1, 6)]
    assert pool.map(look, range(5)) == [(number, "word") for number in range(5)]
    assert list(pool.imap(look, [7])) == [(7, "word")]
    assert pool.apply(divmod, (7, 2)) == (3, 1)
    assert pool.apply(dict, kwds={"a": 1}) == {"a": 1}
    assert pool.map(look, []) == []


def test_errors_are_raised_and_the_next_call_finds_a_group(pool: Pool) -> None:
    with pytest.raises(KeyError, match="one") as caught:
        pool.starmap(fail_on_one, PAIRS)
    assert isinstance(caught.value.__cause__, RankFailedError)
    assert pool.starmap(total, PAIRS) == [(0, 3), (1, 3)]
    with pytest.raises(CollectiveMismatchError, match="rank 0 called all_reduce where rank 1"):
        pool.starmap(disagree, PAIRS)
    assert pool.starmap(total, PAIRS) == [(0, 3), (1, 3)]
    assert pool.map(look, [0]) == [(0, "word")]


def test_the_ranks_can_have_a_group_from_the_start() -> None:
    with Pool(2, init=True) as made:
        assert made.starmap(total, PAIRS) == [(0, 3), (1, 3)]


def test_a_closed_pool_runs_nothing() -> None:
    made = Pool(2)
    with pytest.raises(ValueError, match="still running"):
        made.join()
    made.close()
    made.join()
    made.terminate()
    with pytest.raises(ValueError, match="not running"):
        made.map(look, [0])


def test_a_wrong_argument_is_refused() -> None:
    with pytest.raises(TypeError, match="callable"):
        Pool(2, "begin")  # type: ignore[arg-type]
    with pytest.raises(UsageError, match="maxtasksperchild=3"):
        Pool(2, maxtasksperchild=3)
    with pytest.raises(UsageError, match="0"):
        Pool(0)


def test_an_initializer_that_fails_is_told_at_once() -> None:
    with pytest.raises(ZeroDivisionError):
        Pool(2, divmod, (1, 0))
