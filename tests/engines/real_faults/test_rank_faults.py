"""What strikes at a moment in a rank's main thread, and when it has to wait."""

from __future__ import annotations

import signal
import threading
import time
from collections.abc import Callable, Iterator

import pytest

from phalanx.engines.real_faults.fault_messages import StrikeNow, Struck
from phalanx.engines.real_faults.rank_faults import LATER, MOMENT_SIGNAL, RankFaults
from phalanx.faults import Fault, delay, moment, raise_

FIRST = delay(rank=1, seconds=0.001, at=moment(1))
SECOND = delay(rank=1, seconds=0.001, at=moment(2))
ERROR = raise_(ValueError, rank=1, at=moment(1))


class Rank:
    """Tells what strikes, under a lock that a thread cannot take twice."""

    def __init__(self) -> None:
        self.told: list[Fault] = []
        self.telling = threading.Lock()
        self.while_telling: Callable[[], object] = lambda: None
        self.faults = RankFaults(
            1, self.tell, ports=set, disconnect=list, is_telling=self.telling.locked
        )

    def tell(self, message: Struck) -> None:
        assert self.telling.acquire(timeout=5)
        try:
            self.while_telling()
            self.told.append(message.fault)
        finally:
            self.telling.release()

    def wait_for(self, *faults: Fault) -> None:
        until = time.monotonic() + 30
        while self.told != [*faults] and time.monotonic() < until:
            time.sleep(LATER)
        assert self.told == [*faults]


@pytest.fixture
def rank() -> Iterator[Rank]:
    before = signal.getsignal(MOMENT_SIGNAL)
    made = Rank()
    made.faults.begin((FIRST, SECOND, ERROR))
    yield made
    made.faults._later.put(False)
    (thread,) = [each for each in threading.enumerate() if each.name == "phalanx-moment"]
    thread.join()
    signal.signal(MOMENT_SIGNAL, before)


def test_what_strikes_waits_for_the_end_of_what_is_being_told(rank: Rank) -> None:
    with rank.telling:
        rank.faults.obey(StrikeNow(FIRST))
        assert rank.told == []
    rank.wait_for(FIRST)


def test_one_that_comes_while_another_is_told_follows_it(rank: Rank) -> None:
    def interrupt() -> None:
        rank.while_telling = lambda: None
        rank.faults.obey(StrikeNow(SECOND))

    rank.while_telling = interrupt
    rank.faults.obey(StrikeNow(FIRST))
    rank.wait_for(FIRST, SECOND)


def test_one_behind_an_error_is_not_forgotten(rank: Rank) -> None:
    rank.faults._now += [ERROR]
    with pytest.raises(ValueError):
        rank.faults.obey(StrikeNow(FIRST))
        time.sleep(30)
    rank.wait_for(ERROR, FIRST)
