"""What the referee writes of ranks that are processes: the same schema."""

from __future__ import annotations

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
