"""How long a deadlock takes to be reported, from the moment the last rank parks.

    python benchmarks/deadlock.py [--json FILE]

For each way to hang and each number of ranks, in the threads engine:

    verdict   from the last rank's park until the error is made and every rank woken with it
    raised    until the first rank has the error in hand
    ended     until `phalanx.run` raises it: all ranks unwound, all threads ended
    ratio     verdict, against a barrier of as many ranks: how many calls a proof costs

The aim is that the first rank has the error within 10 ms on 64 ranks and within 100 ms on
1,024. Several programs hang before their last rank has come; then the time counts from when
that is noticed.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from collections.abc import Callable
from pathlib import Path

import torch
import torch.distributed as dist

import phalanx
from phalanx.engines.threads.referee_host import Judge

AIMS = {64: 0.010, 1024: 0.100}

Program = Callable[[int, int], None]


def ring(rank: int, size: int) -> None:
    """Everyone receives first."""
    dist.recv(torch.empty(4), src=(rank - 1) % size)


def skipped(rank: int, size: int) -> None:
    """The last rank leaves after ten steps, the others go on."""
    value = torch.ones(4)
    for _ in range(10):
        dist.all_reduce(value)
    if rank < size - 1:
        dist.all_reduce(value)


def two_groups(rank: int, size: int) -> None:
    """Halves use two groups in opposite orders."""
    first, second = dist.new_group(), dist.new_group()
    groups = (first, second) if rank < size // 2 else (second, first)
    for group in groups:
        dist.all_reduce(torch.ones(4), group=group)


def any_source(rank: int, size: int) -> None:
    """Everyone waits for anyone."""
    dist.recv(torch.empty(4))


def missing_key(rank: int, size: int) -> None:
    """Everyone waits for a key."""
    dist.distributed_c10d._get_default_store().get("never")


def mismatched(rank: int, size: int) -> None:
    """The calls of half of the ranks differ, and some never come."""
    value = torch.ones(4)
    for _ in range(10):
        dist.all_reduce(value)
    if rank == size - 1:
        return
    dist.all_reduce(value) if rank % 2 else dist.broadcast(value, 0)


PROGRAMS: tuple[Program, ...] = (
    ring,
    skipped,
    two_groups,
    any_source,
    missing_key,
    mismatched,
)


WAYS = ("judge_stuck", "_condemn")
"""When nobody can move, and when some never will while others can."""


class Clock:
    """Notes when the judgement begins and ends, and when the first rank has the error."""

    began = told = raised = 0.0

    def __enter__(self) -> Clock:
        self._originals = {name: getattr(Judge, name) for name in WAYS}
        for name, original in self._originals.items():
            setattr(Judge, name, self._timed(original))
        return self

    def __exit__(self, *exc: object) -> None:
        for name, original in self._originals.items():
            setattr(Judge, name, original)

    def _timed(self, original: Callable[..., None]) -> Callable[..., None]:
        def judge(*args: object) -> None:
            self.began = self.began or time.perf_counter()
            original(*args)
            self.told = self.told or time.perf_counter()

        return judge


def measure(program: Program, size: int) -> dict[str, float]:
    clock = Clock()

    def body() -> None:
        try:
            program(dist.get_rank(), size)
        except RuntimeError:
            clock.raised = clock.raised or time.perf_counter()
            raise

    with clock:
        try:
            phalanx.run(body, ranks=size)
        except phalanx.PhalanxError:
            ended = time.perf_counter()
        else:
            raise SystemExit(f"{program.__name__} did not hang")
    return {
        "verdict": clock.told - clock.began,
        "raised": clock.raised - clock.began,
        "ended": ended - clock.began,
    }


def barrier_seconds(size: int, rounds: int = 20) -> float:
    def body() -> float:
        dist.barrier()
        begin = time.perf_counter()
        for _ in range(rounds):
            dist.barrier()
        return (time.perf_counter() - begin) / rounds

    return max(phalanx.run(body, ranks=size))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--ranks", default="4,64,1024", metavar="N,...")
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--json", type=Path, metavar="FILE")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    table: dict[str, dict[str, float]] = {}
    print(f"{'program':14}{'ranks':>6}{'verdict':>11}{'raised':>11}{'ended':>11}{'ratio':>8}")
    for size in map(int, arguments.ranks.split(",")):
        barrier = barrier_seconds(size)
        for program in PROGRAMS:
            runs = [measure(program, size) for _ in range(arguments.repeats)]
            row = {name: statistics.median(run[name] for run in runs) for name in runs[0]}
            row["ratio"] = row["verdict"] / barrier
            table[f"{program.__name__}/{size}"] = row
            times = "".join(
                f"{row[name] * 1e3:8.2f} ms" for name in ("verdict", "raised", "ended")
            )
            late = "  over the aim" if row["raised"] > AIMS.get(size, 1.0) else ""
            print(f"{program.__name__:14}{size:6}{times}{row['ratio']:8.1f}{late}", flush=True)
    if arguments.json is not None:
        arguments.json.write_text(json.dumps(table, indent=1) + "\n", encoding="ascii")


if __name__ == "__main__":
    main()
