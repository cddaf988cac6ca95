"""What ranks that are threads write, and how a program gets at it."""

from __future__ import annotations

import gc
import pickle
import weakref
from typing import Any

import pytest
import torch
import torch.distributed as dist

import phalanx
from phalanx.journal.events import Posted


def journal_of(program: Any, **options: Any) -> Any:
    with phalanx.World(**{"ranks": 2, **options}) as world:
        world.run(program)
    return world.journal


def reduce_twice() -> None:
    for _ in range(2):
        dist.all_reduce(torch.ones(2, 3), op=dist.ReduceOp.MAX)


def test_a_collective_from_call_to_end() -> None:
    journal = journal_of(reduce_twice)
    calls = list(journal.filter(kind="posted"))
    assert [(call.rank, call.number) for call in calls] == [(0, 0), (1, 0), (1, 1), (0, 1)]
    first = calls[0]
    assert (first.name, first.group.name, first.serial) == ("all_reduce", "world", 0)
    assert first.site.function == "reduce_twice"
    assert [str(spec) for spec in first.tensors] == ["float32[2, 3]"]
    assert first.as_op().reduce_op == "MAX"
    flow = [event.kind for event in journal if not isinstance(event, Posted)]
    assert flow.count("met") == flow.count("completed") == 2
    assert flow.count("wait-ended") == 2 and "wait-began" not in flow
    assert journal.dropped == 0
    assert flow[-1] == "rank-ended" and flow.count("rank-ended") == 2
    times = [event.time for event in journal]
    assert times == sorted(times)


def reduce_later() -> None:
    dist.all_reduce(torch.ones(1), async_op=True).wait()


def test_only_asynchronous_calls_begin_to_wait() -> None:
    journal = journal_of(reduce_later)
    began, ended = journal.filter(kind=("wait-began", "wait-ended"))
    assert (began.kind, ended.kind, began.call) == ("wait-began", "wait-ended", ended.call)
    assert journal.dropped == 0


def exchange() -> None:
    if dist.get_rank():
        dist.recv(torch.zeros(1))
    else:
        dist.send(torch.ones(1), 1)


def test_a_message() -> None:
    journal = journal_of(exchange)
    send, receive = sorted(journal.filter(kind="posted"), key=lambda call: call.rank)
    assert (send.name, send.peer, send.tag, send.is_message) == ("send", 1, 0, True)
    assert (receive.name, receive.peer) == ("recv", None)
    assert receive.as_op(bare=False).outputs == send.as_op(bare=False).inputs
    (met,) = journal.filter(kind="met")
    assert met.calls == (send.call, receive.call)
    assert met.source == 0


def make_groups() -> None:
    group = dist.new_group([0, 1])
    dist.barrier(group)
    dist.destroy_process_group(group)


def test_groups() -> None:
    journal = journal_of(make_groups)
    made = [(event.rank, event.default) for event in journal.filter(kind="group-made", rank=0)]
    assert made == [(0, True), (0, False)]
    ended = list(journal.filter(kind="group-destroyed"))
    assert {event.group.name for event in ended} == {"group 1"}
    (call, _) = journal.filter(kind="posted", group="group 1")
    assert call.group is ended[0].group
    assert [group.name for group in journal.groups] == ["world"], "the other one has ended"


def disagree() -> None:
    dist.all_reduce(torch.ones(1 + dist.get_rank()))


def test_an_error_has_the_journal_of_its_run() -> None:
    with pytest.raises(phalanx.CollectiveMismatchError) as caught:
        phalanx.run(disagree, ranks=2)
    journal = caught.value.journal
    assert [event.about for event in journal.filter(kind="finding-made")] == ["mismatch"]
    ends = {event.rank: event.how for event in journal.filter(kind="rank-ended")}
    assert set(ends.values()) <= {"failed", "stopped"} and "failed" in ends.values()


def wait_for_each_other() -> None:
    """Rank 0 waits for a collective that it began, rank 1 for a message."""
    if dist.get_rank() == 0:
        dist.all_reduce(torch.ones(1), async_op=True).wait()
    else:
        dist.recv(torch.ones(1), src=0)


def test_waits_end_in_a_run_that_fails() -> None:
    with pytest.raises(phalanx.DeadlockError) as caught:
        phalanx.run(wait_for_each_other, ranks=2)
    journal = caught.value.journal
    ends = journal.filter(kind="wait-ended")
    assert sorted((event.rank, event.met) for event in ends) == [(0, False), (1, False)]
    assert journal.dropped == 0


def test_a_journal_travels() -> None:
    journal = journal_of(reduce_twice)
    copy = pickle.loads(pickle.dumps(journal))
    assert [event.kind for event in copy] == [event.kind for event in journal]
    assert [event.site for event in copy] == [event.site for event in journal]


def test_each_run_has_its_own() -> None:
    with phalanx.World(ranks=2) as world:
        assert len(world.journal) == 0
        world.run(reduce_twice)
        first = world.journal
        world.run(exchange)
        assert {call.name for call in world.journal.filter(kind="posted")} == {"send", "recv"}
    assert {call.name for call in first.filter(kind="posted")} == {"all_reduce"}
    assert {call.name for call in world.journal.filter(kind="posted")} == {"send", "recv"}


def test_no_tensor_is_kept_alive() -> None:
    seen = []

    def program() -> None:
        tensor = torch.ones(1)
        seen.append(weakref.ref(tensor))
        dist.all_reduce(tensor)
        dist.all_gather([torch.empty(1), torch.empty(1)], tensor)
        work = dist.all_reduce(tensor, async_op=True)
        assert work is not None
        work.wait()

    journal = journal_of(program)
    gc.collect()
    assert [ref() for ref in seen] == [None, None]
    assert len(list(journal.filter(kind="posted"))) == 6


def write_too_early() -> None:
    tensor = torch.ones(4)
    work = dist.all_reduce(tensor, async_op=True)
    tensor.add_(1)
    work.wait()


def test_a_tensor_that_is_touched_in_flight() -> None:
    with pytest.raises(phalanx.InFlightBufferError) as caught:
        phalanx.run(write_too_early, ranks=2)
    first = next(iter(caught.value.journal.filter(kind="buffer-touched")))
    assert first.how == "written" and first.call[1] == 0
    assert first.site.function == "write_too_early"


def use_a_store() -> None:
    store = dist.PrefixStore("p", dist.distributed_c10d._get_default_store())
    if dist.get_rank() == 0:
        store.set("key", "value")
    store.get("key")


def test_what_the_program_does_with_stores() -> None:
    journal = journal_of(use_a_store)
    (written,) = journal.filter(kind="store-written")
    reads = list(journal.filter(kind="store-read"))
    assert (written.rank, written.name, written.shown) == (0, "set", "key")
    assert {event.key for event in (written, *reads)} == {written.key}
    assert len(reads) == 2


def give_up() -> None:
    from datetime import timedelta

    if dist.get_rank() == 0:
        work = dist.irecv(torch.zeros(1), 1)
        with pytest.raises(RuntimeError, match="Timed out"):
            work.wait(timedelta(seconds=0.01))


def test_a_message_that_was_taken_back() -> None:
    journal = journal_of(give_up, clock="virtual")
    (event,) = journal.filter(kind="withdrawn")
    (call,) = journal.filter(kind="posted")
    assert event.call == call.call
    assert [ended.met for ended in journal.filter(kind="wait-ended")] == [False]
