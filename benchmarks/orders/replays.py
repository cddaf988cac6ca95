"""Replay stored tokens, round and round, and compare fingerprints: every one must be exact.

The tokens are those that `exploring.py` has written: failures of the wrong programs, some runs
of the right ones. A file keeps what is done, so the same command goes on where it was stopped.
"""

from __future__ import annotations

import argparse
import json
import os
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from benchmarks.orders.exploring import SEARCHES, subject_of
from benchmarks.orders.programs import Program
from benchmarks.orders.stored_runs import Stored, is_exact
from phalanx.emulation.run_patches import patched

WRITES_EVERY = 5.0
MOST_NAMED = 20


@dataclass
class Progress:
    """What the file keeps."""

    of: int
    tokens: int
    done: int = 0
    exact: int = 0
    parted: list[str] = field(default_factory=list)
    """Programs and tokens of replays that were not exact: the first of them."""
    seconds: float = 0.0


def run_replays(options: argparse.Namespace, programs: list[Program]) -> int:
    """Exit status 1 if a replay is not exact."""
    known = json.loads(Path(options.json or "orders.json").read_text())
    stored = list(stored_in(known, {each.id for each in programs}))
    part, _, parts = options.shard.partition("/")
    numbers = range(int(part) - 1, options.replays, int(parts))
    file = Path(options.replays_json or "replays.json").absolute()
    progress = Progress(of=len(numbers), tokens=len(stored))
    if file.exists():
        progress = Progress(**json.loads(file.read_text()))
    replay(stored, numbers, programs, progress, file, seconds=options.seconds)
    rate = progress.done / max(progress.seconds, 1e-9)
    print(
        f"{progress.exact:,} of {progress.done:,} replays of {progress.tokens} tokens exact "
        f"({progress.of:,} are to be made), {rate:.0f} a second"
    )
    print("\n".join(progress.parted), end="\n" if progress.parted else "")
    return int(progress.exact < progress.done)


def stored_in(known: dict[str, Any], wanted: set[str]) -> Iterator[Stored]:
    """All different tokens: one of each program, then the next of each, and so on."""
    queues = [
        list(_of_program(figures)) for figures in known.values() if figures["id"] in wanted
    ]
    while queues:
        yield from (queue.pop(0) for queue in queues if queue)
        queues = [queue for queue in queues if queue]


def _of_program(figures: dict[str, Any]) -> Iterator[Stored]:
    found = [each for name in SEARCHES for each in figures["searches"][name]]
    pairs = {each["token"]: each["fingerprint"] for each in [*found, *figures["samples"]]}
    for token, fingerprint in pairs.items():
        if token is not None:
            yield Stored(token, fingerprint, figures["id"])


def replay(
    stored: list[Stored],
    numbers: range,
    programs: list[Program],
    progress: Progress,
    file: Path,
    *,
    seconds: float,
) -> None:
    """Go on after those that are done, until all are or the time is over."""
    subjects = {each.id: subject_of(each) for each in programs}
    began = written = time.monotonic()
    before = progress.seconds
    with patched():
        for number in numbers[progress.done :]:
            each = stored[number % len(stored)]
            progress.done += 1
            if is_exact(subjects[each.program], each):
                progress.exact += 1
            elif len(progress.parted) < MOST_NAMED:
                progress.parted.append(f"{each.program} {each.token}")
            now = time.monotonic()
            progress.seconds = before + now - began
            if now - written > WRITES_EVERY:
                _write(file, progress)
                written = now
            if now - began > seconds:
                break
    _write(file, progress)


def _write(file: Path, progress: Progress) -> None:
    new = file.with_suffix(".new")
    new.write_text(json.dumps(asdict(progress), indent=1))
    os.replace(new, file)
