"""The door of a run and those who ask there, in one process: a fake run, a real socket."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest

import phalanx
from phalanx.engines.look import look_address, look_client, look_door
from phalanx.engines.look.look_address import LookAddress, find_addresses
from phalanx.engines.look.look_client import list_runs, look_at
from phalanx.engines.look.look_door import LookDoor
from phalanx.errors import UsageError
from phalanx.model import RankView, Site, Snapshot
from phalanx.report.live.live_rows import RunState

pytestmark = pytest.mark.skipif(not look_address.is_available(), reason="needs Linux")


class OneRank:
    """A run whose rank takes two ticks to say where it is."""

    def __init__(self) -> None:
        self.asked = 0
        self.silent = 2

    def ask(self) -> None:
        self.asked += 1

    def has_answers(self) -> bool:
        self.silent -= 1
        return self.silent < 0

    def state(self, *, stacks: bool) -> RunState | None:
        where = {0: (Site("a.py", 3, "f"),)} if stacks else {}
        return RunState(Snapshot((RankView(0, "computing"),)), [5], [1.0], where)


@pytest.fixture
def door(monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.setattr(look_door, "OPENS_AFTER", 0.0)
    door = LookDoor(OneRank(), engine="threads")
    yield door
    door.close()


def ours() -> list[LookAddress]:
    return [each for each in find_addresses() if each.process == os.getpid()]


def ask(door: LookDoor, question: Any) -> Any:
    """What the question gives, while the door ticks."""
    answers: list[Any] = []

    def work() -> None:
        try:
            answers.append(question())
        except UsageError as error:
            answers.append(error)

    thread = threading.Thread(target=work)
    thread.start()
    while thread.is_alive():
        door.tick()
        time.sleep(0.001)
    thread.join()
    return answers[0]


@contextmanager
def forked_child() -> Iterator[int]:
    reading, writing = os.pipe()
    child = os.fork()
    if not child:
        os.close(writing)
        os.read(reading, 1)
        os._exit(0)
    try:
        yield child
    finally:
        os.close(writing)
        os.close(reading)
        os.waitpid(child, 0)


def test_who_asks_is_told(door: LookDoor) -> None:
    (run,) = ask(door, lambda: look_at(os.getpid()))
    assert (run.process, run.engine, run.ranks) == (os.getpid(), "threads", 1)
    (row,) = run.rows
    assert (row.ranks, row.state, row.steps, row.stack) == (
        (0,),
        "running",
        "5",
        ("a.py:3 in f",),
    )
    assert "python" in run.command
    (brief,) = [each for each in ask(door, list_runs) if each.process == os.getpid()]
    assert brief.rows[0].stack == ()


def test_nothing_is_left_when_the_door_is_closed(door: LookDoor) -> None:
    door.tick()
    assert len(ours()) == 1
    door.close()
    door.tick()
    assert ours() == []


def test_a_short_run_opens_nothing() -> None:
    door = LookDoor(OneRank(), engine="threads")
    door.tick()
    assert ours() == []
    assert phalanx.run(lambda: ours(), ranks=2) == [[], []]


def test_a_forked_child_keeps_no_name(door: LookDoor) -> None:
    door.tick()
    with forked_child():
        door.close()
        deadline = time.monotonic() + 10
        while ours() and time.monotonic() < deadline:
            time.sleep(0.01)  # until the child has closed its copy
        assert ours() == []


def test_another_user_is_sent_away(door: LookDoor, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(look_door, "may_ask", lambda user: False)
    error = ask(door, lambda: look_at(os.getpid()))
    assert "has just ended, or does not answer" in str(error)


def test_somebody_else_with_the_name_is_not_believed(
    door: LookDoor, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(look_client, "peer_of", lambda connection: (1, 0))
    assert "does not answer" in str(ask(door, lambda: look_at(os.getpid())))


def test_an_answer_that_cannot_be_read(door: LookDoor, monkeypatch: pytest.MonkeyPatch) -> None:
    for answer, said in (
        (b"[", "cannot be read"),
        (b'{"version": 1}', "cannot be read"),
        (b'{"version": 99}', "another version"),
    ):
        monkeypatch.setattr(door, "_answer", lambda stacks, answer=answer: answer)
        assert said in str(ask(door, lambda: look_at(os.getpid())))


def test_processes_that_cannot_be_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(look_client, "OPENS", 0.0)
    with pytest.raises(UsageError, match="there is no process 2147483646"):
        look_at(2147483646)
    with pytest.raises(UsageError, match="runs no ranks of phalanx at present"):
        look_at(os.getpid())
    monkeypatch.setattr(os, "geteuid", lambda: 12345)
    with pytest.raises(UsageError, match="belongs to another user"):
        look_at(os.getpid())


def test_the_systems_table() -> None:
    table = """Num       RefCount Protocol Flags    Type St Inode Path
0000000000000000: 00000002 00000000 00010000 0001 01 31 @phalanx-look/0/12/3
0000000000000000: 00000002 00000000 00010000 0001 01 32 /run/phalanx-look/0/12/3
0000000000000000: 00000002 00000000 00010000 0001 01 33 @phalanx-look/0/x/3
0000000000000000: 00000003 00000000 00000000 0001 03 34
0000000000000000: 00000002 00000000 00010000 0001 01 35 @phalanx-look/7/5/1"""
    assert find_addresses(table) == [LookAddress(0, 12, 3), LookAddress(7, 5, 1)]


def test_a_rank_process_leads_to_its_program(door: LookDoor) -> None:
    with forked_child() as child:
        (run,) = ask(door, lambda: look_at(child))
        assert run.process == os.getpid()
