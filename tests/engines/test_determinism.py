"""Same seed, same hand-overs: the fingerprint of a run proves it."""

from __future__ import annotations

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

import phalanx

RANKS = 4


def mixture() -> list[float]:
    """Every way in which ranks wait for each other, with one right result for each rank."""
    me = dist.get_rank()
    ahead, behind = (me + 1) % RANKS, (me - 1) % RANKS
    seen = torch.zeros(6)
    t = torch.tensor(float(me + 1))
    dist.all_reduce(t)
    seen[0] = t
    # point to point, round a ring
    box = torch.zeros(())
    sent = dist.isend(torch.tensor(float(me)), ahead)
    dist.recv(box, behind)
    sent.wait()
    seen[1] = box
    # asynchronous works, finished in the other order
    parts = [torch.tensor(float(me * 10 + i)) for i in range(3)]
    for work in reversed([dist.all_reduce(part, async_op=True) for part in parts]):
        work.wait()
    seen[2] = sum(parts)
    # groups of neighbours
    pairs = [dist.new_group([0, 1]), dist.new_group([2, 3])]
    half = torch.tensor(float(me))
    dist.broadcast(half, src=me // 2 * 2 + 1, group=pairs[me // 2])
    seen[3] = half
    # the store
    store = dist.distributed_c10d._get_default_store()
    store.set(f"key {me}", str(me * me))
    seen[4] = float(store.get(f"key {ahead}"))
    seen[5] = store.add("everybody", 0)
    dist.barrier()
    return seen.tolist()


def expected(me: int) -> list[float]:
    ahead, behind = (me + 1) % RANKS, (me - 1) % RANKS
    works = sum(rank * 10 + i for i in range(3) for rank in range(RANKS))
    return [10, behind, works, me // 2 * 2 + 1, ahead * ahead, 0]


def run_once(program, seed: int):
    with phalanx.World(ranks=RANKS, seed=seed) as world:
        values = world.run(program)
        return world.fingerprint, values


@pytest.mark.parametrize("seeds", [40, pytest.param(200, marks=pytest.mark.slow)])
def test_seeds_repeat_themselves_and_are_schedules_of_their_own(seeds: int) -> None:
    right = [expected(rank) for rank in range(RANKS)]
    prints = []
    for seed in range(seeds):
        first, values = run_once(mixture, seed)
        again, values_again = run_once(mixture, seed)
        assert first == again, f"seed {seed} did not repeat itself"
        assert values == values_again == right, f"seed {seed}"
        prints.append(first)
    assert len(set(prints)) > seeds // 2


def race() -> list[int]:
    """A program whose result depends on the order of ranks: who comes first?"""
    store = dist.distributed_c10d._get_default_store()
    places = []
    for lap in range(4):
        places.append(store.add(f"lap {lap}", 1))
        dist.barrier()
    return places


def test_a_seed_replays_what_depends_on_the_order() -> None:
    outcomes = [tuple(map(tuple, run_once(race, seed)[1])) for seed in range(30)]
    assert outcomes == [tuple(map(tuple, run_once(race, seed)[1])) for seed in range(30)]
    assert len(set(outcomes)) > 10
    in_order = tuple((rank + 1,) for rank in range(RANKS))
    assert tuple(places[:1] for places in outcomes[0]) == in_order


def train() -> list[float]:
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(8, 64), nn.ReLU(), nn.Linear(64, 64), nn.Linear(64, 1))
    model = DistributedDataParallel(net, bucket_cap_mb=0.01)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    generator = torch.Generator().manual_seed(dist.get_rank())
    for _ in range(3):
        optimizer.zero_grad()
        model(torch.randn(16, 8, generator=generator)).square().mean().backward()
        optimizer.step()
    return torch.cat([p.detach().flatten() for p in model.parameters()]).tolist()


def test_ddp_is_bit_equal_under_every_seed_and_repeats_itself() -> None:
    runs = {seed: run_once(train, seed) for seed in (0, 1, 2, 3)}
    for seed, (print_, values) in runs.items():
        assert run_once(train, seed) == (print_, values)
    first = runs[0][1][0]
    assert all(mine == first for _, values in runs.values() for mine in values)
    assert len({print_ for print_, _ in runs.values()}) == len(runs)


def test_a_world_repeats_itself_from_run_to_run() -> None:
    def fingerprints():
        with phalanx.World(ranks=3, seed=5) as world:
            for _ in range(3):
                world.run(dist.barrier)
                yield world.fingerprint

    first, *others = fingerprints()
    assert [first, *others] == list(fingerprints())
    assert len(set(others)) == 1, "the first run makes the groups, the others are alike"
