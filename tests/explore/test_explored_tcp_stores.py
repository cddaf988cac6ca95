"""A `TCPStore` that ranks make themselves, in runs that are explored: each run has its own."""

from __future__ import annotations

import socket
import time
from datetime import timedelta
from typing import Any

import pytest
import torch.distributed

import phalanx
from phalanx.core.strand import here
from phalanx.faults import kill, moment

dist: Any = torch.distributed
HOST = "127.0.0.1"
PORT = 29817
"""Where it is not free, a run that is explored serves at another one."""


def free_port() -> int:
    with socket.create_server((HOST, 0)) as made:
        return int(made.getsockname()[1])


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


WRONG: list[tuple[tuple[Any, ...], dict[str, Any]]] = [
    ((HOST,), {}),
    ((HOST, None), {}),
    ((5, PORT), {}),
    ((HOST, "29817"), {}),
    ((HOST, 70000), {}),
    ((HOST, PORT, 2, False, "soon"), {}),
    ((HOST, PORT, 2, False, None), {}),
    ((HOST, PORT), {"port": PORT}),
    ((HOST, PORT), {"ports": PORT}),
]


@pytest.mark.parametrize("faults", [[], [kill(rank=1, at=moment(50))]])
def test_wrong_arguments_are_torchs_to_refuse(faults: Any) -> None:
    def program() -> None:
        for args, kwargs in WRONG:
            with pytest.raises(TypeError, match="incompatible constructor arguments"):
                dist.TCPStore(*args, **kwargs)
        for is_master in (True, False):
            with pytest.raises(ValueError, match="world size cannot be 0"):
                dist.TCPStore(HOST, PORT, 0, is_master)
        time.sleep(100)

    assert explored(program, schedules=1, faults=faults).passed


def test_a_negative_world_size_is_none() -> None:
    def program() -> None:
        store = dist.TCPStore(HOST, PORT, -3, dist.get_rank() == 0, timedelta(seconds=5))
        dist.barrier()
        assert store.num_keys() == 0
        dist.barrier()

    assert explored(program, schedules=2).passed


def test_a_timeout_may_be_a_number() -> None:
    def program() -> None:
        store = dist.TCPStore(HOST, PORT, 2, dist.get_rank() == 0, 30.0)
        assert store.timeout == timedelta(seconds=30)
        dist.barrier()
        if dist.get_rank() == 1:
            began = time.monotonic()
            with pytest.raises(dist.DistNetworkError, match="timed out after 1500ms"):
                dist.TCPStore(HOST, 0, timeout=1.5)
            assert time.monotonic() - began == 1.5

    assert explored(program, schedules=2).passed


def test_the_programs_timeout_is_none_of_the_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    native: list[float] = []
    original = dist.TCPStore.__init__

    def construct(self: Any, *args: Any, **kwargs: Any) -> None:
        native.append(kwargs["timeout"])
        original(self, *args, **kwargs)

    def program() -> None:
        seconds = [0.001, 600.0][dist.get_rank()]
        store = dist.TCPStore(HOST, PORT, None, dist.get_rank() == 0, seconds)
        assert store.timeout == timedelta(seconds=seconds)
        dist.barrier()
        assert dist.TCPStore(HOST, PORT).timeout == timedelta(seconds=300)
        dist.barrier()

    monkeypatch.setattr(dist.TCPStore, "__init__", construct)
    assert explored(program, schedules=1).passed
    assert set(native) == {60.0, 300.0, 600.0}


def test_the_port_is_the_one_given_where_it_is_free() -> None:
    port = free_port()

    def program() -> None:
        store = dist.TCPStore(HOST, port, 2, dist.get_rank() == 0)
        assert store.port == port
        dist.barrier()

    assert explored(program, schedules=4).passed


def test_the_server_of_an_earlier_run_is_not_found() -> None:
    port = free_port()
    left: list[Any] = []

    def leave() -> None:
        if dist.get_rank() == 0:
            left.append(dist.TCPStore(HOST, port, is_master=True, multi_tenant=True))
            left[-1].set("key", "old")

    def program() -> None:
        rank = dist.get_rank()
        if rank == 1:
            with pytest.raises(dist.DistNetworkError):
                dist.TCPStore(HOST, port, timeout=5.0)
        dist.barrier()
        store = dist.TCPStore(HOST, port, is_master=rank == 0, multi_tenant=True)
        assert store.port != port
        assert not store.check(["key"])
        dist.barrier()

    assert explored(leave, schedules=1).passed
    assert explored(program, schedules=2).passed


def test_who_connects_waits_for_the_server_that_comes_after_one_that_is_gone() -> None:
    def program() -> None:
        rank = dist.get_rank()
        server = dist.TCPStore(HOST, PORT, is_master=True) if rank == 0 else None
        dist.barrier()
        del server
        dist.barrier()
        began = time.monotonic()
        if rank == 0:
            time.sleep(3)
        store = dist.TCPStore(HOST, PORT, is_master=rank == 0, timeout=20.0)
        assert time.monotonic() - began == 3
        store.set("key", "new")
        dist.barrier()

    assert explored(program, schedules=4).passed


def test_who_connects_to_a_server_that_is_gone_times_out() -> None:
    def program() -> None:
        if dist.get_rank() == 0:
            dist.TCPStore(HOST, PORT, is_master=True)
            began = time.monotonic()
            with pytest.raises(dist.DistNetworkError, match="timed out after 6000ms"):
                dist.TCPStore(HOST, PORT, timeout=6.0)
            assert time.monotonic() - began == 6

    assert explored(program, schedules=1).passed


def test_a_server_is_there_as_long_as_torch_needs_it() -> None:
    def program() -> None:
        if dist.get_rank() == 0:
            store = dist.TCPStore(HOST, PORT, is_master=True)
            prefixed = dist.PrefixStore("of", store)
            del store
            with pytest.raises(dist.DistNetworkError, match="EADDRINUSE"):
                dist.TCPStore(HOST, PORT, is_master=True)
            prefixed.set("key", "old")
            assert dist.TCPStore(HOST, PORT).check(["of/key"])

    assert explored(program, schedules=1).passed


def test_a_server_that_has_waited_in_vain_is_gone() -> None:
    def program() -> None:
        if dist.get_rank() == 0:
            with pytest.raises(dist.DistStoreError) as raised:  # its frames keep the store
                dist.TCPStore(HOST, PORT, 3, True, 2.0)
            assert "1/3 clients joined" in str(raised.value)
            with pytest.raises(dist.DistNetworkError):
                dist.TCPStore(HOST, PORT, timeout=1.0)
            assert dist.TCPStore(HOST, PORT, 1, True).num_keys() == 1

    assert explored(program, schedules=1).passed


def test_stores_of_one_rank_may_share_a_server() -> None:
    def program() -> None:
        rank = dist.get_rank()
        if rank == 0:
            one = dist.TCPStore(HOST, PORT, is_master=True, multi_tenant=True)
            other = dist.TCPStore(HOST, PORT, 2, True, multi_tenant=True)
            one.set("key", "value")
            assert other.check(["key"])
            with pytest.raises(dist.DistNetworkError, match="EADDRINUSE"):
                dist.TCPStore(HOST, PORT, is_master=True)
        else:
            dist.TCPStore(HOST, PORT, 2)
        dist.barrier()
        if rank == 1:  # it stands for another process
            with pytest.raises(dist.DistNetworkError, match="EADDRINUSE"):
                dist.TCPStore(HOST, PORT, is_master=True, multi_tenant=True)
        dist.barrier()

    assert explored(program, schedules=4).passed


@pytest.mark.parametrize("keeps", [True, False])
def test_the_server_of_a_rank_that_is_killed_is_not_there(keeps: bool) -> None:
    port = free_port()
    heard: list[float] = []
    kept: list[Any] = []

    def program() -> None:
        rank = dist.get_rank()
        store = dist.TCPStore(HOST, port, 2, rank == 0)
        dist.barrier()
        if rank == 0 and keeps:
            kept.append(store)
        time.sleep(5)
        with pytest.raises(dist.DistNetworkError):
            store.add("key", 1)
        began = time.monotonic()
        with pytest.raises(dist.DistNetworkError, match="timed out after 7000ms"):
            dist.TCPStore(HOST, port, timeout=7.0)
        heard.append(time.monotonic() - began)
        again = dist.TCPStore(HOST, port, is_master=True)
        again.set("key", "new")
        assert dist.TCPStore(HOST, port).get("key") == b"new"

    assert explored(program, schedules=2, faults=[kill(rank=0, at=moment(2))]).passed
    assert set(heard) == {7.0}


def test_with_faults_too_a_port_is_served_again_when_its_server_is_gone() -> None:
    def program() -> None:
        if dist.get_rank() == 0:
            dist.TCPStore(HOST, PORT, is_master=True).set("key", "old")
            assert not dist.TCPStore(HOST, PORT, is_master=True).check(["key"])
        time.sleep(100)

    assert explored(program, schedules=1, faults=[kill(rank=1, at=moment(50))]).passed


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
