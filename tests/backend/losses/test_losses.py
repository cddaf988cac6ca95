"""What else ranks see of losses: works, futures, stores, limits, NCCL."""

from __future__ import annotations

import os
import time
from datetime import timedelta
from typing import Any

import pytest
import torch
import torch.distributed as dist

import phalanx
from phalanx.faults import call, drop_store, kill, moment, partition, stop

CLOSED = "Connection closed by peer (rank 2 was killed)"


def run(program: Any, *faults: Any, ranks: int = 4, **options: Any) -> list[Any]:
    given = {"backend": "gloo", "clock": "virtual", "ranks": ranks, **options}
    return phalanx.run(program, faults=list(faults), **given)


def error_of(action: Any) -> tuple[type[BaseException], str] | None:
    try:
        action()
    except Exception as error:
        return type(error), str(error)
    return None


# -- a rank is killed --------------------------------------------------------------------------


def test_the_works_of_a_lost_collective_fail_when_they_are_waited_for() -> None:
    def body() -> Any:
        if dist.get_rank() == 2:
            time.sleep(5)
        work = dist.all_reduce(torch.ones(2), async_op=True)
        return error_of(work.wait), work.is_completed(), work.exception() is not None

    seen = run(body, kill(rank=2, at=moment(1)))
    assert seen[1] == seen[3] == ((RuntimeError, CLOSED), True, True)


def test_a_collective_that_all_have_begun_is_complete() -> None:
    def body() -> Any:
        tensor = torch.ones(2)
        work = dist.all_reduce(tensor, async_op=True)
        if dist.get_rank() == 2:
            time.sleep(5)
        assert work is not None
        work.wait()
        return tensor.tolist()

    assert run(body, kill(rank=2, at=moment(1))) == [[4.0] * 2, [4.0] * 2, None, [4.0] * 2]


def test_a_future_of_a_lost_collective_has_the_error() -> None:
    def body() -> Any:
        if dist.get_rank() == 2:
            time.sleep(5)
        work = dist.all_reduce(torch.ones(2), async_op=True)
        future = work.get_future()
        return error_of(future.wait)

    assert run(body, kill(rank=2, at=moment(1)))[1][1] == CLOSED


def test_a_message_that_was_sent_before_is_received() -> None:
    def body() -> Any:
        rank, tensor = dist.get_rank(), torch.full((1,), 7.0)
        if rank == 2:
            dist.send(tensor, 0)
            time.sleep(5)
        if rank == 0:
            time.sleep(0.5)
            dist.recv(tensor.zero_(), 2)
            return tensor.item(), error_of(lambda: dist.recv(tensor, 2))
        return None

    assert run(body, kill(rank=2, at=moment(1)))[0] == (7.0, (RuntimeError, CLOSED))


def test_isend_to_a_lost_rank_raises_in_the_call() -> None:
    def body() -> Any:
        time.sleep(2)
        return error_of(lambda: dist.isend(torch.ones(1), 2))

    assert run(body, kill(rank=2, at=moment(1)))[0] == (RuntimeError, CLOSED)


def test_a_coalesced_batch_fails_when_one_of_it_does() -> None:
    def body() -> Any:
        time.sleep(2)
        if dist.get_rank() != 0:
            return None
        ops = [dist.P2POp(dist.irecv, torch.ones(1), 2)]
        return error_of(lambda: [work.wait() for work in dist.batch_isend_irecv(ops)])

    assert run(body, kill(rank=2, at=moment(1)))[0] == (RuntimeError, CLOSED)


# -- limits ------------------------------------------------------------------------------------


def test_a_group_has_its_default_timeout_without_waiting_for_it() -> None:
    def body() -> Any:
        began = time.monotonic()
        found = error_of(dist.barrier)
        assert found is not None
        return found[1].partition(" for ")[0], round(time.monotonic() - began)

    seen = run(body, stop(rank=1, seconds=4000, at=call(1)), ranks=2)
    assert seen[0] == ("Timed out waiting 1800000ms", 1800)


def test_a_wait_with_a_timeout_of_its_own_leaves_the_group_alone() -> None:
    def body() -> Any:
        tensor = torch.ones(1)
        work = dist.all_reduce(tensor, async_op=True)
        assert work is not None
        found = error_of(lambda: work.wait(timedelta(seconds=1)))
        work.wait()
        return found is not None, tensor.item()

    assert run(body, stop(rank=1, seconds=10, at=call(1)), ranks=2)[0] == (True, 2.0)


def test_without_faults_ranks_that_wait_for_each_other_are_reported_at_once() -> None:
    def body() -> None:
        if dist.get_rank() == 0:
            dist.barrier()

    with pytest.raises(phalanx.DeadlockError):
        phalanx.run(body, ranks=2, clock="virtual")


# -- networks ----------------------------------------------------------------------------------


def test_a_receive_from_any_takes_what_arrives() -> None:
    def body() -> Any:
        rank, began = dist.get_rank(), time.monotonic()
        if rank == 0:
            tensor = torch.zeros(1)
            return [(dist.recv(tensor), round(time.monotonic() - began)) for _ in range(2)]
        time.sleep(1 if rank == 2 else 2)
        dist.send(torch.ones(1), 0)
        return None

    seen = run(body, partition([0, 1], [2], during=(0.5, 5)), ranks=3)
    assert seen[0] == [(1, 2), (2, 5)]


def test_a_gather_keeps_what_was_given_while_the_rank_goes_on() -> None:
    def body() -> Any:
        rank, mine = dist.get_rank(), torch.full((1,), float(dist.get_rank() + 1))
        time.sleep(0.5)
        parts = [torch.zeros(1) for _ in range(3)] if rank == 0 else None
        dist.gather(mine, parts, 0)
        mine.zero_()
        return parts and [part.item() for part in parts]

    assert run(body, partition([0, 1], [2], during=(0, 5)), ranks=3)[0] == [1.0, 2.0, 3.0]


def test_an_asynchronous_call_is_held_up_and_completes() -> None:
    def body() -> Any:
        tensor = torch.ones(1)
        work = dist.all_reduce(tensor, async_op=True)
        assert work is not None
        work.wait()
        return tensor.item()

    assert run(body, partition([0], [1], during=(0, 5)), ranks=2) == [2.0, 2.0]


def test_groups_of_one_side_go_on() -> None:
    def body() -> Any:
        sides = [dist.new_group([0, 1]), dist.new_group([2, 3])]
        time.sleep(1)
        tensor = torch.ones(1)
        dist.all_reduce(tensor, group=sides[dist.get_rank() // 2])
        return tensor.item()

    faults = partition([0, 1], [2, 3], during=(0.5, None))
    assert run(body, faults) == [2.0] * 4


def test_a_mismatch_is_found_behind_a_healed_cut() -> None:
    def body() -> None:
        if dist.get_rank() == 0:
            dist.all_reduce(torch.ones(2))
        else:
            dist.barrier()

    with pytest.raises(phalanx.CollectiveMismatchError):
        run(body, partition([0], [1], during=(0, 5)), ranks=2)


# -- stores ------------------------------------------------------------------------------------


def test_a_restored_store_answers_new_connections_only() -> None:
    def body() -> Any:
        old = dist.TCPStore("127.0.0.1", 0, None, True, wait_for_workers=False)
        old.set("key", "value")
        time.sleep(2)
        lost = error_of(lambda: old.get("key"))
        away = error_of(
            lambda: dist.TCPStore(
                "127.0.0.1", old.port, None, False, timedelta(seconds=1), wait_for_workers=False
            )
        )
        time.sleep(5)
        again = error_of(lambda: old.get("key"))
        new = dist.TCPStore("127.0.0.1", old.port, None, False, wait_for_workers=False)
        new.set("key", "new")
        return [lost, away, again, new.get("key")]

    seen = run(body, drop_store(at=moment(1), seconds=5), ranks=1)
    lost, away, again, value = seen[0]
    assert lost[0] is away[0] is again[0] is dist.DistNetworkError
    assert lost[1].startswith("Failed to recv, got 0 bytes")
    assert away[1].startswith("The client socket has timed out after 1000ms")
    assert (again[1], value) == ("Broken pipe", b"new")


def test_stores_without_a_server_lose_none(tmp_path: Any) -> None:
    def body() -> Any:
        stores = [dist.HashStore(), dist.FileStore(str(tmp_path / "store"), 1)]
        time.sleep(2)
        for each in stores:
            each.set("key", "value")
        return [each.get("key") for each in stores]

    assert run(body, drop_store(at=moment(1)), ranks=1) == [[b"value"] * 2]


def test_groups_go_on_without_a_store_and_new_ones_cannot_be_made() -> None:
    def body() -> Any:
        time.sleep(2)
        tensor = torch.ones(1)
        dist.all_reduce(tensor)
        found = error_of(lambda: dist.new_group([0, 1]))
        return tensor.item(), found and found[0]

    assert run(body, drop_store(at=moment(1)), ranks=2) == [(2.0, dist.DistNetworkError)] * 2


def test_the_agent_serves_the_store_when_rank_0_is_killed() -> None:
    def body() -> Any:
        world = dist.distributed_c10d._get_default_store()
        time.sleep(2)
        world.set("key", "value")
        return world.get("key")

    assert run(body, kill(rank=0, at=moment(1)), ranks=2) == [None, b"value"]


def test_a_store_is_lost_with_the_rank_that_serves_it() -> None:
    def body() -> Any:
        address = "tcp://localhost:29511"
        rank = int(os.environ["RANK"])
        dist.init_process_group("gloo", init_method=address, rank=rank, world_size=2)
        world = dist.distributed_c10d._get_default_store()
        time.sleep(2)
        return error_of(lambda: world.get("key"))

    seen = run(body, kill(rank=0, at=moment(1)), ranks=2, init=False, backend=None)
    assert seen[1][0] is dist.DistNetworkError


def test_who_is_cut_off_from_the_store_waits_for_it() -> None:
    def body() -> Any:
        world = dist.distributed_c10d._get_default_store()
        began = time.monotonic()
        time.sleep(1)
        world.add("counter", 1)
        return round(time.monotonic() - began)

    assert run(body, partition([0], [1], during=(0.5, 7)), ranks=2) == [1, 7]


# -- NCCL --------------------------------------------------------------------------------------


def barriers() -> Any:
    dist.barrier()
    began = time.monotonic()
    return error_of(dist.barrier), round(time.monotonic() - began), error_of(dist.barrier)


def test_the_watchdog_of_nccl_ends_who_waits_too_long() -> None:
    seen = run(barriers, kill(rank=2, at=call(2)), ranks=3, backend="nccl")
    (kind, text), seconds, (later, again) = seen[0]
    assert kind is later is dist.DistBackendError
    assert "Watchdog caught collective operation timeout: WorkNCCL(SeqNum=2" in text
    assert "OpType=BARRIER" in text and "Timeout(ms)=600000) ran for 600000" in text
    assert (seconds, again) == (600, text)


def test_nccl_sees_no_closed_connection() -> None:
    def body() -> Any:
        part = dist.new_group([0, 1])
        if dist.get_rank() == 2:
            time.sleep(5)
        time.sleep(2)
        dist.barrier(part)
        return True

    seen = run(body, kill(rank=2, at=moment(1)), ranks=3, backend="nccl")
    assert seen == [True, True, None]
