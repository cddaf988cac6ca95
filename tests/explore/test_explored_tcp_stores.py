"""A `TCPStore` that ranks make themselves, in runs that are explored: each run has its own."""

from __future__ import annotations

import time
from datetime import timedelta
from typing import Any

import pytest
import torch.distributed

import phalanx
from phalanx.core.strand import here

dist: Any = torch.distributed
HOST = "127.0.0.1"
PORT = 29817
"""Never bound: each run that is explored serves at a free one."""


def explored(program: Any, **given: Any) -> Any:
    given = {"ranks": 2, "compare": "none", **given}
    return phalanx.explore(program, store=None, raises=False, **given)


def comes_first() -> None:
    rank = dist.get_rank()
    store = dist.TCPStore(HOST, PORT, 2, is_master=rank == 1)
    first = store.add("come", 1) == 1
    dist.barrier()
    assert not first or rank == 0, "rank 1 is first"


def test_every_run_has_its_own_server_and_all_orders_are_explored() -> None:
    found = explored(comes_first, strategy="exhaustive")
    assert found.complete and found.behaviours == 2
    (failure,) = found.failures
    assert '(store.add of "come") before rank 0 does' in failure.story.replace("\n     ", " ")
    again = explored(comes_first, replay=failure.token)
    assert [each.fingerprint for each in again.failures] == [failure.fingerprint]


def test_without_a_server_the_time_of_the_run_passes() -> None:
    heard: list[tuple[float, str]] = []

    def program() -> None:
        began = time.monotonic()
        with pytest.raises(dist.DistNetworkError) as raised:
            dist.TCPStore(HOST, PORT, timeout=timedelta(seconds=90))
        heard.append((time.monotonic() - began, str(raised.value)))

    assert explored(program, schedules=1).passed
    assert {seconds for seconds, _ in heard} == {90.0}
    assert f"timed out after 90000ms while trying to connect to ({HOST}, {PORT})" in heard[0][1]


def test_who_waits_for_a_server_that_nobody_starts_is_told() -> None:
    def program() -> None:
        if dist.get_rank() == 0:
            dist.TCPStore(HOST, PORT)
        dist.barrier()

    (failure,) = explored(program, schedules=1).failures
    assert failure.kind == "deadlock"
    assert f"TCPStore('{HOST}:{PORT}')" in failure.story.replace('"', "'")


def test_a_server_waits_for_its_workers() -> None:
    def alone() -> None:
        if dist.get_rank() == 0:
            with pytest.raises(dist.DistStoreError, match="1/3 clients joined"):
                dist.TCPStore(HOST, 0, 3, True, timedelta(seconds=5))

    def together() -> None:
        store = dist.TCPStore(HOST, PORT, 2, dist.get_rank() == 0)
        dist.barrier()
        assert store.num_keys() == 1  # torch's own, by which it counts them
        dist.barrier()  # the server goes with its rank

    assert explored(alone, schedules=1).passed
    assert explored(together, schedules=4).passed


def test_a_port_is_served_once_and_again_when_its_server_is_gone() -> None:
    def program() -> None:
        if dist.get_rank() == 0:
            store = dist.TCPStore(HOST, PORT, is_master=True)
            with pytest.raises(dist.DistNetworkError, match="EADDRINUSE"):
                dist.TCPStore(HOST, PORT, is_master=True)
            store.set("key", "old")
            del store
            assert not dist.TCPStore(HOST, PORT, is_master=True).check(["key"])

    assert explored(program, schedules=2).passed


def test_a_server_of_nobody_in_the_run_is_found() -> None:
    outside = dist.TCPStore(HOST, 0, is_master=True, wait_for_workers=False)

    def program() -> None:
        dist.TCPStore(HOST, outside.port).add("come", 1)

    assert explored(program, schedules=1).passed
    assert int(outside.get("come")) >= 2


def test_wrong_arguments_are_torchs_to_refuse() -> None:
    def program() -> None:
        with pytest.raises(TypeError, match="incompatible constructor arguments"):
            dist.TCPStore(HOST)

    assert explored(program, schedules=1).passed


def test_a_slow_server_does_not_decide_who_comes_next(monkeypatch: pytest.MonkeyPatch) -> None:
    taken: list[bool] = []
    add = dist.Store.add

    def slow_add(self: Any, key: str, amount: int) -> int:
        strand = here.strand
        if strand is not None and isinstance(self, dist.TCPStore):
            taken.append(strand.baton.push_outside(strand, strand.baton.hand_overs))
        return int(add(self, key, amount))

    def program() -> None:
        rank = dist.get_rank()
        dist.TCPStore(HOST, PORT, 2, is_master=rank == 0).add("n", 1)
        dist.barrier()

    monkeypatch.setattr(dist.Store, "add", slow_add)
    explored(program, schedules=2)
    assert taken
    assert not any(taken)
