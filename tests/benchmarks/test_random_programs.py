"""Random correct programs: groups, collectives, messages and objects, asynchronous or not,
waited for in any order and called from other lines on each rank. No check may say anything."""

from __future__ import annotations

from random import Random
from typing import Any

import pytest
import torch
import torch.distributed as dist

from phalanx.engines.run_settings import Settings
from phalanx.engines.threads.threads_engine import ThreadsEngine

COLLECTIVES = ("all_reduce", "broadcast", "reduce", "all_gather", "barrier", "reduce_scatter")
STEPS = (*COLLECTIVES, "all_to_all", "message", "message", "objects", "kept")
PART = 40

pytestmark = pytest.mark.filterwarnings("ignore::FutureWarning")  # torch 2.13's, about names


def here(step: str, tensor: torch.Tensor, **how: Any) -> Any:
    return there(step, tensor, **how)


def there(step: str, tensor: torch.Tensor, *, root: int, group: Any, async_op: bool) -> Any:
    members = dist.get_world_size(group)
    how: dict[str, Any] = {"group": group, "async_op": async_op}
    if step == "all_reduce":
        return dist.all_reduce(tensor, **how)
    if step == "broadcast":
        return dist.broadcast(tensor, src=root, **how)
    if step == "reduce":
        return dist.reduce(tensor, dst=root, **how)
    if step == "all_gather":
        return dist.all_gather(
            [torch.empty_like(tensor) for _ in range(members)], tensor, **how
        )
    if step == "reduce_scatter":
        return dist.reduce_scatter_tensor(tensor.clone(), tensor.repeat(members), **how)
    if step == "all_to_all":
        return dist.all_to_all_single(torch.empty(members), torch.ones(members), **how)
    return dist.barrier(**how)


class Program:
    """One rank of a program: `shared` draws what all ranks do alike, `own` what is its own."""

    def __init__(self, seed: int) -> None:
        self.rank, self.world = dist.get_rank(), dist.get_world_size()
        self.shared, self.own = Random(seed), Random(seed * 1000 + self.rank)
        self.pending: list[tuple[Any, int | None]] = []
        self.kept = [torch.ones(4) for _ in range(3)]
        self.groups: list[tuple[Any, list[int]]] = [(None, list(range(self.world)))]
        for _ in range(self.shared.randint(0, 3)):
            count = self.shared.randint(1, self.world)
            members = sorted(self.shared.sample(range(self.world), count))
            self.groups.append((dist.new_group(members), members))

    def run(self) -> None:
        for _ in range(self.shared.randint(3, 25)):
            self.step()
            while self.pending and self.own.random() < 0.2:
                self.pending.pop(self.own.randrange(len(self.pending)))[0].wait()
        self.own.shuffle(self.pending)
        self.wait_for(self.pending)

    def wait_for(self, some: list[tuple[Any, int | None]]) -> None:
        for work, _ in some:
            work.wait()
        self.pending = [each for each in self.pending if each not in some]

    def step(self) -> None:
        step, (group, members) = self.shared.choice(STEPS), self.shared.choice(self.groups)
        size, root = self.shared.choice([1, 1, 4, 7]), self.shared.choice(members)
        asynchronous, place = self.shared.random() < 0.5, self.shared.randrange(3)
        pair = self.shared.sample(range(self.world), 2)
        if step == "message":
            self.message(size, *pair, tag=self.shared.choice([0, 0, 3]))
        elif self.rank not in members:
            return
        elif step == "objects":
            text = "x" * self.own.randint(0, 50)
            dist.all_gather_object([None] * len(members), text, group=group)
        elif step == "kept":
            self.reduce_kept(place, group, asynchronous)
        else:
            call = self.own.choice([here, there])
            work = call(step, torch.ones(size), root=root, group=group, async_op=asynchronous)
            self.pending += [(work, None)] if asynchronous else []

    def message(self, size: int, source: int, target: int, *, tag: int) -> None:
        if self.rank == source:
            self.pending.append((dist.isend(torch.ones(size), target, tag=tag), None))
        elif self.rank == target:
            self.pending.append((dist.irecv(torch.ones(size), source, tag=tag), None))

    def reduce_kept(self, place: int, group: Any, asynchronous: bool) -> None:
        """A tensor that lives on, written between its reductions once they were waited for."""
        self.wait_for([each for each in self.pending if each[1] == place])
        self.kept[place].mul_(0.5)
        work = dist.all_reduce(self.kept[place], group=group, async_op=asynchronous)
        self.pending += [(work, place)] if asynchronous else []


@pytest.mark.parametrize(
    "part", [0, *(pytest.param(part, marks=pytest.mark.slow) for part in (1, 2, 3))]
)
def test_random_correct_programs_stay_silent(part: int) -> None:
    for seed in range(part * PART, (part + 1) * PART):
        found: list[Any] = []
        ranks = Random(seed).randint(2, 5)
        settings = Settings(ranks=ranks, seed=seed % 3, on_findings=found.extend, timeout=30)
        engine = ThreadsEngine(settings)
        try:
            engine.run(lambda context, seed=seed: Program(seed).run())
        finally:
            engine.close()
        assert not found, f"seed {seed}"
