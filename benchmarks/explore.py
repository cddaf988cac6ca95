"""How many schedules the explorer makes, beside what one run costs elsewhere.

    python benchmarks/explore.py [--quick] [--json FILE]

    short       4 ranks, 50 operations in all: collectives, messages, a store
    program     4 ranks, 50 operations on each
    ddp         a training step of a small model with DistributedDataParallel, 4 ranks

Each is explored with every strategy, warm: schedules a second of the wall and of the
processor, of the best of three parts. The peers are measured in the same process: the same
function run by a kept `phalanx.World` without exploring, and bare threads that pass on a lock
as often as the threads of an explored run give way: the floor of any tool that runs one rank at
a time.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import sys
import threading
import time
from collections.abc import Callable

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

import phalanx
from phalanx.explore.explore_options import STRATEGIES

RANKS = 4
AIMS = {"short": 200.0, "program": 200.0, "ddp": 1_000 / 60}
"""Schedules a second. It makes a difference whose 50 operations are counted."""

Figures = dict[str, dict[str, float]]


def short() -> float:
    """50 operations of all ranks: 20 collectives, 10 messages, 20 of the store."""
    total = steps(2)
    store = dist.distributed_c10d._get_default_store()
    store.add("ends", 1)
    dist.all_reduce(torch.ones(8))
    if dist.get_rank() == 0:
        dist.send(torch.ones(8), dst=1)
    elif dist.get_rank() == 1:
        dist.recv(torch.empty(8), src=0)
    return total


def program() -> float:
    """50 operations on each rank: 20 collectives, 10 messages, 20 of the store."""
    return steps(10)


def steps(count: int) -> float:
    store = dist.distributed_c10d._get_default_store()
    rank, world = dist.get_rank(), dist.get_world_size()
    tensor, taken = torch.ones(8), torch.empty(8)
    for step in range(count):
        dist.all_reduce(tensor)
        if rank % 2:
            dist.recv(taken, src=rank - 1)
        else:
            dist.send(tensor, dst=rank + 1)
        store.add("count", 1)
        store.set(f"loss/{rank}", str(step))
        dist.broadcast(taken, src=step % world)
    return float(tensor[0])


def ddp() -> float:
    """One step: forward, backward with the reduction of gradients, optimizer; it is counted in
    the store, or there would be one order only."""
    torch.manual_seed(0)
    model = DistributedDataParallel(torch.nn.Linear(16, 4))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    loss = model(torch.ones(8, 16)).sum()
    loss.backward()
    optimizer.step()
    dist.distributed_c10d._get_default_store().add("steps", 1)
    return float(loss)


PROGRAMS: dict[str, Callable[[], float]] = {"short": short, "program": program, "ddp": ddp}


def measure(name: str, seconds: float) -> Figures:
    """Runs a second, of each strategy and of the peers."""
    fn = PROGRAMS[name]
    figures = {strategy: explored(fn, strategy, seconds) for strategy in STRATEGIES}
    figures["phalanx.World"] = kept_world(fn, seconds)
    figures["bare threads"] = on_bare_threads(hand_overs_of(fn), seconds)
    return figures


def explored(fn: Callable[[], float], strategy: str, seconds: float) -> dict[str, float]:
    """By `phalanx.explore` as users call it, with all that it does between two runs."""
    phalanx.explore(fn, ranks=RANKS, strategy=strategy, schedules=5, store=None)
    best = {"wall": 0.0, "processor": 0.0}
    for seed in range(3):
        schedules, wall, processor = 0, time.perf_counter(), time.process_time()
        while (left := seconds / 3 - (time.perf_counter() - wall)) > 0:
            found = phalanx.explore(
                fn, ranks=RANKS, strategy=strategy, seed=seed, seconds=left, store=None
            )
            schedules += found.schedules
        best["wall"] = max(best["wall"], schedules / (time.perf_counter() - wall))
        best["processor"] = max(
            best["processor"], schedules / (time.process_time() - processor)
        )
    return best


def kept_world(fn: Callable[[], float], seconds: float) -> dict[str, float]:
    with phalanx.World(ranks=RANKS) as world:
        return rates(lambda: world.run(fn), seconds)


def hand_overs_of(fn: Callable[[], float]) -> int:
    """How often a thread gives way in one explored run, as the system counts it."""
    phalanx.explore(fn, ranks=RANKS, strategy="random", schedules=5, store=None)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_nvcsw
    found = phalanx.explore(fn, ranks=RANKS, strategy="random", schedules=50, store=None)
    switches = resource.getrusage(resource.RUSAGE_SELF).ru_nvcsw - before
    return round(switches / found.schedules)


def on_bare_threads(hand_overs: int, seconds: float) -> dict[str, float]:
    """Threads that are started, pass on a lock so many times in all, and are joined."""

    def once() -> None:
        gates = [threading.Semaphore(0) for _ in range(RANKS)]

        def body(rank: int) -> None:
            for _ in range(hand_overs // RANKS + 1):
                gates[rank].acquire()
                gates[(rank + 1) % RANKS].release()

        threads = [threading.Thread(target=body, args=(rank,)) for rank in range(RANKS)]
        for thread in threads:
            thread.start()
        gates[0].release()
        for thread in threads:
            thread.join()

    return rates(once, seconds)


def rates(once: Callable[[], object], seconds: float) -> dict[str, float]:
    """Runs a second of the wall and of the processor: the best of three parts, warm."""
    for _ in range(3):
        once()
    best = {"wall": 0.0, "processor": 0.0}
    for _ in range(3):
        runs, wall, processor = 0, time.perf_counter(), time.process_time()
        while time.perf_counter() - wall < seconds / 3:
            once()
            runs += 1
        best["wall"] = max(best["wall"], runs / (time.perf_counter() - wall))
        best["processor"] = max(best["processor"], runs / (time.process_time() - processor))
    return best


def show(name: str, figures: Figures) -> None:
    peer = figures["phalanx.World"]["wall"]
    print(f"{name}: runs a second (aim: {AIMS[name]:.0f}), and a second of the processor")
    for what, rate in figures.items():
        share = rate["wall"] / peer
        print(
            f"  {what:14} {rate['wall']:8.0f} {rate['processor']:8.0f}   {share:6.2f} x World"
        )


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="a second for each figure")
    parser.add_argument("--json", metavar="FILE", help="write the figures there")
    options = parser.parse_args()
    torch.set_num_threads(1)
    found = {}
    for name in PROGRAMS:
        found[name] = measure(name, seconds=1.0 if options.quick else 6.0)
        show(name, found[name])
    if options.json:
        with open(options.json, "w", encoding="utf-8") as file:
            json.dump({"cores": os.cpu_count(), "torch": torch.__version__, **found}, file)
    return 0


if __name__ == "__main__":
    sys.exit(main())
