"""Check the controller with nothing but torch: `python tests/device/check_controller.py` with
`src` and the project's folder on PYTHONPATH. Not collected by pytest.

Mistakes on real Gloo give the reports of threads, correct programs stay silent, a mismatch on
NCCL is named where there are two GPUs, and what the checks cost.
"""

from __future__ import annotations

import statistics
import sys
import time
from typing import Any

import torch
import torch.distributed as dist

import phalanx
from phalanx.engines.processes.processes_engine import ProcessesEngine, ProcessSettings
from tests.engines.remote import remote_programs as programs


def outcome(world: phalanx.World, fn: Any, *args: Any) -> tuple[str, str]:
    try:
        world.run(fn, *args)
    except phalanx.PhalanxError as error:
        return type(error).__name__, str(error)
    return "silent", ""


def check_reports() -> int:
    wrong = 0
    with (
        phalanx.World(ranks=4, engine="processes", backend="gloo", timeout=30) as processes,
        phalanx.World(ranks=4, backend="gloo", timeout=30) as threads,
    ):
        for place in (programs.on_the_world, programs.on_a_subgroup):
            for mistake in programs.MISTAKES:
                ours = outcome(processes, place, mistake)
                theirs = outcome(threads, place, mistake)
                outsider = mistake is programs.k1_failed and place is programs.on_a_subgroup
                if ours != theirs and not (outsider and ours[0] == theirs[0]):
                    wrong += 1
                    print(f"WRONG {place.__name__} {mistake.__name__}:\n{ours}\n{theirs}")
        for correct in programs.CORRECT:
            found = outcome(processes, correct)
            if found[0] != "silent":
                wrong += 1
                print(f"WRONG {correct.__name__}: {found[1]}")
    print(f"reports: {wrong} wrong")
    return wrong


def mix_sizes_on_gpus() -> None:
    rank = dist.get_rank()
    torch.cuda.set_device(rank)
    dist.all_reduce(torch.ones(4, device="cuda"))
    dist.all_reduce(torch.ones(4 + 2 * rank, device="cuda"))
    torch.cuda.synchronize()


def check_nccl() -> int:
    if torch.cuda.device_count() < 2:
        print("NCCL: fewer than two GPUs, not checked")
        return 0
    with phalanx.World(ranks=2, engine="processes", backend="nccl", timeout=60) as world:
        kind, text = outcome(world, mix_sizes_on_gpus)
    print(f"NCCL: {kind} {text.partition(chr(10))[0]}")
    return int(kind != "CollectiveMismatchError")


def time_all_reduce(count: int, size: int) -> list[float]:
    tensor, found = torch.zeros(size), []
    for _ in range(count):
        start = time.perf_counter()
        dist.all_reduce(tensor)
        found.append((time.perf_counter() - start) * 1e6)
    return found[5:]


def time_messages(count: int, size: int) -> list[float]:
    rank, tensor, found = dist.get_rank(), torch.zeros(size), []
    steps = [dist.recv, dist.send] if rank % 2 else [dist.send, dist.recv]
    for _ in range(count):
        start = time.perf_counter()
        for step in steps:
            step(tensor, rank ^ 1)
        found.append((time.perf_counter() - start) * 1e6)
    return found[5:]


def measure() -> None:
    engines = {
        checked: ProcessesEngine(
            ProcessSettings(
                ranks=4, backend="gloo", timeout=60.0, checks="all" if checked else "none"
            )
        )
        for checked in (False, True)
    }
    for timed, size in ((time_all_reduce, 4), (time_all_reduce, 1 << 20), (time_messages, 4)):
        found: dict[bool, list[float]] = {False: [], True: []}
        for _ in range(10):
            for checked, engine in engines.items():
                found[checked] += engine.call(timed, [80, size])[0]
        plain, watched = (statistics.median(found[each]) for each in (False, True))
        print(
            f"{timed.__name__} of {size} floats on 4 ranks: {plain:.0f} us plain, "
            f"{watched:.0f} us checked, {watched / plain:.2f}x"
        )
    for fresh in (False, True):
        times = []
        for _ in range(40):
            start = time.perf_counter()
            engines[True].call(time_all_reduce, [6, 1], fresh=fresh)
            times.append((time.perf_counter() - start) * 1e3)
        print(f"a call, fresh={fresh}: {statistics.median(times):.1f} ms")
    for engine in engines.values():
        engine.close()


if __name__ == "__main__":
    faults = check_reports() + check_nccl()
    measure()
    sys.exit(bool(faults))
