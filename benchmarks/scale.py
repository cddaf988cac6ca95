"""Many ranks in one process, beside what as many bare threads take.

    python benchmarks/scale.py [--quick] [--json FILE]

Each figure comes from a process of its own, which measures its floor too; the best of several
rounds counts. Times are those of the wall and, because machines are shared, of the processor.

    start       until all ranks have met in a first barrier; floor: as many threads of
                `threading` that have passed a lock on once
    memory      what a rank adds to the process by then; floor: such a thread
    all_reduce  of 16 B, for each rank; floor: the lock passed on once, all threads on one core
    mesh        `init_device_mesh` of three dimensions and one all_reduce on each, from the
                start of the run to its end
    large       64 ranks, all_reduce of 64 MiB; floor: plain copies of the same bytes
"""

from __future__ import annotations

import argparse
import json
import math
import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from contextlib import suppress

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh

import phalanx

CALLS = 40_000
"""Calls of all ranks together in one measurement."""

Figures = dict[str, float]


def resident() -> float:
    """KiB that the process has in memory."""
    with open("/proc/self/statm") as file:
        return int(file.read().split()[1]) * os.sysconf("SC_PAGESIZE") / 1024


class Clocks:
    """The wall's and the processor's."""

    def __init__(self) -> None:
        self._wall, self._processor = time.perf_counter(), time.process_time()

    def read(self, name: str, by: float = 1.0) -> Figures:
        wall, processor = time.perf_counter(), time.process_time()
        return {
            name: (wall - self._wall) / by,
            f"{name}, processor": (processor - self._processor) / by,
        }


def ranks_figures(ranks: int) -> Figures:
    """Start, memory and a small all_reduce."""
    figures: Figures = {}
    loops = max(5, CALLS // ranks)

    def program() -> None:
        first = dist.get_rank() == 0
        dist.barrier()
        if first:
            figures.update(clocks.read("start"))
            figures["memory"] = (resident() - before) / ranks
        tensor = torch.ones(4)
        for _ in range(3):
            dist.all_reduce(tensor)
        assert tensor[-1] == ranks**3
        dist.barrier()
        own = Clocks()
        for _ in range(loops):
            dist.all_reduce(tensor)
        if first:
            figures.update(own.read("all_reduce", by=loops * ranks))
        dist.barrier()

    phalanx.run(dist.get_rank, ranks=2)  # what is loaded and made once
    before, clocks = resident(), Clocks()
    phalanx.run(program, ranks=ranks)
    return figures


def threads_figures(count: int) -> Figures:
    """The same of bare threads, each of which waits for its lock and opens the next one's."""
    loops = max(5, CALLS // count)
    gates = [threading.Lock() for _ in range(count)]
    over = threading.Lock()
    for lock in (*gates, over):
        lock.acquire()
    core = min(os.sched_getaffinity(0))

    def run(place: int) -> None:
        with suppress(OSError):
            os.sched_setaffinity(0, {core})
            os.sched_setscheduler(0, os.SCHED_BATCH, os.sched_param(0))
        own, after = gates[place], gates[(place + 1) % count]
        for turn in range(loops + 1):
            own.acquire()
            if place == count - 1 and turn in (0, loops):
                over.release()
                if not turn:
                    own.acquire()
            after.release()

    before, clocks = resident(), Clocks()
    threads = [threading.Thread(target=run, args=(n,), daemon=True) for n in range(count)]
    for thread in threads:
        thread.start()
    gates[0].release()
    over.acquire()
    figures = clocks.read("start")
    figures["memory"] = (resident() - before) / count
    clocks = Clocks()
    gates[count - 1].release()
    over.acquire()
    figures.update(clocks.read("all_reduce", by=loops * count))
    return figures


def mesh_figures(*shape: int) -> Figures:
    def program() -> None:
        mesh = init_device_mesh("cpu", shape, mesh_dim_names=("x", "y", "z")[: len(shape)])
        for dim, size in enumerate(shape):
            tensor = torch.ones(4)
            dist.all_reduce(tensor, group=mesh.get_group(dim))
            assert tensor[0] == size

    phalanx.run(dist.get_rank, ranks=2)
    clocks = Clocks()
    phalanx.run(program, ranks=math.prod(shape))
    return clocks.read("mesh")


def large_figures(ranks: int) -> Figures:
    import all_reduce

    size = all_reduce.LARGE
    return {"large": min(all_reduce.phalanx_time(ranks, size, 1) for _ in range(3))}


def copies_figures(ranks: int) -> Figures:
    import all_reduce

    size = all_reduce.LARGE
    return {"large": min(all_reduce.copy_time(ranks, size, 1) for _ in range(3))}


MEASURES: dict[str, Callable[..., Figures]] = {
    "ranks": ranks_figures,
    "threads": threads_figures,
    "mesh": mesh_figures,
    "large": large_figures,
    "copies": copies_figures,
}


def measure(name: str, *sizes: int) -> Figures:
    """In a process of its own."""
    command = [sys.executable, __file__, "--one", name, *map(str, sizes)]
    ran = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True)
    found: Figures = json.loads(ran.stdout.splitlines()[-1])
    return found


def best(rounds: int, *asked: tuple[str, tuple[int, ...]]) -> list[Figures]:
    """The least of each figure, of rounds in which the measurements take turns."""
    found: list[list[Figures]] = [[] for _ in asked]
    for _ in range(rounds):
        for (name, sizes), figures in zip(asked, found, strict=True):
            figures.append(measure(name, *sizes))
    return [{key: min(each[key] for each in all_) for key in all_[0]} for all_ in found]


def shown(figure: str, value: float) -> str:
    if figure == "memory":
        return f"{value:.0f} KiB"
    if value < 1e-3:
        return f"{value * 1e6:.1f} us"
    return f"{value * 1e3:.0f} ms" if value < 1 else f"{value:.2f} s"


def row(what: str, figure: str, ours: Figures, floor: Figures | None) -> str:
    own = ours[figure]
    text = f"{what:>16}  {figure:<22} {shown(figure, own):>10}"
    if floor is None:
        return text
    return f"{text} {shown(figure, floor[figure]):>10} {own / floor[figure]:8.2f}"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="one round, fewer ranks")
    parser.add_argument("--json", metavar="FILE", help="write the figures there")
    parser.add_argument("--one", nargs="+", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.one:
        name, *sizes = options.one
        print(json.dumps(MEASURES[name](*map(int, sizes))))
        return 0
    rounds = 1 if options.quick else 3
    counts, shape = ((4, 64), (4, 4, 4)) if options.quick else ((4, 64, 1024), (16, 16, 16))
    print(f"torch {torch.__version__}, {os.cpu_count()} cores")
    print(f"{'':>16}  {'':<22} {'phalanx':>10} {'floor':>10} {'ratio':>8}")
    results = {}
    for count in counts:
        ours, floor = best(rounds, ("ranks", (count,)), ("threads", (count,)))
        results[f"{count} ranks"] = {"phalanx": ours, "floor": floor}
        for figure in ours:
            print(row(f"{count} ranks", figure, ours, floor), flush=True)
    (ours,) = best(1, ("mesh", shape))
    results["mesh"] = {"phalanx": ours}
    for figure in ours:
        print(row("x".join(map(str, shape)), figure, ours, None), flush=True)
    ranks = 4 if options.quick else 64
    ours, floor = best(rounds, ("large", (ranks,)), ("copies", (ranks,)))
    results["large"] = {"phalanx": ours, "floor": floor}
    print(row(f"{ranks} ranks, 64 MiB", "large", ours, floor))
    if options.json:
        with open(options.json, "w") as file:
            json.dump(results, file, indent=1)
    return 0


if __name__ == "__main__":
    sys.exit(main())
