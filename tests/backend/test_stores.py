"""Stores: all methods over every kind, waiting for keys that another rank sets, timeouts."""

from __future__ import annotations

import os
import socket
import threading
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist

import phalanx
from phalanx.backend.stores.store import InProcessStore

SHORT = timedelta(milliseconds=50)
MINUTE = timedelta(minutes=1)
KINDS = ["in process", "hash", "file", "prefix of hash", "prefix of tcp", "default"]
IN_MEMORY = ["in process", "hash", "prefix of hash", "default"]
WITH_QUEUES = [kind for kind in KINDS if kind != "file"]
WITH_OWN_TIMEOUT = ["hash", "file", "prefix of hash", "prefix of tcp"]


class Place:
    """Where the ranks of one run find a store of some kind.

    Connecting takes torch's TCPStore seconds now and then, so all tests share one server
    and connection, with a prefix for each.
    """

    def __init__(self, kind: str, folder: Path, server: Any) -> None:
        self.kind = kind
        self.path = str(folder / "store")
        self.prefix = str(folder)
        self.server = server
        self.shared = InProcessStore() if kind == "in process" else dist.HashStore()

    def open(self) -> Any:
        if self.kind == "default":
            return dist.distributed_c10d._get_default_store()
        if self.kind == "file":
            return dist.FileStore(self.path, dist.get_world_size())
        if self.kind == "prefix of tcp":
            return dist.PrefixStore(self.prefix, self.server)
        return dist.PrefixStore("given", self.shared) if "prefix" in self.kind else self.shared


@pytest.fixture(scope="module")
def server() -> Any:
    return dist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)


@pytest.fixture
def place(request: pytest.FixtureRequest, tmp_path: Path, server: Any) -> Place:
    return Place(request.param, tmp_path, server)


def places(kinds: list[str]) -> Any:
    return pytest.mark.parametrize("place", kinds, indirect=True)


def on_one_rank(place: Place, body: Callable[[Any], Any]) -> Any:
    """`body(store)` on rank 0, while rank 1 keeps its end of the store open."""

    def program() -> Any:
        store = place.open()
        result = body(store) if dist.get_rank() == 0 else None
        dist.barrier()
        return result

    return phalanx.run(program, ranks=2)[0]


@places(KINDS)
def test_set_get_and_add(place: Place) -> None:
    def body(store: Any) -> list[Any]:
        store.set("text", "hello")
        store.set("bytes", b"\x00\xff")
        store.set("text", "again")
        found = [store.get("text"), store.get("bytes")]
        return [*found, store.add("n", 3), store.add("n", -1), store.get("n")]

    assert on_one_rank(place, body) == [b"again", b"\x00\xff", 3, 2, b"2"]


@places(KINDS)
def test_compare_set(place: Place) -> None:
    def body(store: Any) -> list[bytes]:
        return [
            store.compare_set("key", "other", "no"),
            store.compare_set("key", "", "first"),
            store.compare_set("key", "other", "no"),
            store.compare_set("key", "first", "second"),
        ]

    assert on_one_rank(place, body) == [b"other", b"first", b"first", b"second"]


@places(KINDS)
def test_check_and_delete(place: Place) -> None:
    def body(store: Any) -> list[bool]:
        store.set("a", "1")
        store.set("b", "2")
        before = [store.check(["a", "b"]), store.check(["a", "missing"])]
        return [*before, store.delete_key("a"), store.check(["a"]), store.check(["b"])]

    assert on_one_rank(place, body) == [True, False, True, False, True]


@places(KINDS)
def test_number_and_names_of_keys(place: Place) -> None:
    def body(store: Any) -> Any:
        before = store.num_keys()
        store.set("one", "1")
        store.set("two", "2")
        store.set("two", "3")
        return store.num_keys() - before, {"one", "two"} <= names(store)

    assert on_one_rank(place, body) == (2, True)


def names(store: Any) -> set[str]:
    """A prefix shows in the names, as torch's PrefixStore does it."""
    return {key.rpartition("/")[2] for key in store.list_keys()}


@places(KINDS)
def test_append_and_many_at_once(place: Place) -> None:
    def body(store: Any) -> list[Any]:
        store.append("log", "a")
        store.append("log", b"b")
        store.multi_set(["x", "y"], ["1", b"2"])
        return [store.get("log"), store.multi_get(["y", "x"])]

    assert on_one_rank(place, body) == [b"ab", [b"2", b"1"]]


@places(WITH_QUEUES)
def test_queues(place: Place) -> None:
    def body(store: Any) -> list[Any]:
        empty = store.queue_len("q")
        store.queue_push("q", "1")
        store.queue_push("q", b"2")
        found = [empty, store.queue_len("q"), store.queue_pop("q"), store.queue_pop("q")]
        with pytest.raises(dist.QueueEmptyError):
            store.queue_pop("q", False)
        with pytest.raises(dist.DistStoreError):
            store.queue_pop("q", block=False)
        return [*found, store.queue_len("q")]

    assert on_one_rank(place, body) == [0, 2, b"1", b"2", 0]


@places(KINDS)
def test_a_clone_shows_the_same_keys(place: Place) -> None:
    def body(store: Any) -> bytes:
        store.set("key", "value")
        return store.clone().get("key")

    assert on_one_rank(place, body) == b"value"


@places(KINDS)
def test_timeouts_are_kept(place: Place) -> None:
    def body(store: Any) -> timedelta:
        store.set_timeout(MINUTE)
        return store.timeout

    assert on_one_rank(place, body) == MINUTE


WAITS: dict[str, tuple[Callable[[Any], Any], Callable[[Any], Any], Any]] = {
    "get": (lambda s: s.get("key"), lambda s: s.set("key", "1"), b"1"),
    "wait": (lambda s: s.wait(["key", "too"]), lambda s: both(s), None),
    "wait with timeout": (lambda s: s.wait(["key"], MINUTE), lambda s: s.set("key", "1"), None),
    "get after add": (lambda s: s.get("key"), lambda s: s.add("key", 5), b"5"),
    "get after append": (lambda s: s.get("key"), lambda s: s.append("key", "a"), b"a"),
    "get after compare_set": (
        lambda s: s.get("key"),
        lambda s: s.compare_set("key", "", "c"),
        b"c",
    ),
    "multi_get after multi_set": (
        lambda s: s.multi_get(["key", "too"]),
        lambda s: s.multi_set(["too", "key"], ["2", "1"]),
        [b"1", b"2"],
    ),
}


def both(store: Any) -> None:
    store.set("key", "1")
    store.set("too", "2")


@pytest.mark.parametrize("what", WAITS)
@places(KINDS)
def test_waiting_for_a_key_that_another_rank_sets_later(place: Place, what: str) -> None:
    read, write, expected = WAITS[what]

    def program() -> Any:
        store = place.open()
        result = read(store) if dist.get_rank() < 2 else write(store)
        dist.barrier()
        return result

    assert phalanx.run(program, ranks=3)[:2] == [expected, expected]


@places(WITH_QUEUES)
def test_waiting_for_a_queue(place: Place) -> None:
    """Two ranks pop, one pushes: each gets one."""

    def program() -> Any:
        store = place.open()
        if dist.get_rank() == 2:
            store.queue_push("q", "a")
            store.queue_push("q", "b")
        result = store.queue_pop("q") if dist.get_rank() < 2 else None
        dist.barrier()
        return result

    assert sorted(phalanx.run(program, ranks=3)[:2]) == [b"a", b"b"]


@places(KINDS)
def test_polling_with_check_ends(place: Place) -> None:
    def program() -> bool:
        store = place.open()
        if dist.get_rank() == 1:
            store.set("key", "1")
        while not store.check(["key"]):
            pass
        dist.barrier()
        return True

    assert phalanx.run(program, ranks=2) == [True, True]


@places(KINDS)
def test_counting_to_the_number_of_ranks(place: Place) -> None:
    """A barrier as programs write it by hand."""

    def program() -> bytes:
        store = place.open()
        if store.add("arrived", 1) == dist.get_world_size():
            store.set("go", "yes")
        result = store.get("go")
        dist.barrier()
        return result

    assert phalanx.run(program, ranks=4) == [b"yes"] * 4


@places(KINDS)
def test_a_wait_with_a_timeout_gives_up(place: Place) -> None:
    def body(store: Any) -> str:
        with pytest.raises(dist.DistStoreError) as caught:
            store.wait(["nobody", "sets"], SHORT)
        return str(caught.value)

    text = "store.wait: no rank set 'nobody', 'sets' within 0.05 s"
    assert on_one_rank(place, body) == text


READS: dict[str, Callable[[Any], Any]] = {
    "get": lambda store: store.get("nobody"),
    "wait": lambda store: store.wait(["nobody"]),
    "multi_get": lambda store: store.multi_get(["nobody"]),
}


@pytest.mark.parametrize("read", READS)
@places(WITH_OWN_TIMEOUT)
def test_a_timeout_of_the_store_gives_up(place: Place, read: str) -> None:
    def body(store: Any) -> None:
        before = store.timeout
        store.set_timeout(SHORT)
        with pytest.raises(dist.DistStoreError, match=r"no rank set 'nobody' within 0\.05 s"):
            READS[read](store)
        store.set_timeout(before)

    on_one_rank(place, body)


def test_long_timeouts_pass_at_once_by_the_virtual_clock() -> None:
    store = dist.HashStore()

    def program() -> None:
        with pytest.raises(dist.DistStoreError, match="within 60 s"):
            store.wait(["nobody"], MINUTE)

    phalanx.run(program, ranks=2, clock="virtual")


@pytest.mark.parametrize("read", [*READS, "queue_pop"])
@places(IN_MEMORY)
def test_a_key_that_nobody_sets_is_a_deadlock(place: Place, read: str) -> None:
    def program() -> None:
        store = place.open()
        store.queue_pop("nobody") if read == "queue_pop" else READS[read](store)

    with pytest.raises(phalanx.DeadlockError) as caught:
        phalanx.run(program, ranks=2)
    assert f"store.{read}" in str(caught.value) and "nobody" in str(caught.value)


def test_keys_of_two_prefixes_do_not_meet() -> None:
    shared = dist.HashStore()

    def program() -> Any:
        mine = dist.PrefixStore(f"rank{dist.get_rank()}", shared)
        mine.set("key", str(dist.get_rank()))
        dist.barrier()
        return mine.get("key"), sorted(shared.list_keys())

    keys = ["rank0/key", "rank1/key"]
    assert phalanx.run(program, ranks=2) == [(b"0", keys), (b"1", keys)]


def test_nested_prefixes() -> None:
    shared = InProcessStore()

    def program() -> bytes:
        nested = dist.PrefixStore("b", dist.PrefixStore("a", shared))
        if dist.get_rank() == 1:
            shared.set("a/b/key", "value")
        return nested.get("key")

    assert phalanx.run(program, ranks=2) == [b"value"] * 2


def test_a_tcp_store_with_a_connection_per_rank() -> None:
    """The port is known only once the master has one; a Python list tells it."""
    port: list[int] = []

    def program() -> list[Any]:
        rank = dist.get_rank()
        if rank == 0:
            store = dist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
            port.append(store.port)
        dist.barrier()
        if rank != 0:
            store = dist.TCPStore("127.0.0.1", port[0], is_master=False)
        found = [store.get("key")] if rank == 0 else [store.set("key", "from 1")]
        with pytest.raises(dist.DistStoreError, match="no rank set"):
            store.wait(["nobody"], SHORT)
        found += [store.num_keys(), store.queue_len("q")]
        dist.barrier()
        return found

    assert phalanx.run(program, ranks=2) == [[b"from 1", 1, 0], [None, 1, 0]]


def test_a_tcp_store_that_waits_for_its_workers() -> None:
    """The master's constructor blocks in native code until all ranks have connected."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]

    def program() -> bytes:
        rank = dist.get_rank()
        store = dist.TCPStore("127.0.0.1", port, 3, rank == 0, MINUTE, wait_for_workers=True)
        if rank == 2:
            store.set("key", "from 2")
        result = store.get("key")
        dist.barrier()
        return result

    assert phalanx.run(program, ranks=3) == [b"from 2"] * 3


def test_a_group_on_a_store_of_the_program() -> None:
    store = dist.HashStore()

    def program() -> float:
        given = dist.PrefixStore("mine", store)
        rank = int(os.environ["RANK"])
        dist.init_process_group("gloo", store=given, rank=rank, world_size=3)
        tensor = torch.ones(1)
        dist.all_reduce(tensor)
        return tensor.item()

    assert phalanx.run(program, ranks=3, init=False) == [3.0] * 3


def test_a_thread_of_a_rank_may_wait_for_a_key() -> None:
    store = InProcessStore()

    def program() -> list[bytes]:
        if dist.get_rank() == 1:
            store.set("key", "value")
        found: list[bytes] = []
        thread = threading.Thread(target=lambda: found.append(store.get("key")))
        thread.start()
        thread.join()
        return found

    assert phalanx.run(program, ranks=2) == [[b"value"]] * 2


def test_a_thread_of_a_rank_may_set_a_key() -> None:
    store = dist.HashStore()

    def program() -> bytes:
        if dist.get_rank() == 0:
            return store.get("key")
        thread = threading.Thread(target=lambda: store.set("key", "value"))
        thread.start()
        thread.join()
        return store.get("key")

    assert phalanx.run(program, ranks=2) == [b"value"] * 2


def test_what_a_store_does_not_take_or_have_is_said_at_once(tmp_path: Path) -> None:
    def program() -> None:
        store = dist.FileStore(str(tmp_path / "store"), 2)
        with pytest.raises(NotImplementedError, match="queue"):
            store.queue_pop("queue")
        with pytest.raises(TypeError, match="incompatible function arguments"):
            store.get(1)  # type: ignore[arg-type]

    phalanx.run(program, ranks=2)
