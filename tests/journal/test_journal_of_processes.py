"""What the referee writes of ranks that are processes: the same schema."""

from __future__ import annotations

import threading
import time

import pytest
import torch
import torch.distributed as dist

import phalanx


def talk() -> None:
    dist.all_reduce(torch.ones(2, 3), op=dist.ReduceOp.MAX)
    group = dist.new_group([0, 1])
    dist.barrier(group)
    if dist.get_rank():
        dist.recv(torch.zeros(1))
    else:
        dist.send(torch.ones(1), 1)


def exchange_in_halves() -> None:
    other = 1 - dist.get_rank()
    works = dist.batch_isend_irecv([dist.P2POp(dist.isend, torch.ones(1), other)])
    more = [dist.P2POp(dist.irecv, torch.ones(1), other)]
    more.append(dist.P2POp(dist.isend, torch.ones(1), other, tag=1))
    works += dist.batch_isend_irecv(more)
    works += dist.batch_isend_irecv([dist.P2POp(dist.irecv, torch.ones(1), other, tag=1)])
    for work in works:
        work.wait()


def wait_beside_a_thread() -> None:
    if dist.get_rank() == 0:
        threading.Thread(target=time.sleep, args=(0.1,)).start()
        dist.barrier()


def fail() -> None:
    dist.all_reduce(torch.ones(1 + dist.get_rank()))


def test_calls_meetings_waits_and_ends() -> None:
    with phalanx.World(ranks=2, engine="processes") as world:
        world.run(talk)
        journal = world.journal
        with pytest.raises(phalanx.CollectiveMismatchError) as caught:
            world.run(fail)
    assert not journal.in_order
    calls = list(journal.filter(kind="posted", rank=1))
    assert [call.name for call in calls] == ["all_reduce", "barrier", "recv"]
    reduce, barrier, receive = calls
    assert reduce.as_op(bare=False).reduce_op == "MAX"
    assert [str(spec) for spec in reduce.tensors][:1] == ["float32[2, 3]"]
    assert reduce.site.function == "talk"
    assert (barrier.group.name, barrier.number) == ("group 1", 0)
    assert (receive.peer, receive.tag) == (None, 0)
    met = list(journal.filter(kind="met"))
    assert {(event.group.name, event.number) for event in met} >= {("world", 0), ("group 1", 0)}
    (message,) = [event for event in met if event.number is None]
    assert message.calls[-1] == receive.call and message.source == 0
    assert [event.how for event in journal.filter(kind="rank-ended")] == ["finished"] * 2
    made = {event.group.name for event in journal.filter(kind="group-made")}
    assert made == {"world", "group 1"}
    found = caught.value.journal.filter(kind="finding-made")
    assert {event.about for event in found} == {"mismatch"}


def test_batches_that_follow_each_other() -> None:
    with phalanx.World(ranks=2, engine="processes", backend="gloo") as world:
        world.run(exchange_in_halves)
        calls = list(world.journal.filter(kind="posted", rank=1))
    first = calls[0].batch
    assert first is not None
    assert [call.batch - first for call in calls] == [0, 1, 1, 2]


def test_a_thread_that_ends_leaves_its_rank_blocked() -> None:
    with pytest.raises(phalanx.DeadlockError, match="rank 1 returned; rank 0 waits for it"):
        phalanx.run(wait_beside_a_thread, ranks=2, engine="processes", timeout=60)


def leave_a_message() -> None:
    if dist.get_rank() == 0:
        dist.isend(torch.ones(1), 1)
    dist.barrier()


def differ_unheard() -> None:
    dist.all_reduce(torch.ones(1 + dist.get_rank()), async_op=True)


def compute_and_wait() -> None:
    if dist.get_rank() == 0:
        time.sleep(60)
    dist.barrier()


@pytest.mark.parametrize("engine", ["threads", "processes"])
def test_findings_at_the_end_are_written_once(engine: str) -> None:
    with phalanx.World(ranks=2, engine=engine, backend="gloo") as world:
        with pytest.warns(phalanx.PhalanxWarning, match="was never received"):
            world.run(leave_a_message)
        kinds = [event.about for event in world.journal.filter(kind="finding-made")]
    assert kinds.count("unmatched-message") == 1 and len(kinds) == len(set(kinds))


def test_an_error_that_nobody_waited_for_is_written_once() -> None:
    with phalanx.World(ranks=2) as world:
        with pytest.raises(phalanx.CollectiveMismatchError):
            world.run(differ_unheard)
        found = list(world.journal.filter(kind="finding-made"))
    assert [event.about for event in found].count("mismatch") == 1


def test_a_rank_that_is_killed_has_an_end() -> None:
    with pytest.raises(phalanx.StallError) as caught:
        phalanx.run(compute_and_wait, ranks=2, engine="processes", timeout=1.5)
    ends = caught.value.journal.filter(kind="rank-ended")
    assert sorted((event.rank, event.how) for event in ends) == [(0, "stopped"), (1, "stopped")]
