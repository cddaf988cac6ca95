"""What a recording costs: the same calls with and without, in one run.

    python benchmarks/recording.py [--quick] [--json FILE]

Each row is one all_reduce of all ranks together on threads. Rounds with and without a recording
are interleaved. "Time" is the clock on the wall and "processor" the process's time, with the
thread that writes; the ratios are of the best rounds. The last column is the size of the file,
divided by its events.
"""

from __future__ import annotations

import argparse
import json
import tempfile
import time
from pathlib import Path

import torch
import torch.distributed as dist

import phalanx
from phalanx.journal.recording.decoder import load

ROWS = ((2, 16), (4, 16), (8, 16), (64, 16), (4, 1 << 20))
"""Ranks, and bytes of the tensor."""


def seconds(nbytes: int, loops: int) -> tuple[float, float]:
    """By the wall and by the processor, per step of all ranks."""
    tensor = torch.zeros(nbytes // 4)
    for _ in range(loops // 10):
        dist.all_reduce(tensor)
    dist.barrier()
    wall, processor = time.perf_counter(), time.process_time()
    for _ in range(loops):
        dist.all_reduce(tensor)
    dist.barrier()
    wall, processor = time.perf_counter() - wall, time.process_time() - processor
    return wall / loops, processor / loops


def measure(ranks: int, nbytes: int, rounds: int, file: Path) -> dict[str, float]:
    loops = max(100, 8000 // ranks if nbytes < 1000 else 1000 // ranks)
    best = {with_recording: [float("inf")] * 2 for with_recording in (False, True)}
    for _ in range(rounds):
        for with_recording, found in best.items():
            times = phalanx.run(
                seconds,
                nbytes,
                loops,
                ranks=ranks,
                record=file if with_recording else False,
            )
            for at in range(2):
                found[at] = min(found[at], max(each[at] for each in times))
    events = sum(1 for _ in load(file).journal())
    return {
        "ranks": ranks,
        "bytes": nbytes,
        "without": best[False][0],
        "with": best[True][0],
        "time": best[True][0] / best[False][0],
        "processor": best[True][1] / best[False][1],
        "bytes an event": file.stat().st_size / events,
    }


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--json")
    given = parser.parse_args()
    found = []
    names = ("bytes", "without", "with", "time", "processor", "an event")
    print(f"{'ranks':>6}" + "".join(f"{name:>11}" for name in names))
    with tempfile.TemporaryDirectory() as folder:
        for ranks, nbytes in ROWS:
            row = measure(ranks, nbytes, 3 if given.quick else 10, Path(folder) / "r.jsonl.gz")
            found.append(row)
            print(
                f"{ranks:6}{nbytes:11}{row['without'] * 1e6:9.1f}us{row['with'] * 1e6:9.1f}us"
                f"{row['time']:11.2f}{row['processor']:11.2f}{row['bytes an event']:9.1f} B"
            )
    if given.json:
        Path(given.json).write_text(json.dumps(found, indent=1), encoding="utf-8")


if __name__ == "__main__":
    main()
