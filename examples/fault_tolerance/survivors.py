"""Go on with the survivors when a rank is lost: agree who is there, make a new group, restore.

    phalanx run -n 4 --clock virtual examples/fault_tolerance/survivors.py

With --faults 'kill(rank=2, at=call(7))' rank 2 is killed in its seventh call, and three ranks
finish the training. The agreement goes through the launcher's store, which outlives groups:
each survivor says how far it has come, all wait until everybody must have noticed, and the
first one to write the list of members decides. A rank that is not on it leaves.
"""

import json
import time
from datetime import timedelta

import torch
import torch.distributed as dist

STEPS = 8
TIMEOUT = timedelta(seconds=30)
GRACE = 2 * TIMEOUT.total_seconds()  # survivors notice within the timeout of the group


class Members:
    """Who trains together, from one generation of the group to the next."""

    def __init__(self) -> None:
        self.store, self.rank, size = next(dist.rendezvous("env://"))
        self.generation = 0
        self.alive = list(range(size))

    def form_group(self) -> None:
        dist.init_process_group(
            "gloo",
            store=dist.PrefixStore(f"group {self.generation}", self.store),
            rank=self.alive.index(self.rank),
            world_size=len(self.alive),
            timeout=TIMEOUT,
        )

    def agree_again(self, step: int) -> int:
        """After an error: the step from which the survivors go on."""
        if dist.is_initialized():
            dist.destroy_process_group()
        self.generation += 1
        place = f"generation {self.generation}"
        for rank in self.alive:
            if rank == self.rank:
                self.store.set(f"{place} rank {rank}", str(step))
        time.sleep(GRACE)
        steps = {
            rank: int(self.store.get(f"{place} rank {rank}"))
            for rank in self.alive
            if self.store.check([f"{place} rank {rank}"])
        }
        mine = json.dumps([sorted(steps), min(steps.values())])
        chosen = self.store.compare_set(f"{place} members", "", mine)
        self.alive, step = json.loads(chosen)
        if self.rank not in self.alive:
            raise SystemExit(f"rank {self.rank} came too late for {place}")
        return step


def train() -> torch.Tensor:
    members = Members()
    weight = torch.zeros(2)
    history = {0: weight.clone()}  # by step; a survivor may be a step ahead of another
    step = 0
    while step < STEPS:
        try:
            if not dist.is_initialized():
                members.form_group()
            gradient = torch.full((2,), float(step))
            dist.all_reduce(gradient)
            weight += gradient / dist.get_world_size()
            step += 1
            history = {step - 1: history[step - 1], step: weight.clone()}
        except RuntimeError as error:
            print(f"step {step}: {type(error).__name__}")
            step = members.agree_again(step)
            weight = history[step].clone()
            history = {step: history[step]}
            print(f"step {step}: ranks {members.alive} go on")
    dist.destroy_process_group()
    return weight


if __name__ == "__main__":
    found = train()
    assert found.tolist() == [sum(range(STEPS))] * 2, found
    print(f"trained {STEPS} steps, weight {found[0].item()}")
