"""What ranks spent their time with, of runs whose times are known."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist

import phalanx
from phalanx.costs import alpha_beta
from phalanx.journal.recording.decoder import load
from phalanx.report.timeline.calls_table import calls_table
from phalanx.report.timeline.rank_times import (
    RankTime,
    _common,
    _union,
    has_costs,
    rank_times,
    times_alike,
)

NET = alpha_beta(latency=1.0, bandwidth=1e6)
MEGABYTE = 250_000  # floats
ALL_REDUCE = 3.0  # of two ranks: two steps of a second and half a megabyte


def times_of(program: Any, folder: Path, **options: Any) -> list[tuple[float, ...]]:
    """Computing, overlapped, exposed, waiting, by rank."""
    file = folder / "run.phalanx"
    given = {"clock": "virtual", "compute": "free", "network": NET, **options}
    phalanx.run(program, ranks=2, record=str(file), **given)
    table = calls_table(load(file))
    assert has_costs(table) is (given["network"] is not None)
    return [
        tuple(round(each, 3) for each in (t.computing, t.overlapped, t.exposed, t.waiting))
        for t in rank_times(table)
    ]


def test_a_straggler_makes_others_wait_and_communication_is_exposed(tmp_path: Path) -> None:
    def program() -> None:
        time.sleep(10.0 + 5.0 * dist.get_rank())
        dist.all_reduce(torch.ones(MEGABYTE))

    assert times_of(program, tmp_path) == [
        (10.0, 0.0, ALL_REDUCE, 5.0),
        (15.0, 0.0, ALL_REDUCE, 0.0),
    ]


def test_what_goes_on_while_a_rank_computes_is_overlapped(tmp_path: Path) -> None:
    def program() -> None:
        work = dist.all_reduce(torch.ones(MEGABYTE), async_op=True)
        time.sleep(2.0)
        work.wait()  # type: ignore[union-attr]

    assert times_of(program, tmp_path) == [(2.0, 2.0, 1.0, 0.0)] * 2


def test_operations_of_a_stream_are_exposed_until_the_last_is_done(tmp_path: Path) -> None:
    def program() -> None:
        works = []
        for _ in range(3):
            time.sleep(1.0)
            works.append(dist.all_reduce(torch.ones(MEGABYTE), async_op=True))
        for work in works:
            work.wait()  # type: ignore[union-attr]

    assert times_of(program, tmp_path) == [(3.0, 2.0, 7.0, 0.0)] * 2


def test_what_a_thread_of_a_rank_waits_for_is_no_wait_of_the_rank(tmp_path: Path) -> None:
    from concurrent.futures import ThreadPoolExecutor

    def program() -> None:
        with ThreadPoolExecutor(1) as pool:
            done = pool.submit(dist.all_reduce, torch.ones(MEGABYTE))
            time.sleep(8.0)
            done.result()

    assert times_of(program, tmp_path) == [(8.0, ALL_REDUCE, 0.0, 0.0)] * 2


def test_without_a_network_the_times_say_nothing(tmp_path: Path) -> None:
    times_of(dist.barrier, tmp_path, network=None, compute="real")


def test_ranks_whose_times_are_equal_to_a_percent_are_one() -> None:
    times = [RankTime([rank], 10.0, 9.0, 1.0, 0.5, 0.5) for rank in range(3)]
    times[1] = RankTime([1], 10.0, 9.5, 1.0, 0.5, 0.0)
    times[2].computing += 0.001
    found = [(each.ranks, each.waiting) for each in times_alike(times)]
    assert found == [([1], 0.0), ([0, 2], 0.5)]


@pytest.mark.parametrize(
    ("some", "others", "common"),
    [
        ([], [(0, 5)], 0),
        ([(0, 5)], [(5, 9)], 0),
        ([(0, 4), (6, 9)], [(3, 7)], 2),
        ([(0, 9)], [(1, 2), (3, 5)], 3),
    ],
)
def test_how_long_two_last_together(some: Any, others: Any, common: int) -> None:
    assert _common(_union(some), _union(others)) == common
    assert _common(_union(others), _union(some)) == common


def test_spans_are_joined() -> None:
    assert _union([(3, 5), (0, 2), (2, 3), (7, 7), (8, 9)]) == [(0, 5), (8, 9)]
