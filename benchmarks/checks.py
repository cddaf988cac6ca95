"""What checks cost: the same calls with all checks and with none, in one run.

    python benchmarks/checks.py [--quick] [--json FILE]

Rows are a small synchronous all_reduce, for all checks but the guard, small and larger
asynchronous ones, for the guard of buffers in flight, and training steps of DDP models whose
parameters have so many bytes, for the checksums of replicas. Figures are the processor's time
for one step of all ranks together (they are threads, and one runs at a time): machines are
shared, and the clock on the wall would measure the others. Rounds with and without checks are
interleaved; what counts is the ratio of the best ones.
"""

from __future__ import annotations

import argparse
import json
import math
import time
from collections.abc import Callable

import torch
import torch.distributed as dist
from torch import nn

import phalanx

LIMITS = {"sync": 1.15, "async": 2.0, "async in tens": 2.0, "DDP step": 1.1}

Step = Callable[[], object]


def one_by_one(nbytes: int) -> Step:
    tensor = torch.ones(nbytes // 4)
    return lambda: dist.all_reduce(tensor)


def later(nbytes: int) -> Step:
    tensor = torch.ones(nbytes // 4)
    return lambda: dist.all_reduce(tensor, async_op=True).wait()


def ten_at_once(nbytes: int) -> Step:
    tensor = torch.ones(nbytes // 4)

    def step() -> None:
        works = [dist.all_reduce(part, async_op=True) for part in tensor.chunk(10)]
        for work in works:
            work.wait()

    return step


def training(nbytes: int) -> Step:
    """Four layers, a batch of 32 rows."""
    width = math.isqrt(nbytes // 16)
    layers = [nn.Linear(width, width) for _ in range(4)]
    model = nn.parallel.DistributedDataParallel(nn.Sequential(*layers))
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    batch = torch.ones(32, width)

    def step() -> None:
        optimizer.zero_grad()
        model(batch).sum().backward()
        optimizer.step()

    return step


def seconds(prepare: Callable[[int], Step], nbytes: int, loops: int) -> float:
    """The process's, per step of all ranks."""
    step = prepare(nbytes)
    for _ in range(max(2, loops // 10)):
        step()
    dist.barrier()
    start = time.process_time()
    for _ in range(loops):
        step()
    dist.barrier()
    return (time.process_time() - start) / loops


ROWS = (
    ("sync", one_by_one, 16, 1000),
    ("async", later, 16, 1000),
    ("async", later, 64 << 10, 300),
    ("async", later, 4 << 20, 30),
    ("async in tens", ten_at_once, 160, 150),
    ("DDP step", training, 4 << 10, 200),
    ("DDP step", training, 4 << 20, 30),
)


def measure(
    prepare: Callable[[int], Step], nbytes: int, loops: int, *, ranks: int, rounds: int
) -> tuple[float, float]:
    best = {"all": float("inf"), "none": float("inf")}
    for _ in range(rounds):
        for checks in best:
            times = phalanx.run(seconds, prepare, nbytes, loops, ranks=ranks, checks=checks)
            best[checks] = min(best[checks], max(times))
    return best["all"], best["none"]


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--json")
    given = parser.parse_args()
    rounds = 3 if given.quick else 10
    found = []
    print(f"{'call':15}{'bytes':>9}{'ranks':>7}{'checked':>11}{'unchecked':>11}{'ratio':>8}")
    for ranks in (2, 4):
        for name, prepare, nbytes, loops in ROWS:
            with_checks, without = measure(prepare, nbytes, loops, ranks=ranks, rounds=rounds)
            ratio = with_checks / without
            print(
                f"{name:15}{nbytes:9}{ranks:7}{with_checks * 1e6:9.1f}us{without * 1e6:9.1f}us"
                f"{ratio:8.2f}" + ("" if ratio <= LIMITS[name] else "  above the limit")
            )
            found.append(
                {"call": name, "bytes": nbytes, "ranks": ranks, "ratio": round(ratio, 3)}
            )
    if given.json:
        with open(given.json, "w", encoding="utf-8") as file:
            json.dump(found, file, indent=1)


if __name__ == "__main__":
    main()
