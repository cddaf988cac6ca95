"""Small real runs with what they leave behind: for tests of reports, traces and exports."""

from __future__ import annotations

import time
import warnings
from collections.abc import Callable
from functools import lru_cache

import torch
import torch.distributed as dist

from phalanx import PhalanxError, PhalanxWarning, World
from phalanx.engines.run_recording import plain_verdict
from phalanx.journal.recording.decoder import recording_of
from phalanx.report.timeline.calls_table import CallsTable, calls_table


def deadlock() -> None:
    rank, size = dist.get_rank(), dist.get_world_size()
    dist.all_reduce(torch.ones(4))
    dist.recv(torch.ones(4), (rank + 1) % size)


def mismatch() -> None:
    for step in range(3):
        dist.all_reduce(torch.ones(1024))
        if dist.get_rank() == 2 and step == 2:
            dist.all_reduce(torch.ones(4))
        else:
            dist.barrier()


def pipeline() -> None:
    rank, size = dist.get_rank(), dist.get_world_size()
    t = torch.ones(64)
    for _ in range(3):
        if rank > 0:
            dist.recv(t, rank - 1)
        if rank < size - 1:
            dist.send(t, rank + 1)
    dist.all_reduce(t, async_op=True).wait()


def stragglers() -> None:
    for _ in range(4):
        time.sleep(0.05 if dist.get_rank() == 2 else 0)
        dist.all_reduce(torch.ones(1024))


def unreceived() -> None:
    if dist.get_rank() == 0:
        dist.isend(torch.ones(4), 1)
    dist.barrier()


@lru_cache
def table_of(program: Callable[[], None], ranks: int = 4) -> CallsTable:
    """The table of a run on threads, with how it ended."""
    end: dict[str, object] = {"status": "finished"}
    verdicts = []
    with World(ranks=ranks) as world, warnings.catch_warnings():
        warnings.simplefilter("ignore", PhalanxWarning)
        try:
            world.run(program)
        except PhalanxError as error:
            assert error.verdict is not None
            verdicts = [error.verdict]
            end = {"status": "failed", "error": type(error).__name__, "text": str(error)}
        verdicts += world.findings
        facts = {"program": program.__name__, "engine": "threads"}
        recording = recording_of(world.journal, facts)
    recording.end = {**end, "verdicts": [plain_verdict(each) for each in verdicts]}
    return calls_table(recording)
