"""Threads that share a core while they hand over, and all cores otherwise. Linux only."""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator

import pytest

from phalanx.core import core_affinity as module
from phalanx.core.core_affinity import CoreAffinity, SharedCore

pytestmark = pytest.mark.skipif(
    not hasattr(os, "SCHED_BATCH") or len(os.sched_getaffinity(0)) < 2,
    reason="needs Linux and two cores",
)

ALL = os.sched_getaffinity(0) if hasattr(os, "SCHED_BATCH") else set()


class Worker:
    """A thread that does what it is told, one thing at a time."""

    def __init__(self) -> None:
        self._go, self._done = threading.Semaphore(0), threading.Semaphore(0)
        self._task = lambda: None
        self.native = 0
        self._thread = threading.Thread(target=self._serve, daemon=True)
        self._thread.start()
        self.do(self._note_id)

    def do(self, task):
        self._task = task
        self._go.release()
        assert self._done.acquire(timeout=10)

    def stop(self) -> None:
        self._task = None
        self._go.release()
        self._thread.join(10)

    def state(self) -> tuple[int, int]:
        return len(os.sched_getaffinity(self.native)), os.sched_getscheduler(self.native)

    def _note_id(self) -> None:
        self.native = threading.get_native_id()

    def _serve(self) -> None:
        while self._go.acquire() and self._task is not None:
            self._task()
            self._done.release()


@pytest.fixture
def worker() -> Iterator[Worker]:
    made = Worker()
    yield made
    made.stop()


APART = (len(ALL), os.SCHED_OTHER) if ALL else None
TOGETHER = (1, os.SCHED_BATCH) if ALL else None


def test_a_thread_enters_a_huddle_and_is_sent_away(worker: Worker) -> None:
    affinity = CoreAffinity()
    assert worker.state() == APART
    worker.do(affinity.enter)
    assert worker.state() == TOGETHER
    affinity.scatter()
    assert worker.state() == APART
    assert not affinity.together


def test_gathering_again_takes_only_threads_that_are_free(worker: Worker) -> None:
    affinity = CoreAffinity()
    affinity.scatter()
    own = Worker()
    os.sched_setaffinity(own.native, {max(ALL)})
    affinity.gather([worker.native, own.native])
    assert worker.state() == TOGETHER
    assert os.sched_getscheduler(own.native) == os.SCHED_OTHER
    affinity.scatter()
    assert worker.state() == APART
    own.stop()


def test_threads_started_in_the_huddle_are_sent_away_too(worker: Worker) -> None:
    affinity = CoreAffinity()
    worker.do(affinity.enter)
    children: list[Worker] = []
    worker.do(lambda: children.append(Worker()))
    assert children[0].state()[0] == 1
    affinity.scatter()
    assert children[0].state() == APART
    children[0].stop()


def test_who_asks_for_its_cores_does_not_hear_of_the_huddle(worker: Worker) -> None:
    affinity, own = CoreAffinity(), Worker()
    worker.do(affinity.enter)
    one = os.sched_getaffinity(worker.native)
    assert len(one) == 1
    assert affinity.without_ours(worker.native, one) == ALL
    os.sched_setaffinity(own.native, one)  # by its own will
    assert affinity.without_ours(own.native, one) == one
    affinity.scatter()
    own.stop()


def test_stepping_out_is_for_the_calling_thread_alone(worker: Worker) -> None:
    affinity, other = CoreAffinity(), Worker()
    worker.do(affinity.enter)
    other.do(affinity.enter)
    worker.do(affinity.step_out)
    assert (worker.state(), other.state()) == (APART, TOGETHER)
    affinity.scatter()
    other.stop()


def test_where_it_is_not_possible_nothing_happens(
    worker: Worker, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "_allowed_cores", lambda: set())
    affinity = CoreAffinity()
    worker.do(affinity.enter)
    affinity.gather([worker.native])
    affinity.scatter()
    assert worker.state() == APART
    assert not affinity.together


def test_the_launcher_waits_where_the_ranks_of_a_camp_are(worker: Worker) -> None:
    affinity = CoreAffinity(SharedCore())
    worker.do(affinity.visit)
    assert worker.state() == TOGETHER
    worker.do(affinity.end)
    assert worker.state() == APART


def test_without_a_camp_the_launcher_stays_where_it_is(worker: Worker) -> None:
    worker.do(CoreAffinity().visit)
    assert worker.state() == APART


def test_a_launcher_on_one_core_does_not_hide_the_others() -> None:
    affinity = CoreAffinity(SharedCore())
    try:
        affinity.visit()
        assert len(os.sched_getaffinity(0)) == 1
        assert CoreAffinity().together
    finally:
        affinity.end()
    assert os.sched_getaffinity(0) == ALL


def test_the_launcher_goes_home_when_a_rank_asks_for_cores(worker: Worker) -> None:
    affinity = CoreAffinity(SharedCore())
    worker.do(affinity.visit)
    affinity.step_out()
    assert worker.state() == APART


def test_a_launcher_with_a_mask_of_its_own_is_left_alone(worker: Worker) -> None:
    one = {min(ALL)}
    worker.do(lambda: os.sched_setaffinity(0, one))
    affinity = CoreAffinity(SharedCore())
    worker.do(affinity.visit)
    worker.do(affinity.end)
    assert worker.state() == (1, os.SCHED_OTHER)
