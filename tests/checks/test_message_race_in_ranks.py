"""Message races: receives from any source and keys of stores, wrong and right ones."""

from __future__ import annotations

import warnings

import pytest
import torch
import torch.distributed as dist

import phalanx
from tests.checks import joined_in_order
from tests.support import assert_silent


def findings(program, ranks: int = 3, **options):
    with phalanx.World(ranks=ranks, **options) as world:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", phalanx.PhalanxWarning)
            world.run(program)
        return [each for each in world.findings if each.kind == "message-race"]


def store():
    return dist.distributed_c10d._get_default_store()


def one_of_any_then_one_of_rank_2() -> None:
    if dist.get_rank() == 0:
        dist.recv(torch.empty(1))
        dist.recv(torch.empty(1), src=2)
    else:
        dist.send(torch.ones(1), dst=0)


def two_sizes() -> None:
    if dist.get_rank() == 0:
        dist.recv(torch.empty(1))
        dist.recv(torch.empty(2))
    else:
        dist.send(torch.ones(dist.get_rank()), dst=0)


def the_first_wins() -> None:
    if dist.get_rank() == 0:
        dist.recv(torch.empty(1))
    else:
        dist.isend(torch.ones(1), dst=0)


def a_weighted_sum() -> None:
    if dist.get_rank() == 0:
        a, b = torch.empty(1), torch.empty(1)
        dist.recv(a)
        dist.recv(b)
        result = 10 * a + b
        assert result.numel() == 1
    else:
        dist.send(torch.ones(1), dst=0)


def a_quotient() -> float:
    if dist.get_rank() == 0:
        a, b = torch.empty(1), torch.empty(1)
        dist.recv(tensor=a)
        dist.recv(tensor=b)
        return a.item() / b.item()
    dist.send(torch.ones(1), dst=0)
    return 0.0


def a_difference() -> None:
    if dist.get_rank() == 0:
        a, b = torch.empty(1), torch.empty(1)
        dist.recv(a)
        dist.recv(b)
        change = a - b
        assert change.numel() == 1
    else:
        dist.send(torch.ones(1), dst=0)


def on_a_group() -> None:
    group = dist.new_group([2, 1, 0])
    if dist.get_rank() == 0:
        dist.recv(torch.empty(1), group=group)
        dist.recv(torch.empty(1), src=2, group=group)
    else:
        dist.send(torch.ones(1), dst=0, group=group)


def a_key_of_two_ranks() -> None:
    if dist.get_rank() < 2:
        store().set("best", str(dist.get_rank()))
    else:
        store().get("best")


def a_key_of_two_ranks_read_after_a_barrier() -> None:
    if dist.get_rank() < 2:
        store().set("best", str(dist.get_rank()))
    dist.barrier()
    store().get("best")


def looks_and_sets() -> None:
    if not store().check(["leader"]):
        store().set("leader", str(dist.get_rank()))
    dist.barrier()
    store().get("leader")


@pytest.mark.parametrize(
    ("program", "ranks"),
    [
        (one_of_any_then_one_of_rank_2, (0,)),
        (two_sizes, (0,)),
        (the_first_wins, (0,)),
        (on_a_group, (0,)),
        (a_key_of_two_ranks, (0, 1)),
        (a_key_of_two_ranks_read_after_a_barrier, (0, 1)),
    ],
    ids=lambda given: getattr(given, "__name__", ""),
)
def test_what_depends_on_who_comes_first_is_found(program, ranks) -> None:
    (finding,) = findings(program)
    assert finding.ranks == ranks and finding.severity == "warning"
    assert all(b.op.site.file.endswith("test_message_race_in_ranks.py") for b in finding.blocks)


def test_to_look_and_then_to_set_is_found() -> None:
    (finding, *_) = findings(looks_and_sets, ranks=2)
    assert finding.ranks == (0, 1) and 'find "leader" missing' in finding.headline


# -- correct programs --------------------------------------------------------------------


def summed_up() -> None:
    if dist.get_rank() == 0:
        total, part = torch.zeros(1), torch.empty(1)
        for _ in range(2 * (dist.get_world_size() - 1)):
            dist.recv(part)
            total += part
    else:
        for _ in range(2):
            dist.send(torch.ones(1), dst=0)


def a_head_and_then_its_body() -> None:
    if dist.get_rank() == 0:
        for _ in range(dist.get_world_size() - 1):
            source = dist.recv(torch.empty(1))
            dist.recv(torch.empty(4), src=source)
    else:
        works = [dist.isend(torch.ones(1), dst=0), dist.isend(torch.ones(4), dst=0)]
        for work in works:
            work.wait()


def the_rest_by_name() -> None:
    """Whoever came first; the others are asked for one by one."""
    if dist.get_rank() == 0:
        first = dist.recv(torch.empty(1))
        for source in {1, 2} - {first}:
            dist.recv(torch.empty(1), src=source)
    else:
        dist.send(torch.ones(1), dst=0)


def kept_for_nothing() -> None:
    if dist.get_rank() == 0:
        first = dist.recv(torch.empty(1))
        dist.recv(torch.empty(1), src=2)
        assert first == 1
    else:
        dist.send(torch.ones(1), dst=0)


def separated_by_a_barrier() -> None:
    if dist.get_rank() == 1:
        dist.send(torch.ones(1), dst=0)
    if dist.get_rank() == 0:
        dist.recv(torch.empty(1))
    dist.barrier()
    if dist.get_rank() == 2:
        dist.send(torch.ones(1), dst=0)
    if dist.get_rank() == 0:
        dist.recv(torch.empty(1), src=2)


def separated_by_a_message() -> None:
    rank = dist.get_rank()
    if rank == 0:
        dist.recv(torch.empty(1))
        dist.send(torch.ones(1), dst=2)
        dist.recv(torch.empty(1), src=2)
    elif rank == 1:
        dist.send(torch.ones(1), dst=0)
    else:
        dist.recv(torch.empty(1), src=0)
        dist.send(torch.ones(1), dst=0)


def separated_by_a_key() -> None:
    rank = dist.get_rank()
    if rank == 0:
        dist.recv(torch.empty(1))
        store().set("go", "1")
        dist.recv(torch.empty(1), src=2)
    elif rank == 1:
        dist.send(torch.ones(1), dst=0)
    else:
        store().wait(["go"])
        dist.send(torch.ones(1), dst=0)


def told_apart_by_tags() -> None:
    rank = dist.get_rank()
    if rank == 0:
        dist.recv(torch.empty(1), tag=1)
        dist.recv(torch.empty(1), src=2, tag=2)
    else:
        dist.send(torch.ones(1), dst=0, tag=rank)


def posted_before() -> None:
    rank = dist.get_rank()
    if rank == 0:
        named = dist.irecv(torch.empty(1), src=2)
        dist.recv(torch.empty(1))
        named.wait()
    else:
        dist.send(torch.ones(1), dst=0)


def the_same_value() -> None:
    store().set("ready", "yes")
    store().get("ready")


def a_key_in_turn() -> None:
    for turn in range(dist.get_world_size()):
        if turn == dist.get_rank():
            store().set("holder", str(turn))
        dist.barrier()
        store().get("holder")


def handed_on() -> None:
    """Each rank waits for the one before, and overwrites what it wrote."""
    rank = dist.get_rank()
    if rank:
        store().wait([f"done/{rank - 1}"])
    store().set("last", str(rank))
    store().set(f"done/{rank}", "1")
    dist.barrier()
    store().get("last")


def counted() -> None:
    store().add("count", 1)
    dist.barrier()
    store().get("count")


def waited_for_in_a_loop() -> None:
    if dist.get_rank() == 0:
        store().set("go", "1")
    while not store().check(["go"]):
        pass


def set_by_whoever_is_first() -> None:
    store().compare_set("leader", "", str(dist.get_rank()))
    store().get("leader")


@pytest.mark.parametrize(
    "program",
    [
        summed_up,
        a_head_and_then_its_body,
        the_rest_by_name,
        separated_by_a_barrier,
        separated_by_a_message,
        separated_by_a_key,
        told_apart_by_tags,
        posted_before,
        the_same_value,
        a_key_in_turn,
        handed_on,
        counted,
        waited_for_in_a_loop,
        set_by_whoever_is_first,
    ],
    ids=lambda program: program.__name__,
)
def test_correct_programs_are_left_alone(program) -> None:
    assert_silent(program, ranks=3, seeds=range(4))


def test_a_source_that_is_written_as_a_number_is_not_chosen() -> None:
    (found,) = findings(kept_for_nothing)
    assert found.kind == "message-race"


def test_it_can_be_turned_off() -> None:
    assert findings(one_of_any_then_one_of_rank_2, checks="all,-message-race") == []


def test_nothing_is_kept_from_run_to_run() -> None:
    with phalanx.World(ranks=3) as world:
        for _ in range(2):
            with pytest.warns(phalanx.PhalanxWarning):
                world.run(one_of_any_then_one_of_rank_2)
        world.run(summed_up)
        assert len(world.findings) == 2


def test_a_deadlock_names_the_receive_that_took_the_message() -> None:
    def program() -> None:
        if dist.get_rank() == 0:
            dist.recv(torch.empty(1))
            dist.recv(torch.empty(1), src=1)
        else:
            dist.send(torch.ones(1), dst=0)

    with pytest.raises(phalanx.DeadlockError, match=r"took\s+the\s+message\s+from\s+rank\s+1"):
        phalanx.run(program, ranks=3)


@pytest.mark.parametrize("program", [a_weighted_sum, a_quotient, a_difference])
def test_arithmetic_that_tells_two_messages_apart(program) -> None:
    (found,) = findings(program)
    assert found.ranks == (0,) and "takes messages as they come" in found.headline


def a_sum() -> None:
    if dist.get_rank() == 0:
        a, b = torch.empty(1), torch.empty(1)
        dist.recv(a)
        dist.recv(b)
        total = 1 + a + 2 * b * a + b
        assert total.numel() == 1
    else:
        dist.send(torch.ones(1), dst=0)


def a_distance() -> None:
    if dist.get_rank() == 0:
        a, b = torch.empty(1), torch.empty(1)
        dist.recv(a)
        dist.recv(b)
        difference = a - b
        assert difference.abs() == 0
    else:
        dist.send(torch.ones(1), dst=0)


def a_function_of_both() -> None:
    if dist.get_rank() == 0:
        a, b = torch.empty(1), torch.empty(1)
        dist.recv(a)
        dist.recv(b)
        largest = torch.maximum(a, b) - 1
        assert largest.numel() == 1
    else:
        dist.send(torch.ones(1), dst=0)


def replaced_before() -> None:
    if dist.get_rank() == 0:
        a, b = torch.empty(1), torch.empty(1)
        dist.recv(a)
        dist.recv(b)
        a, b = torch.minimum(a, b), torch.maximum(a, b)
        spread = b - a
        assert spread.numel() == 1
    else:
        dist.send(torch.ones(1), dst=0)


def answers_kept() -> None:
    if dist.get_rank() == 0:
        a, b = torch.empty(1), torch.empty(1)
        first = dist.recv(a)
        second = dist.recv(b)
        result = first * a + second * b
        assert result.numel() == 1
    else:
        dist.send(torch.ones(1), dst=0)


def sources_named() -> None:
    if dist.get_rank() == 0:
        a, b = torch.empty(1), torch.empty(1)
        dist.recv(a, src=1)
        dist.recv(b, src=2)
        result = a - b
        assert result.numel() == 1
    else:
        dist.send(torch.ones(1), dst=0)


def one_after_the_other() -> None:
    rank = dist.get_rank()
    a, b = torch.empty(1), torch.empty(1)
    if rank == 1:
        dist.send(torch.ones(1), dst=0)
    if rank == 0:
        dist.recv(a)
    dist.barrier()
    if rank == 2:
        dist.send(torch.ones(1), dst=0)
    if rank == 0:
        dist.recv(b)
        result = a - b
        assert result.numel() == 1


def of_one_sender() -> None:
    rank = dist.get_rank()
    if rank == 0:
        a, b = torch.empty(1), torch.empty(1)
        dist.recv(a)
        dist.recv(b)
        result = a - b
        assert result.numel() == 1
    elif rank == 1:
        dist.send(torch.ones(1), dst=0)
        dist.send(torch.ones(1), dst=0)


@pytest.mark.parametrize(
    "program",
    [
        a_sum,
        a_distance,
        a_function_of_both,
        replaced_before,
        answers_kept,
        sources_named,
        one_after_the_other,
        of_one_sender,
    ],
)
def test_messages_that_may_be_exchanged_are_silent(program) -> None:
    assert_silent(program, ranks=3, seeds=(0, 1, 2))


@pytest.mark.parametrize("program", [joined_in_order.joined, joined_in_order.values])
def test_messages_that_are_joined_as_they_come(program) -> None:
    (found,) = findings(program)
    assert found.ranks == (0,) and "takes messages as they come" in found.headline


def summed_in_a_loop() -> None:
    parts = []
    if dist.get_rank() == 0:
        for _ in range(2):
            part = torch.empty(1)
            dist.recv(part)
            parts.append(part)
        torch.cat(parts).sum()
    else:
        dist.send(torch.ones(1), dst=0)


@pytest.mark.parametrize(
    "program",
    [joined_in_order.with_their_senders, joined_in_order.of_one_sender, summed_in_a_loop],
)
def test_messages_in_a_loop_that_may_be_exchanged_are_silent(program) -> None:
    assert_silent(program, ranks=3, seeds=(0, 1, 2))
