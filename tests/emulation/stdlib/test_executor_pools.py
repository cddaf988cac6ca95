"""Jobs of a `ThreadPoolExecutor` belong to the rank that submits them, from `submit` on."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor

import phalanx
from phalanx.core.strand import here


class WatchedPool(ThreadPoolExecutor):
    """Notes whether the rank is known to use pools when a thread of it is about to start."""

    def __init__(self) -> None:
        super().__init__(1)
        self.known: list[bool] = []

    def _adjust_thread_count(self) -> None:
        strand = here.strand
        assert strand is not None
        self.known.append(strand.local.uses_pools)
        super()._adjust_thread_count()  # type: ignore[misc]


def submits_once() -> list[bool]:
    with WatchedPool() as pool:
        pool.submit(int)
    return pool.known


def test_a_rank_is_known_to_use_pools_before_a_job_can_make_a_call() -> None:
    assert phalanx.run(submits_once, ranks=2) == [[True], [True]]


def submits_beside_a_job() -> int:
    gate = threading.Event()
    with ThreadPoolExecutor(1) as pool:
        pool.submit(gate.wait)
        strand = here.strand
        assert strand is not None
        before = strand.baton.hand_overs
        pool.submit(int)  # looks for a thread that is idle, and finds none
        after = strand.baton.hand_overs
        gate.set()
    return after - before


def test_a_rank_that_submits_keeps_the_baton_beside_the_lock_of_all_pools() -> None:
    """Another rank that submits would wait for the lock, with the baton."""
    assert phalanx.run(submits_beside_a_job, ranks=2) == [0, 0]
