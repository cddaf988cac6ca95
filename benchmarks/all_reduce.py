"""all_reduce on ranks as threads, against torch's threaded group and against Gloo processes.

    python benchmarks/all_reduce.py [--quick] [--json FILE]

Everything is measured in one run, interleaved, because machines are shared and noisy; what
counts are the ratios. Each figure is the time that all ranks together need for one
all_reduce; the best of several rounds is taken for every contender alike. For the large
tensor a lower bound is measured too: the same bytes moved by plain copies.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable

import torch
import torch.distributed as dist

SMALL, LARGE = 16, 64 << 20
GLOO_MOST_RANKS = 8


def time_all_reduce(nbytes: int, loops: int) -> float:
    """Seconds per all_reduce, as one rank sees it."""
    tensor = torch.ones(nbytes // 4)
    for _ in range(max(2, loops // 10)):
        dist.all_reduce(tensor, op=dist.ReduceOp.MAX)
    dist.barrier()
    start = time.perf_counter()
    for _ in range(loops):
        dist.all_reduce(tensor)
    seconds = (time.perf_counter() - start) / loops
    dist.barrier()  # a rank that ends gives its memory back: milliseconds that are none of this
    return seconds


def phalanx_time(ranks: int, nbytes: int, loops: int) -> float:
    import phalanx

    return max(phalanx.run(time_all_reduce, nbytes, loops, ranks=ranks))


def threaded_time(ranks: int, nbytes: int, loops: int) -> float:
    """torch's own `ProcessLocalGroup`, set up as its test classes do."""
    from torch.testing._internal.distributed import multi_threaded_pg as theirs

    theirs._install_threaded_pg()
    torch._C._distributed_c10d._set_thread_isolation_mode(True)
    store, times = dist.HashStore(), [0.0] * ranks

    def main(rank: int) -> None:
        dist.init_process_group("threaded", rank=rank, world_size=ranks, store=store)
        times[rank] = time_all_reduce(nbytes, loops)
        dist.destroy_process_group()

    threads = [threading.Thread(target=main, args=(rank,)) for rank in range(ranks)]
    try:
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    finally:
        torch._C._distributed_c10d._set_thread_isolation_mode(False)
        theirs._uninstall_threaded_pg()
        theirs.ProcessLocalGroup.reset()
    return max(times)


class GlooProcesses:
    """Real processes, started once for each number of ranks and asked again each round."""

    def __init__(self, ranks: int) -> None:
        self._folder = tempfile.TemporaryDirectory()
        environ = dict(os.environ, OMP_NUM_THREADS=str(max(1, (os.cpu_count() or 1) // ranks)))
        command = [sys.executable, __file__, "--gloo-rank"]
        self._processes = [
            subprocess.Popen(
                [*command, str(rank), str(ranks), f"{self._folder.name}/store"],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                text=True,
                env=environ,
            )
            for rank in range(ranks)
        ]

    def time(self, nbytes: int, loops: int) -> float:
        for process in self._processes:
            assert process.stdin is not None
            process.stdin.write(f"{nbytes} {loops}\n")
            process.stdin.flush()
        return max(float(process.stdout.readline()) for process in self._processes)

    def close(self) -> None:
        for process in self._processes:
            process.communicate()
        self._folder.cleanup()


def serve_gloo(rank: int, ranks: int, path: str) -> None:
    dist.init_process_group("gloo", init_method=f"file://{path}", rank=rank, world_size=ranks)
    for line in sys.stdin:
        nbytes, loops = map(int, line.split())
        print(time_all_reduce(nbytes, loops), flush=True)
    dist.destroy_process_group()


def copy_time(ranks: int, nbytes: int, loops: int) -> float:
    """The lower bound: every rank's bytes read once and written once, by `copy_`."""
    sources = [torch.ones(nbytes // 4) for _ in range(ranks)]
    targets = [torch.ones(nbytes // 4) for _ in range(ranks)]
    for target, source in zip(targets, sources, strict=True):
        target.copy_(source)
    start = time.perf_counter()
    for _ in range(loops):
        for target, source in zip(targets, sources, strict=True):
            target.copy_(source)
    return (time.perf_counter() - start) / loops


def compare(ranks: int, nbytes: int, *, quick: bool) -> dict[str, float | None]:
    large = nbytes == LARGE
    loops = (3 if ranks < 64 else 1) if large else (2000 if ranks < 64 else 100)
    rounds = 2 if quick else 5
    contenders: dict[str, Callable[[], float]] = {
        "phalanx": lambda: phalanx_time(ranks, nbytes, loops),
        "threaded": lambda: threaded_time(ranks, nbytes, max(1, loops // 2)),
    }
    if large:
        contenders["copies"] = lambda: copy_time(ranks, nbytes, loops)
    gloo = GlooProcesses(ranks) if ranks <= GLOO_MOST_RANKS else None
    if gloo is not None:
        contenders["gloo"] = lambda: gloo.time(nbytes, loops if large else max(1, loops // 10))
    times: dict[str, list[float]] = {name: [] for name in contenders}
    for _ in range(rounds):
        for name, measure in contenders.items():
            times[name].append(measure())
    if gloo is not None:
        gloo.close()
    return {name: min(found) for name, found in times.items()}


def row(ranks: int, nbytes: int, times: dict[str, float | None]) -> str:
    ours = times["phalanx"]
    assert ours is not None

    def cell(name: str) -> str:
        found = times.get(name)
        return f"{'-':>18}" if found is None else f"{_unit(found):>10} {found / ours:6.2f}x"

    bound = times.get("copies")
    against = f"{'-':>10}" if bound is None else f"{ours / bound:9.2f}x"
    size = "16 B" if nbytes == SMALL else "64 MiB"
    return f"{size:>7} {ranks:>5} {_unit(ours):>10} {cell('threaded')} {cell('gloo')} {against}"


def _unit(seconds: float) -> str:
    return f"{seconds * 1e6:.0f} us" if seconds < 1e-2 else f"{seconds * 1e3:.0f} ms"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="fewer rounds, no 64 ranks")
    parser.add_argument("--json", metavar="FILE", help="write the times there")
    parser.add_argument("--ranks", default="2,4,8,64", help="which numbers of ranks")
    parser.add_argument("--size", choices=("small", "large", "both"), default="both")
    parser.add_argument("--gloo-rank", nargs=3, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.gloo_rank:
        rank, ranks, path = options.gloo_rank
        serve_gloo(int(rank), int(ranks), path)
        return 0
    counts = [int(n) for n in options.ranks.split(",")]
    if options.quick:
        counts = [n for n in counts if n < 64]
    sizes = {"small": [SMALL], "large": [LARGE], "both": [SMALL, LARGE]}[options.size]
    print(f"torch {torch.__version__}, {os.cpu_count()} cores; time for one all_reduce of all")
    print("ranks together; 'x' columns: how many times slower than phalanx; last column:")
    print("phalanx over the same bytes moved by plain copies")
    print("   size ranks    phalanx      torch threaded     gloo processes     copies")
    results = []
    for nbytes in sizes:
        for ranks in counts:
            times = compare(ranks, nbytes, quick=options.quick)
            print(row(ranks, nbytes, times), flush=True)
            results.append({"ranks": ranks, "bytes": nbytes, "seconds": times})
    if options.json:
        with open(options.json, "w") as file:
            json.dump(results, file, indent=1)
    return 0


if __name__ == "__main__":
    sys.exit(main())
