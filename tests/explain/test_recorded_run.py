"""Recordings of runs, explained: those that have a verdict, and those whose process died."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
import torch.distributed as dist

import phalanx
from phalanx.explain.dump_files import read_dumps
from phalanx.explain.explanation import explain, render_explanation
from phalanx.explain.recorded_run import dumps_of_recording
from phalanx.journal.recording.decoder import load
from phalanx.model import Stall


def works() -> None:
    rank = dist.get_rank()
    pair = dist.new_group([0, 1])
    for _ in range(3):
        dist.all_reduce(torch.ones(2), group=pair)
        if rank == 0:
            dist.send(torch.ones(1), 1, tag=3)
        else:
            dist.recv(torch.empty(1), 0, tag=3)
    dist.barrier()


def hangs() -> None:
    dist.all_reduce(torch.ones(2))
    dist.recv(torch.empty(1), 1 - dist.get_rank())


def test_a_run_that_ended_well(tmp_path: Path) -> None:
    file = tmp_path / "run.phalanx"
    phalanx.run(works, ranks=2, record=file)
    found = explain(read_dumps([file]))
    assert not found.found
    assert found.ranks == 2


def test_a_verdict_is_told_as_the_run_told_it(tmp_path: Path) -> None:
    file = tmp_path / "run.phalanx"
    with pytest.raises(phalanx.DeadlockError):
        phalanx.run(hangs, ranks=2, record=file)
    text = render_explanation(explain(read_dumps([file])))
    assert text.startswith("ranks 0 and 1 wait for each other")


def test_a_run_whose_process_died(tmp_path: Path) -> None:
    """What the file has is replayed: here one rank has not come to the last calls."""
    file = tmp_path / "run.phalanx"
    phalanx.run(works, ranks=2, record=file)
    recording = load(file)
    recording.end = None
    recording.blocks = [b for b in recording.blocks if b.kind in ("posted", "met")]
    dumps = dumps_of_recording(recording, "run")
    assert [len(dump.calls) for dump in dumps.values()] == [7, 7]
    assert {dump.status for dump in dumps.values()} == {"running"}
    from phalanx.explain.dump_replay import replay

    last = dumps[0].calls[-1]
    assert last.name == "barrier"
    del dumps[1].calls[-1]
    assert replay(dumps, 2).verdict is None  # nobody is known to wait
    dumps[0].threads = []
    dumps[0].calls[-1] = type(last)(**{**vars(last), "done": False})
    verdict = replay(dumps, 2).verdict
    assert isinstance(verdict, Stall)
    assert verdict.ranks == (1,)
