"""Calls joined with what became of them."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
import torch.distributed as dist

import phalanx
from phalanx.journal.recording.decoder import RecordingError, recording_of
from phalanx.model import TensorSpec
from phalanx.report.timeline.calls_table import NEVER, CallsTable, calls_table, size_of
from tests.report.timeline.made_up import posted, table_of_lines, words


def table_of(function, ranks: int) -> CallsTable:
    with phalanx.World(ranks=ranks, checks="none") as world:
        world.run(function)
        return calls_table(recording_of(world.journal, {}))


def test_the_calls_of_a_collective_know_when_all_had_come() -> None:
    def program() -> None:
        dist.all_reduce(torch.ones(3))

    table = table_of(program, 3)
    assert [len(calls) for calls in table.ranks] == [1, 1, 1]
    assert table.ops == ["all_reduce"]
    last = max(range(3), key=lambda rank: table.ranks[rank].start[0])
    for calls in table.ranks:
        assert calls.start[0] <= calls.met[0] <= calls.done[0]
        assert calls.partner[0] == last
        if calls.rank != last:
            assert calls.resumed[0] >= calls.done[0]
            assert calls.waited(0, table.duration) == calls.resumed[0] - calls.waiting[0]
        else:
            assert calls.waited(0, table.duration) == 0
        assert table.reduce_ops[calls.reduce[0]] == "SUM"
    assert table.bytes_of(0, 0) == 12


def test_the_two_calls_of_a_message_know_each_other() -> None:
    def program() -> None:
        if dist.get_rank() == 0:
            dist.barrier()
            dist.send(torch.ones(2), 1, tag=5)
        else:
            dist.barrier()
            dist.recv(torch.ones(2), 0, tag=5)

    table = table_of(program, 2)
    send, receive = table.ranks
    assert (send.peer[1], receive.peer[1]) == (1, 0)
    assert (send.partner[1], receive.partner[1]) == (1, 1)
    assert send.tag[1] == receive.tag[1] == 5
    assert send.met[1] == receive.met[1] != NEVER


def test_a_call_that_nobody_meets_ends_with_its_rank() -> None:
    def program() -> None:
        if dist.get_rank() == 0:
            dist.isend(torch.ones(1), 1)

    calls = table_of(program, 2).ranks[0]
    assert (calls.met[0], calls.done[0]) == (NEVER, NEVER)
    assert [calls.end(0)] == calls.run_ends


def test_sizes() -> None:
    assert size_of(TensorSpec("bfloat16", (3, 4))) == 24
    assert size_of(TensorSpec("int64", ())) == 8
    assert size_of(TensorSpec("bool", (5,))) == 5


def test_calls_after_some_that_the_recorder_lost_keep_their_waits(tmp_path: Path) -> None:
    """Serials then have a gap."""
    lines = [posted(0, [10, 20]), {"dropped": 3, "rank": 0}]
    lines += [posted(0, [60, 70], number=[5, 6], serial={"from": 5})]
    wait = {"kind": "wait-ended", "rank": 0, "n": 3, "time": [15, 50, 10], "group": 0}
    lines += [{**wait, "call": [[0, 0], [0, 3], [0, 6]]}]
    (calls,) = table_of_lines(tmp_path, 1, [*words(), *lines]).ranks
    assert list(calls.resumed) == [15, NEVER, NEVER, 75]


def test_events_that_do_not_fit_together(tmp_path: Path) -> None:
    with pytest.raises(RecordingError, match="do not fit together"):
        table_of_lines(tmp_path, 1, [*words(), posted(0, [10], root=[99])])
