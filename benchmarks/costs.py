"""What operations cost by `phalanx.costs`, and what was measured: published curves of NCCL, and
Gloo's processes on this machine.

    python benchmarks/costs.py [--gloo 2,4] [--rounds 5] [--write docs/time.md]

`network_curves.json` has the published times in microseconds, out of place and in place, with
their sources; the shorter of the two counts. Nothing is fitted to them. For Gloo two constants
are fitted for each operation and number of ranks, to 16 B and 4 MiB; the other sizes are
predicted. Ratios are predicted by measured. The shortest of some rounds counts, all sizes in
turn: another program can only make a round longer.
"""

from __future__ import annotations

import argparse
import itertools
import json
import os
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import torch
import torch.distributed as dist

from phalanx.costs import AlphaBeta, alpha_beta, parse_network

CURVES = Path(__file__).with_name("network_curves.json")
SIZES = (16, 1024, 65536, 1 << 20, 4 << 20, 16 << 20)
OPERATIONS = ("all_reduce", "all_gather", "broadcast")
FITTED = 16, 4 << 20
Times = dict[tuple[str, int], float]


def size_text(size: int) -> str:
    for unit, power in (("GiB", 30), ("MiB", 20), ("KiB", 10)):
        if size >> power:
            return f"{size >> power} {unit}"
    return f"{size} B"


def curve_lines() -> Iterator[str]:
    yield "| curve | operation | within 20 % | outside, as predicted / measured |"
    yield "|---|---|---|---|"
    for curve in json.loads(CURVES.read_text(encoding="utf-8")):
        network, ranks = parse_network(curve["network"]), range(curve["ranks"])
        ratios = {
            size: network.collective(curve["operation"], size, ranks) * 1e6 / min(times)
            for size, *times in curve["points"]
        }
        bad = {size: ratio for size, ratio in ratios.items() if abs(ratio - 1) > 0.2}
        told = ", ".join(f"{size_text(size)}: {ratio:.2f}" for size, ratio in bad.items())
        source = curve["source"]
        name = f"[{curve['name']}]({source})" if source.startswith("http") else curve["name"]
        within = f"{len(ratios) - len(bad)} of {len(ratios)}"
        yield f"| {name}: {curve['notes']} | {curve['operation']} | {within} | {told or '-'} |"


def as_rank(rounds: int) -> None:
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    calls = {(name, size): call_of(name, size) for name in OPERATIONS for size in SIZES}
    best = dict.fromkeys(calls, float("inf"))
    for _ in range(rounds):
        for key, call in calls.items():
            loops = 3 if key[1] > 1 << 20 else 20
            dist.barrier()
            began = time.perf_counter()
            for _ in range(loops):
                call()
            best[key] = min(best[key], (time.perf_counter() - began) / loops)
    if dist.get_rank() == 0:
        print(json.dumps([[*key, seconds] for key, seconds in best.items()]))


def call_of(name: str, size: int) -> Callable[[], object]:
    """As `nccl-tests` counts: the whole of what is gathered."""
    ranks = dist.get_world_size()
    if name == "all_gather":
        part = torch.ones(max(1, size // 4 // ranks))
        whole = list(torch.empty(ranks, part.numel()))
        return lambda: dist.all_gather(whole, part)
    tensor = torch.ones(size // 4)
    if name == "broadcast":
        roots = itertools.cycle(range(ranks))  # a root that sent could run ahead of the others
        return lambda: dist.broadcast(tensor, next(roots))
    return lambda: dist.all_reduce(tensor)


def measured(ranks: int, rounds: int) -> Times:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
    address = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port), "WORLD_SIZE": str(ranks)}
    command = [sys.executable, __file__, "--rounds", str(rounds)]
    started = [
        subprocess.Popen(
            command, env={**os.environ, **address, "RANK": str(rank)}, stdout=subprocess.PIPE
        )
        for rank in range(ranks)
    ]
    output, *_ = [process.communicate()[0] for process in started]
    return {(name, size): seconds for name, size, seconds in json.loads(output)}


def fitted(name: str, times: Times, ranks: int, cores: int) -> AlphaBeta:
    """By what the formula of the operation has of each constant."""
    small, large = FITTED
    steps = alpha_beta(latency=1.0, bandwidth=1e30, cores=cores).collective(
        name, small, range(ranks)
    )
    per_byte = alpha_beta(latency=1e-30, bandwidth=1.0, cores=cores).collective(
        name, large, range(ranks)
    )
    latency = times[name, small] / steps
    moving = max(times[name, large] - times[name, small], 1e-9)
    return alpha_beta(latency=latency, bandwidth=per_byte / moving, cores=cores)


def gloo_lines(counts: list[int], rounds: int) -> Iterator[str]:
    cores = len(os.sched_getaffinity(0))
    load = os.getloadavg()[0]
    yield "| ranks | operation | a step | " + " | ".join(map(size_text, SIZES)) + " |"
    yield "|---|---|---|" + "---|" * len(SIZES)
    good = of = 0
    for ranks in counts:
        times = measured(ranks, rounds)
        for name in OPERATIONS:
            network = fitted(name, times, ranks, cores)
            ratios = {
                size: network.collective(name, size, range(ranks)) / times[name, size]
                for size in SIZES
                if size not in FITTED
            }
            good += sum(abs(ratio - 1) <= 0.3 for ratio in ratios.values())
            of += len(ratios)
            step = f"{network.latency * 1e6:.0f} us, {network.bandwidth / 1e9:.2f} GB/s"
            cells = [f"{ratios[size]:.2f}" if size in ratios else "fitted" for size in SIZES]
            yield f"| {ranks} | {name} | {step} | " + " | ".join(cells) + " |"
    yield ""
    busy = f"before it {load:.0f} threads wanted to run"
    yield f"Within 30 %: {good} of {of}; {cores} cores, {busy}."


def write(path: Path, tables: dict[str, str]) -> None:
    """Between the markers of a page."""
    text = path.read_text(encoding="utf-8")
    for name, table in tables.items():
        before, rest = text.split(f"<!-- {name} -->\n", 1)
        after = rest.split(f"<!-- end of {name} -->", 1)[1]
        text = f"{before}<!-- {name} -->\n{table}\n<!-- end of {name} -->{after}"
    path.write_text(text, encoding="utf-8")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--gloo", default="2,4", help="numbers of ranks; empty: not measured")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--write", type=Path, help="the page whose tables are written")
    arguments = parser.parse_args()
    if "RANK" in os.environ:
        as_rank(arguments.rounds)
        return
    tables = {"nccl": "\n".join(curve_lines())}
    if arguments.gloo:
        counts = [int(count) for count in arguments.gloo.split(",")]
        tables["gloo"] = "\n".join(gloo_lines(counts, arguments.rounds))
    print("\n\n".join(tables.values()))
    if arguments.write is not None:
        write(arguments.write, tables)


if __name__ == "__main__":
    main()
