"""When asynchronous operations complete: earliest, latest, or as the seed has it."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.distributed as dist

from phalanx.engines.run_settings import Settings
from phalanx.engines.threads.threads_engine import ThreadsEngine

pytestmark = pytest.mark.filterwarnings("ignore:.*is deprecated:FutureWarning")
UNGUARDED = "all,-in-flight-buffer,-unwaited-work"


def run(program: Callable[[], Any], completion: str | None = None, **changes: Any) -> Any:
    given = {"ranks": 2, "checks": UNGUARDED, "completion": completion, **changes}
    engine = ThreadsEngine(Settings(**given))
    try:
        return engine.run(lambda context: program())
    finally:
        engine.close()


def read_too_early() -> list[float]:
    tensor = torch.ones(1)
    work = dist.all_reduce(tensor, async_op=True)
    dist.barrier()
    seen = tensor.item()
    work.wait()
    return [seen, tensor.item()]


def test_the_earliest_moment_hides_that_a_program_reads_too_early() -> None:
    assert run(read_too_early, "earliest") == [[2.0, 2.0]] * 2
    assert run(read_too_early) == [[2.0, 2.0]] * 2


def test_the_latest_moment_shows_it() -> None:
    """To whoever comes first: its wait completes the operation for the others too."""
    assert sorted(run(read_too_early, "latest")) == [[1.0, 2.0], [2.0, 2.0]]


def test_a_message_is_put_off_too() -> None:
    def program() -> list[float]:
        peer = 1 - dist.get_rank()
        given, room = torch.ones(1), torch.zeros(1)
        works = [dist.isend(given, peer), dist.irecv(room, peer)]
        dist.barrier()
        seen = room.item()
        for work in works:
            work.wait()
        return [seen, room.item()]

    assert run(program, "earliest") == [[1.0, 1.0]] * 2
    assert [0.0, 1.0] in run(program, "latest")


def test_whoever_waits_gets_it() -> None:
    """Calls that are not asynchronous wait at once, so nothing is put off for them."""

    def program() -> float:
        tensor = torch.ones(1)
        work = dist.all_reduce(tensor, async_op=dist.get_rank() == 0)
        if work is not None:
            work.wait()
        return tensor.item()

    assert run(program, "latest") == [2.0, 2.0]


def test_asking_often_enough_completes_it() -> None:
    def program() -> tuple[bool, bool]:
        work = dist.all_reduce(torch.ones(1), async_op=True)
        dist.barrier()
        first = work.is_completed()
        asked = 0
        while not work.is_completed():
            asked += 1
            assert asked < 100
        return first, work.is_success()

    assert (False, True) in run(program, "latest")
    assert run(program, "earliest") == [(True, True)] * 2


def test_what_nobody_waits_for_completes_with_the_run() -> None:
    tensors = [torch.ones(1), torch.ones(1)]

    def program() -> float:
        tensor = tensors[dist.get_rank()]
        dist.all_reduce(tensor, async_op=True)
        dist.barrier()
        return tensor.item()

    assert run(program, "latest") == [1.0, 1.0]
    assert [tensor.item() for tensor in tensors] == [2.0, 2.0]


def test_a_group_that_is_destroyed_leaves_nothing_behind() -> None:
    def program() -> float:
        group = dist.new_group([0, 1])
        tensor = torch.ones(1)
        work = dist.all_reduce(tensor, group=group, async_op=True)
        dist.barrier()
        dist.destroy_process_group(group)
        seen = tensor.item()
        work.wait()
        return seen

    assert run(program, "latest") == [2.0, 2.0]


def many() -> list[float]:
    tensors = [torch.full((1,), float(n)) for n in range(8)]
    works = [dist.all_reduce(tensor, async_op=True) for tensor in tensors]
    seen = [tensor.item() for tensor in tensors]
    for work in works:
        work.wait()
    return seen


def test_a_seed_draws_moments_and_replays_them() -> None:
    runs = {seed: run(many, seed=seed) for seed in range(1, 9)}
    assert all(run(many, seed=seed) == seen for seed, seen in runs.items())
    assert len({str(seen) for seen in runs.values()}) > 1


def test_results_do_not_depend_on_the_moment() -> None:
    def program() -> list[float]:
        tensors = [torch.full((1,), float(n)) for n in range(6)]
        works = [dist.all_reduce(tensor, async_op=True) for tensor in tensors]
        for work in reversed(works):
            work.wait()
        return [tensor.item() for tensor in tensors]

    expected = [[2.0 * n for n in range(6)]] * 2
    for completion in ("earliest", "latest", "seeded"):
        for seed in range(3):
            assert run(program, completion, seed=seed) == expected


def test_outputs_are_poisoned_until_they_are_there() -> None:
    def program() -> Any:
        peer = 1 - dist.get_rank()
        room, numbers = torch.zeros(2), torch.zeros(4, dtype=torch.int64)
        raw = room.numpy(), numbers.numpy()
        works = [
            dist.irecv(room, peer),
            dist.all_gather_into_tensor(numbers, torch.ones(2).long(), async_op=True),
        ]
        seen = float(raw[0][0]), int(raw[1][0])
        dist.barrier()
        works.append(dist.isend(torch.ones(2), peer))
        for work in works:
            work.wait()
        return seen, room.tolist(), numbers.tolist()

    seen, room, numbers = run(program, "latest", checks="all")[0]
    assert math.isnan(seen[0]) and seen[1] < 0
    assert (room, numbers) == ([1.0, 1.0], [1, 1, 1, 1])


def test_a_tensor_that_goes_in_and_out_is_not_poisoned() -> None:
    def program() -> list[float]:
        tensor, whole = torch.ones(1), torch.full((2,), float(dist.get_rank()))
        raw = whole.numpy()
        own = whole[dist.get_rank() : dist.get_rank() + 1]
        works = [
            dist.all_reduce(tensor, async_op=True),
            dist.all_gather_into_tensor(whole, own, async_op=True),
        ]
        seen = float(raw[dist.get_rank()])
        for work in works:
            work.wait()
        return [seen, tensor.item(), *whole.tolist()]

    assert run(program, "latest", checks="all")[0] == [0.0, 2.0, 0.0, 1.0]
