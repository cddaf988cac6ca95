"""The rules by which NCCL may hang, mix up or refuse what passed elsewhere."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from phalanx.checks.nccl_rules.nccl_hazards import (
    Hazard,
    Issued,
    NcclTrace,
    as_findings,
    find_first_batches,
    find_refused_calls,
    find_shared_devices,
)
from phalanx.checks.nccl_rules.nccl_messages import find_message_hazards, traffic_of
from phalanx.checks.nccl_rules.nccl_order import find_orders
from phalanx.model import Finding, Group, Op

WORLD = Group("world", (0, 1, 2, 3))
PAIR, OTHER = Group("group 1", (0, 1)), Group("group 2", (0, 1))


def use(group: int, **more: object) -> dict[str, object]:
    return {"group": group, "name": "all_reduce", "place": f"use {group}", **more}


def send(peer: int, tag: int = 0, **more: object) -> dict[str, object]:
    return {"group": 0, "name": "send", "peer": peer, "tag": tag, "place": "send", **more}


def recv(peer: int | None, tag: int = 0, **more: object) -> dict[str, object]:
    return {"group": 0, "name": "recv", "peer": peer, "tag": tag, "place": "recv", **more}


def trace_of(
    *programs: Sequence[dict[str, object]],
    groups: Iterable[Group] = (WORLD, PAIR, OTHER),
    **more: object,
) -> NcclTrace:
    ranks = []
    for rank, program in enumerate(programs):
        numbers: dict[object, int] = {}
        calls = []
        for call in program:
            number = None
            if "peer" not in call:
                number = numbers[call["group"]] = numbers.get(call["group"], -1) + 1
            calls.append(Issued(**{"rank": rank, "thread": 0, "number": number, **call}))  # type: ignore[arg-type]
        ranks.append(tuple(calls))
    return NcclTrace(tuple(groups), tuple(ranks), **more)  # type: ignore[arg-type]


def find(trace: NcclTrace) -> list[Finding]:
    traffic = traffic_of(trace)
    hazards: list[Hazard] = [
        *find_orders(trace, traffic),
        *find_message_hazards(trace, traffic),
        *find_first_batches(trace),
        *find_refused_calls(trace),
    ]
    return as_findings(hazards, describe, "error")


def describe(call: Issued) -> Op:
    group = (WORLD, PAIR, OTHER)[call.group]
    return Op(call.rank, call.name, group, call.number, peer=call.peer, tag=call.tag)


def rules(trace: NcclTrace) -> list[str]:
    return [dict(each.facts)["rule"].partition(":")[0] for each in find(trace)]


# -- orders --------------------------------------------------------------------------------


def test_two_groups_in_opposite_orders() -> None:
    (found,) = find(trace_of([use(1), use(2)], [use(2), use(1)]))
    assert found.headline == (
        'ranks 0, 1 use "group 1" and "group 2" in opposite orders; NCCL may hang'
    )
    assert (found.kind, found.severity, found.ranks) == ("backend-hazard", "error", (0, 1))
    shown = [(block.ranks, block.op.group.name, block.notes) for block in found.blocks]
    assert shown == [
        ((0,), "group 1", ("issued first",)),
        ((0,), "group 2", ("issued after it",)),
        ((1,), "group 2", ("issued first",)),
        ((1,), "group 1", ("issued after it",)),
    ]


def test_the_odd_rank_is_at_fault() -> None:
    groups = (WORLD, Group("group 1", WORLD.ranks))
    trace = trace_of(*[[use(0), use(1)]] * 3, [use(1), use(0)], groups=groups)
    (found,) = find(trace)
    assert found.ranks == (3,)
    assert found.headline == (
        'rank 3 uses "group 1" before "world", unlike ranks 0-2; NCCL may hang'
    )
    assert [block.ranks for block in found.blocks] == [(0, 1, 2), (0, 1, 2), (3,), (3,)]


def test_a_cycle_over_three_groups_names_its_way() -> None:
    groups = [Group(f"group {i}", ranks) for i, ranks in enumerate([(0, 1), (1, 2), (0, 2)])]
    (found,) = find(
        trace_of([use(0), use(2)], [use(1), use(0)], [use(2), use(1)], groups=groups)
    )
    assert 'use "group 0", "group 1" and "group 2" in orders' in found.headline
    assert dict(found.facts)["cycle"] == "rank 0 -> rank 1 -> rank 2 -> rank 0"


def test_the_same_lines_again_are_one_finding() -> None:
    (found,) = find(trace_of([use(1), use(2)] * 5, [use(2), use(1)] * 5))
    assert dict(found.facts)["seen"] == "5 times, on ranks 0, 1; the first is shown"


def test_calls_of_different_threads_have_no_order() -> None:
    assert rules(trace_of([use(1), use(2, thread=1)], [use(2, thread=1), use(1)])) == []


def test_a_receive_posted_early_and_a_collective() -> None:
    (found,) = find(trace_of([use(1), send(1)], [recv(0), use(1)]))
    assert found.headline == (
        "ranks 0, 1 order all_reduce and a message differently; NCCL may hang"
    )


def test_a_record_that_was_cut_off_says_nothing_of_messages() -> None:
    assert rules(trace_of([send(1), recv(1)], [send(0), recv(0)], whole=False)) == []
    assert rules(trace_of([use(1), use(2)], [use(2), use(1)], whole=False)) != []


# -- messages ------------------------------------------------------------------------------


@pytest.mark.parametrize("order", [(send, recv), (recv, send)])
def test_an_unbatched_exchange(order) -> None:
    one, two = order
    (found,) = find(trace_of([one(1), two(1)], [one(0), two(0)]))
    assert " each other first, unbatched; NCCL may hang" in found.headline
    assert [block.op.name for block in found.blocks] == [one(0)["name"], two(0)["name"]] * 2
    assert "batch_isend_irecv" in (found.hint or "")


def test_a_batched_exchange_is_fine() -> None:
    world = Group("world", (0, 1))
    both = [[send(1, batch=1), recv(1, batch=1)], [send(0, batch=9), recv(0, batch=9)]]
    assert rules(trace_of(*both, groups=[world])) == []
    one_by_one = [[send(1, batch=1), recv(1, batch=2)], [send(0, batch=1), recv(0, batch=2)]]
    assert rules(trace_of(*one_by_one, groups=[world])) == ["unbatched"]


def test_a_ring_unbatched_and_batched() -> None:
    def ring(**more: object) -> NcclTrace:
        return trace_of(
            *[[send((r + 1) % 4, **more), recv((r - 1) % 4, **more)] for r in range(4)]
        )

    (found,) = find(ring())
    assert found.headline == ("ranks 0-3 send in a ring first, unbatched; NCCL may hang")
    assert rules(ring(batch=1)) == []


def test_even_ranks_send_first_and_odd_ones_receive_first() -> None:
    programs = []
    for rank in range(4):
        calls = [send((rank + 1) % 4), recv((rank - 1) % 4)]
        programs.append(calls if rank % 2 == 0 else calls[::-1])
    assert rules(trace_of(*programs)) == []


def test_a_pipeline_of_single_messages() -> None:
    first, middle, last = [send(1)] * 3, [recv(0), send(2)] * 3, [recv(1)] * 3
    assert rules(trace_of(first, middle, last)) == []


def test_tags_received_out_of_order() -> None:
    (found,) = find(trace_of([send(1, 7), send(1, 8)], [recv(0, 8), recv(0, 7)]))
    assert found.headline == (
        "rank 1 receives from rank 0 out of order by tags, which NCCL ignores"
    )
    assert [block.op.tag for block in found.blocks] == [8, 8, 7]


def test_tags_in_order_are_fine() -> None:
    assert rules(trace_of([send(1, 7), send(1, 8)], [recv(0, 7), recv(0, 8)])) == []


def test_a_message_that_only_one_side_batches() -> None:
    trace = trace_of([use(0), send(1, batch=1)], [use(0), recv(0)])
    (found,) = find(trace)
    assert found.headline == ("rank 0's batched send meets rank 1's single recv; NCCL may hang")
    assert rules(trace_of(*trace_programs(trace), eager=frozenset({0}))) == []


def trace_programs(trace: NcclTrace) -> list[list[dict[str, object]]]:
    return [[call._asdict() for call in calls if call.number is None] for calls in trace.ranks]


def test_a_receive_from_anyone_is_refused_and_confuses_nothing_else() -> None:
    trace = trace_of([send(1, 7), send(1, 8)], [recv(None, 8), recv(0, 7)])
    (found,) = find(trace)
    assert found.headline == "rank 1 receives from any source, which NCCL cannot"


# -- groups and devices --------------------------------------------------------------------


def test_the_first_batch_must_be_everybodys() -> None:
    batch = [[send(1, batch=1)], [recv(0, batch=1)]]
    (found,) = find(trace_of(*batch, [use(0)], []))
    assert found.headline == (
        'group "world" begins with a batch of ranks 0, 1 alone; NCCL may hang'
    )
    assert dict(found.facts)["unused"] == "rank 3 never used the group"
    assert rules(trace_of(*batch, [use(0)], [], eager=frozenset({0}))) == []


def test_a_batch_after_a_collective_may_be_anybodys() -> None:
    trace = trace_of([use(0), send(1, batch=1)], [use(0), recv(0, batch=1)], [use(0)], [use(0)])
    assert rules(trace) == []


def test_single_messages_do_not_begin_a_group() -> None:
    assert rules(trace_of([send(1)], [recv(0)], [], [])) == []


def test_monitored_barrier_is_gloos() -> None:
    assert rules(trace_of([use(0, name="monitored_barrier")])) == ["monitored-barrier"]


def test_ranks_of_one_machine_on_one_device() -> None:
    here, there = (Issued(rank, 0, 0, "all_reduce", 0) for rank in (0, 1))
    (hazard,) = find_shared_devices({0: {0: here}, 1: {0: there}}, lambda rank: 0)
    assert hazard.headline == "ranks 0, 1 share GPU 0; NCCL refuses that or hangs"
    assert list(find_shared_devices({0: {0: here}, 1: {0: there}}, lambda rank: rank)) == []
    assert list(find_shared_devices({0: {0: here}, 1: {1: there}}, lambda rank: 0)) == []


# -- random programs -----------------------------------------------------------------------

GROUPS = (
    WORLD,
    Group("group 1", (0, 1)),
    Group("group 2", (0, 1)),
    Group("group 3", (1, 2, 3)),
)

happenings = st.lists(
    st.one_of(
        st.tuples(st.just("use"), st.integers(0, 3)),
        st.tuples(
            st.just("message"),
            st.tuples(st.integers(0, 3), st.integers(0, 3)).filter(
                lambda ends: ends[0] != ends[1]
            ),
        ),
        st.tuples(st.just("ring"), st.just(0)),
    ),
    max_size=25,
)


def programs_of(happened: list[tuple[str, object]]) -> list[list[dict[str, object]]]:
    """One order for all, restricted to each rank; rings are batched."""
    programs: list[list[dict[str, object]]] = [[use(0)] for _ in range(4)]
    for at, (what, detail) in enumerate(happened):
        if what == "use":
            for rank in GROUPS[detail].ranks:  # type: ignore[index]
                programs[rank].append(use(detail))  # type: ignore[arg-type]
        elif what == "message":
            source, target = detail  # type: ignore[misc]
            programs[source].append(send(target, at % 3))
            programs[target].append(recv(source, at % 3))
        else:
            for rank in range(4):
                programs[rank] += [
                    send((rank + 1) % 4, batch=at),
                    recv((rank - 1) % 4, batch=at),
                ]
    return programs


@given(happenings)
def test_one_order_for_all_is_never_a_hazard(happened) -> None:
    assert rules(trace_of(*programs_of(happened), groups=GROUPS)) == []


@given(happenings, happenings, st.booleans())
def test_a_pair_that_one_rank_swaps_is_found(before, after, messages) -> None:
    programs = programs_of(before)
    pair = [send(1), recv(1)] if messages else [use(1), use(2)]
    other = [recv(0), send(0)] if messages else [use(1), use(2)]
    tails = programs_of(after)
    programs[0] += pair[::-1] if not messages else [recv(1), send(1)]
    programs[1] += other
    programs = [head + tail[1:] for head, tail in zip(programs, tails, strict=True)]
    expected = "unbatched" if messages else "opposite-orders"
    assert rules(trace_of(*programs, groups=GROUPS)) == [expected]
