"""Ranks as processes: how they meet for a group that the program makes itself."""

from __future__ import annotations

import os
import socket
import threading
import time
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch.distributed import rpc

import phalanx
from phalanx.engines.processes.processes_engine import ProcessesEngine, ProcessSettings

GLOO: dict[str, Any] = {
    "engine": "processes",
    "backend": "gloo",
    "timeout": 60.0,
    "init": False,
}


# -- what runs in the ranks ---------------------------------------------------------------


def total() -> float:
    tensor = torch.full((2,), float(os.environ["RANK"]))
    dist.all_reduce(tensor)
    return float(tensor[0])


def groups_after_each_other(times: int, late: int) -> list[float]:
    """The rank `late` is, a little, for each."""
    seen = []
    for _ in range(times):
        if int(os.environ["RANK"]) == late:
            time.sleep(0.02)
        dist.init_process_group("gloo")
        seen.append(total())
        dist.destroy_process_group()
    return seen


def number_in_group(**given: Any) -> tuple[int, float]:
    dist.init_process_group("gloo", **given)
    found = dist.get_rank(), total()
    dist.destroy_process_group()
    return found


def count_from_the_end() -> tuple[int, float]:
    rank, size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    return number_in_group(rank=size - 1 - rank, world_size=size)


def without_the_last() -> tuple[int, float] | None:
    rank, size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    if rank == size - 1:
        return None
    return number_in_group(rank=rank, world_size=size - 1)


def at_another_port(port: int) -> tuple[int, float, bool]:
    os.environ["MASTER_PORT"] = str(port)
    dist.init_process_group("gloo")
    rank, found = dist.get_rank(), total()
    served = socket.create_connection(("127.0.0.1", port), timeout=5)
    served.close()
    dist.barrier()
    dist.destroy_process_group()
    return rank, found, True


def comes_alone(who: int) -> str:
    if int(os.environ["RANK"]) != who:
        return ""
    with pytest.raises(dist.DistStoreError) as caught:
        dist.init_process_group("gloo", timeout=timedelta(seconds=1))
    return str(caught.value)


def comes_again(who: int) -> str:
    """One rank gives up; then all come."""
    rank = int(os.environ["RANK"])
    short = timedelta(seconds=0.5 if rank == who else 30)
    if rank == who:
        with pytest.raises(dist.DistStoreError):
            next(dist.rendezvous("env://", timeout=short))
    else:
        time.sleep(1.0)
    store, _, size = next(dist.rendezvous("env://", timeout=timedelta(seconds=30)))
    store.set(str(rank), "x")
    store.wait([str(each) for each in range(size)])
    return ",".join(sorted(store.list_keys()))


def two_of_three() -> str:
    if os.environ["RANK"] == "1":
        return ""
    with pytest.raises(dist.DistStoreError) as caught:
        dist.init_process_group("gloo", timeout=timedelta(seconds=1))
    return str(caught.value)


def in_children(times: int) -> list[int]:
    """Children that are forked take the place of their ranks for a group."""
    found = [int(number_in_group()[1])]
    for _ in range(times):
        child = os.fork()
        if child == 0:
            code = 1
            try:
                code = 0 if number_in_group()[1] == 1.0 else 2
            finally:
                os._exit(code)
        found.append(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
    return found


def stores_of_meetings(times: int) -> list[list[str]]:
    """What each has that nobody wrote there, with all of them open."""
    found, kept = [], []
    for turn in range(times):
        store, rank, size = next(dist.rendezvous("env://"))
        store.set(f"{turn}: {rank}", "")
        own = [f"{turn}: {each}" for each in range(size)]
        store.wait(own)
        found.append(sorted({*store.list_keys()} - {*own}))
        kept.append(store)
    return found


def limits_of_stores() -> list[float]:
    """Each has its own, also while there is another."""
    kept = [
        next(dist.rendezvous("env://", timeout=timedelta(seconds=each)))[0] for each in (40, 50)
    ]
    kept.append(next(dist.rendezvous("env://"))[0])
    return [each.timeout.total_seconds() for each in kept]


def groups_and_calls_at_once() -> tuple[float, int]:
    """In an order of its own on each rank."""
    rank = int(os.environ["RANK"])
    answers: list[int] = []

    def call() -> None:
        rpc.init_rpc(f"worker{rank}", rank=rank, world_size=2)
        answers.append(rpc.rpc_sync(f"worker{1 - rank}", int, args=("7",)))
        rpc.shutdown()

    caller = threading.Thread(target=call)
    if rank == 0:
        caller.start()
    found = number_in_group()[1]
    if rank == 1:
        caller.start()
    caller.join()
    return found, answers[0]


def store_at_the_address() -> bytes:
    """As torch's own server for debugging finds the other ranks."""
    dist.init_process_group("gloo")
    dist.barrier()
    host, port = os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"])
    store = dist.TCPStore(host, port, is_master=False, wait_for_workers=False)
    store.set(f"from {dist.get_rank()}", "hello")
    return store.get(f"from {1 - dist.get_rank()}")


def addresses_listened_at() -> set[str]:
    """At the port of the address, as the system has them."""
    dist.init_process_group("gloo")
    dist.barrier()
    port = f":{int(os.environ['MASTER_PORT']):04X}"
    lines = [
        line.split()
        for table in ("/proc/net/tcp", "/proc/net/tcp6")
        for line in Path(table).read_text().splitlines()[1:]
    ]
    return {line[1] for line in lines if line[1].endswith(port) and line[3] == "0A"}


def visits_at_the_address() -> int:
    dist.init_process_group("gloo")
    dist.barrier()
    host, port = os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"])
    store = dist.TCPStore(host, port, is_master=False, wait_for_workers=False)
    seen = store.add("visits", 1)
    dist.barrier()
    return seen


def keys_of_others() -> list[str]:
    store = next(dist.rendezvous("env://"))[0]
    store.set("large", "x" * 1000)
    return [key for key in store.underlying_store.list_keys() if not key.startswith("call ")]


def calls_with_keys() -> set[str]:
    store = next(dist.rendezvous("env://"))[0]
    return {key.partition("/")[0] for key in store.underlying_store.list_keys()}


def by_another_name() -> tuple[int, float]:
    """One rank spells the address out, another one has its own word for it."""
    rank, port = os.environ["RANK"], os.environ["MASTER_PORT"]
    if rank == "1":
        os.environ["MASTER_ADDR"] = "localhost"
    if rank == "2":
        return number_in_group(init_method=f"tcp://127.0.0.1:{port}", rank=2, world_size=3)
    return number_in_group()


def ask_twice() -> str:
    meeting = dist.rendezvous("env://")
    next(meeting)
    with pytest.raises(RuntimeError) as caught:
        next(meeting)
    return str(caught.value)


def leave_the_group() -> float:
    dist.init_process_group("gloo")
    return total()


# -- tests --------------------------------------------------------------------------------


@pytest.mark.parametrize("late", [0, 1])
@pytest.mark.parametrize("checks", ["all", "none"])
def test_a_rank_may_be_late_for_each_of_many_groups(late: int, checks: str) -> None:
    with phalanx.World(ranks=2, checks=checks, **GLOO) as world:
        assert world.run(groups_after_each_other, 8, late) == [[1.0] * 8] * 2
        assert world.run(groups_after_each_other, 2, late) == [[1.0] * 2] * 2


def test_a_program_may_number_its_ranks_itself() -> None:
    with phalanx.World(ranks=3, **GLOO) as world:
        assert world.run(count_from_the_end) == [(2, 3.0), (1, 3.0), (0, 3.0)]
        assert world.run(number_in_group) == [(0, 3.0), (1, 3.0), (2, 3.0)]


def test_some_of_the_ranks_meet_at_the_address_that_all_were_given() -> None:
    with phalanx.World(ranks=3, **GLOO) as world:
        assert world.run(without_the_last) == [(0, 1.0), (1, 1.0), None]
        assert world.run(number_in_group) == [(0, 3.0), (1, 3.0), (2, 3.0)]


def test_only_this_machine_reaches_the_store_at_the_address() -> None:
    with phalanx.World(ranks=2, **GLOO) as world:
        for found in world.run(addresses_listened_at):
            assert [address.partition(":")[0] for address in found] == ["0100007F"]


def test_an_address_that_the_program_chose_is_served_there() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
    with phalanx.World(ranks=2, **GLOO) as world:
        assert world.run(at_another_port, port) == [(0, 1.0, True), (1, 1.0, True)]


def test_an_address_in_the_environment_of_the_run_is_served_there(monkeypatch) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
    monkeypatch.setenv("MASTER_PORT", str(port))
    with phalanx.World(ranks=2, **GLOO) as world:
        assert world.run(at_another_port, port) == [(0, 1.0, True), (1, 1.0, True)]


@pytest.mark.parametrize("who", [0, 1])
def test_who_waits_in_vain_hears_for_whom_and_the_next_call_is_not_to_blame(who: int) -> None:
    settings = ProcessSettings(ranks=2, backend="gloo", timeout=60, init=False)
    engine = ProcessesEngine(settings)
    try:
        told = engine.call(comes_alone, (who,), fresh=True)
        assert told[who] == (
            f"Timed out after 1 seconds waiting for rank {1 - who} of 2 to make a group"
        )
        assert engine.call(number_in_group, fresh=True) == [(0, 1.0), (1, 1.0)]
        assert engine.call(leave_the_group, fresh=True) == [1.0, 1.0]
        assert engine.call(leave_the_group, fresh=True) == [1.0, 1.0]
    finally:
        engine.close()


@pytest.mark.parametrize("who", [0, 1])
def test_who_gave_up_may_come_again(who: int) -> None:
    assert phalanx.run(comes_again, who, ranks=2, checks="none", **GLOO) == ["0,1", "0,1"]


def test_all_who_wait_in_vain_are_told_the_same() -> None:
    text = "Timed out after 1 seconds waiting for rank 1 of 3 to make a group"
    found = phalanx.run(two_of_three, ranks=3, checks="none", **GLOO)
    assert found == [text, "", text]


def test_children_that_are_forked_meet_each_other_again_and_again() -> None:
    assert phalanx.run(in_children, 3, ranks=2, **GLOO) == [[1, 0, 0, 0]] * 2


def test_each_meeting_has_an_empty_store_of_its_own() -> None:
    assert phalanx.run(stores_of_meetings, 12, ranks=2, **GLOO) == [[[]] * 12] * 2


def test_each_store_has_its_own_limit() -> None:
    half_an_hour = 1800.0
    assert phalanx.run(limits_of_stores, ranks=2, **GLOO) == [[40.0, 50.0, half_an_hour]] * 2


def test_groups_and_remote_calls_begin_in_threads_of_their_own() -> None:
    found = phalanx.run(groups_and_calls_at_once, ranks=2, checks="none", **GLOO)
    assert found == [(1.0, 7)] * 2


def test_there_is_a_store_at_the_address_itself() -> None:
    assert phalanx.run(store_at_the_address, ranks=2, **GLOO) == [b"hello"] * 2


def test_the_store_at_the_address_begins_anew_with_a_fresh_call() -> None:
    engine = ProcessesEngine(ProcessSettings(ranks=2, backend="gloo", timeout=60, init=False))
    try:
        for _ in range(2):
            assert sorted(engine.call(visits_at_the_address, fresh=True)) == [1, 2]
    finally:
        engine.close()


def test_a_fresh_call_leaves_no_keys_of_the_last_one() -> None:
    engine = ProcessesEngine(ProcessSettings(ranks=2, backend="gloo", timeout=60, init=False))
    try:
        assert engine.call(keys_of_others, fresh=True) == [[], []]
        assert engine.call(calls_with_keys, fresh=True) == [{"call 1"}] * 2
    finally:
        engine.close()


def test_the_address_has_several_names() -> None:
    found = phalanx.run(by_another_name, ranks=3, **GLOO)
    assert found == [(0, 3.0), (1, 3.0), (2, 3.0)]


def test_a_rendezvous_is_asked_once() -> None:
    text = "env:// leads to one meeting; ask for another one"
    assert phalanx.run(ask_twice, ranks=2, **GLOO) == [text] * 2


def meet_apart(folder: str) -> None:
    """Each rank at a file of its own."""
    rank = os.environ["RANK"]
    dist.init_process_group(
        "gloo", init_method=f"file://{folder}/{rank}", rank=int(rank), world_size=2
    )


def test_a_standstill_in_init_says_where_each_rank_waits(tmp_path: Path) -> None:
    with pytest.raises(phalanx.StallError) as caught:
        phalanx.run(meet_apart, str(tmp_path), ranks=2, **{**GLOO, "timeout": 2.0})
    text = " ".join(str(caught.value).split())
    for rank in (0, 1):
        assert (
            f"rank {rank} in init_process_group(file://{tmp_path}/{rank}, world_size=2)" in text
        )
