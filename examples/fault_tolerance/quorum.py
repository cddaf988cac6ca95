"""A quorum for each step: replicas that come and go, as torchft has them, in a hundred lines.

    phalanx run -n 4 --clock virtual examples/fault_tolerance/quorum.py

Each replica beats into a store whenever it waits and before each step. Then the first replica
that lives writes down who takes part: all whose last beat is fresh and who have asked. Who
takes part makes a group where the quorum is another one than before, whoever is behind takes
the weights of one that is ahead, and all reduce their gradients. A step that fails is tried
again with the next quorum. Replica 3 starts late and is healed. With --faults 'kill(rank=1,
at=call(6))' replica 1 is killed in its sixth call, and the others finish.
"""

import json
import os
import time
from contextlib import suppress
from datetime import timedelta

import torch
import torch.distributed as dist

STEPS = 6
BEAT = 1.0
STALE = 5 * BEAT
TIMEOUT = timedelta(seconds=20)
LATE = 3


class Manager:
    """One replica's part in the quorum."""

    def __init__(self) -> None:
        self.store, self.replica, self.replicas = next(dist.rendezvous("env://"))
        self.quorum = -1
        self.members: list[int] = []
        self._round = 0

    def beat(self) -> None:
        self.store.set(f"beat {self.replica}", str(time.monotonic()))

    def _pause(self) -> None:
        self.beat()
        time.sleep(BEAT / 4)

    def _living(self) -> list[int]:
        now, living = time.monotonic(), []
        for replica in range(self.replicas):
            key = f"beat {replica}"
            if not self.store.check([key]):
                continue
            beat = self.store.get(key)  # phalanx: ignore[message-race] an old beat will do
            if now - float(beat) < STALE:
                living.append(replica)
        return living

    def begin_step(self, step: int) -> int:
        """Wait for the next quorum with this replica in it; its furthest member's step."""
        self.beat()
        self.store.set(f"wants {self.replica}", json.dumps([self._round, step]))
        while True:
            key = f"quorum {self._round}"
            if not self.store.check([key]):
                if self._living()[:1] == [self.replica]:
                    self._decide(key)
                else:
                    self._pause()
                continue
            number, members = json.loads(self.store.get(key))
            self._round += 1
            if str(self.replica) in members:
                self._reconfigure(number, sorted(map(int, members)))
                self.steps = {int(replica): step for replica, step in members.items()}
                return max(self.steps.values())
            self.store.set(f"wants {self.replica}", json.dumps([self._round, step]))

    def _decide(self, key: str) -> None:
        """All that live are given time to ask; then the first write counts."""
        deadline = time.monotonic() + STALE
        while time.monotonic() < deadline:
            wants = self._wanting()
            if set(wants) >= set(self._living()):
                break
            self._pause()
        self.store.compare_set(key, "", json.dumps([self._round, self._wanting()]))

    def _wanting(self) -> dict[int, int]:
        wants = {}
        for replica in self._living():
            if self.store.check([f"wants {replica}"]):
                asked, step = json.loads(self.store.get(f"wants {replica}"))
                if asked >= self._round or replica not in self.members:
                    wants[replica] = step
        return wants

    def _reconfigure(self, number: int, members: list[int]) -> None:
        if members == self.members and dist.is_initialized():
            return
        self.leave()
        self.quorum, self.members = number, members
        dist.init_process_group(
            "gloo",
            store=dist.PrefixStore(f"group {number}", self.store),
            rank=members.index(self.replica),
            world_size=len(members),
            timeout=TIMEOUT,
        )

    def fail_step(self) -> None:
        """The step is tried again, with a group of its own."""
        self.leave()

    def leave(self) -> None:
        if dist.is_initialized():
            with suppress(RuntimeError):
                dist.destroy_process_group()


def heal(manager: Manager, step: int, ahead: int, weight: torch.Tensor) -> None:
    """Who is behind gets the weights of the first member that is ahead."""
    first = min(each for each, at in manager.steps.items() if at == ahead)
    if any(at < ahead for at in manager.steps.values()):
        dist.broadcast(weight, manager.members.index(first))
    if step < ahead:
        print(f"replica {manager.replica}: healed from step {step} to {ahead}")


def train(manager: Manager) -> torch.Tensor:
    weight, step = torch.zeros(2), 0
    while step < STEPS:
        try:
            ahead = manager.begin_step(step)
            heal(manager, step, ahead, weight)
            step = ahead
            if step >= STEPS:
                break
            gradient = torch.full((2,), float(step))
            time.sleep(2.0)  # what a step takes
            dist.all_reduce(gradient)
            weight += gradient / len(manager.members)
            step += 1
            if manager.replica == manager.members[0]:
                print(f"step {step}: replicas {manager.members}")
        except RuntimeError as error:
            print(f"replica {manager.replica}, step {step}: {type(error).__name__}")
            manager.fail_step()
    return weight


def main() -> None:
    if int(os.environ["RANK"]) == LATE:
        time.sleep(7.0)
    manager = Manager()
    try:
        weight = train(manager)
    finally:
        manager.leave()
    assert weight.tolist() == [sum(range(STEPS))] * 2, weight
    print(f"weight {weight[0].item()}")


if __name__ == "__main__":
    main()
