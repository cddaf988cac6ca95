"""Groups made and destroyed by ranks, and calls on another group of the same members."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from phalanx.checks.group_lifecycle import (
    Destroyed,
    find_destroy_mismatch,
    find_kept_group,
    find_split_mismatch,
)
from phalanx.matching.groups import find_creation_mismatch, find_missing_creation
from phalanx.matching.other_group import find_other_group
from phalanx.model import Group, Op, Site, Wait

light = settings(max_examples=60, deadline=None)
HERE = Site("train.py", 7, "main", "dist.new_group(ranks)")


def make(rank: int, *members: int, backend: str = "gloo") -> Op:
    return Op(rank, "new_group", Group(backend, members), site=HERE)


def destroy(rank: int, name: str, *members: int, calls: int = 0) -> Destroyed:
    group = Group(name, members)
    return Destroyed(group, Op(rank, "destroy_process_group", group, calls, site=HERE))


def test_other_members_at_the_same_place() -> None:
    made = {0: [make(0, 0, 1)], 1: [make(1, 1, 2)], 2: [make(2, 0, 1)]}
    verdict = find_creation_mismatch(made, 0)
    assert verdict is not None and (verdict.kind, verdict.severity) == ("mismatch", "error")
    assert verdict.ranks == (1,)
    assert verdict.headline == (
        "rank 1 called new_group([1, 2]) where ranks 0, 2 called it with [0, 1]"
    )


def test_another_backend_is_another_group() -> None:
    made = {0: [make(0, 0, 1)], 1: [make(1, 0, 1, backend="nccl")]}
    verdict = find_creation_mismatch(made, 0)
    assert verdict is not None and verdict.ranks == ()


def test_the_same_groups_in_another_order_are_said_to_be_that() -> None:
    one, other = (0, 1), (1, 2)
    made = {
        0: [make(0, *one), make(0, *other)],
        1: [make(1, *other), make(1, *one)],
        2: [make(2, *one), make(2, *other)],
    }
    verdict = find_creation_mismatch(made, 0)
    assert verdict is not None
    assert verdict.hint == "the ranks made the same groups in different orders"


def test_groups_of_one_rank_meet_nobody() -> None:
    apart = {rank: [make(rank, rank)] for rank in range(4)}
    assert find_creation_mismatch(apart, 0) is None
    beside = {0: [make(0, 0, 1)], 1: [make(1, 0, 1)], 2: [make(2, 2)], 3: [make(3, 2)]}
    assert find_creation_mismatch(beside, 0) is None
    left_alone = {0: [make(0, 0, 1)], 1: [make(1, 1)]}
    assert find_creation_mismatch(left_alone, 0) is not None
    halves = {0: [make(0, 0, 1)], 1: [make(1, 0, 1)], 2: [make(2, 2, 3)], 3: [make(3, 2, 3)]}
    assert find_creation_mismatch(halves, 0) is not None


def test_a_group_that_some_never_made() -> None:
    made: dict[int, list[Op]] = {0: [make(0, 0, 1)], 1: [make(1, 0, 1)], 2: [], 3: []}
    verdict = find_missing_creation(made)
    assert verdict is not None and verdict.ranks == (2, 3)
    assert verdict.headline == "ranks 0, 1 called new_group([0, 1]) where ranks 2, 3 did not"
    assert verdict.hint is not None and "no members" in verdict.hint


groups = st.lists(st.lists(st.integers(0, 3), min_size=1, max_size=4, unique=True), max_size=6)


@light
@given(groups)
def test_equal_sequences_are_in_order(lists: list[list[int]]) -> None:
    made = {rank: [make(rank, *members) for members in lists] for rank in range(4)}
    assert find_missing_creation(made) is None
    assert all(find_creation_mismatch(made, number) is None for number in range(len(lists)))


@light
@given(groups.filter(bool), st.data())
def test_one_edit_is_found(lists: list[list[int]], data: st.DataObject) -> None:
    made = {rank: [make(rank, *members) for members in lists] for rank in range(4)}
    odd = data.draw(st.integers(0, 3))
    at = data.draw(st.integers(0, len(lists) - 1))
    if data.draw(st.booleans()):
        del made[odd][-1]
        verdict = find_missing_creation(made)
    else:
        made[odd][at] = make(odd, 0, 1, 2, 3, 4)
        verdict = find_creation_mismatch(made, at)
    assert verdict is not None and verdict.ranks == (odd,)


def test_destroyed_in_opposite_orders() -> None:
    one, two = ("group 1", 0, 1), ("group 2", 0, 1)
    verdict = find_destroy_mismatch(
        {
            0: [destroy(0, *one), destroy(0, *two)],
            1: [destroy(1, *two), destroy(1, *one)],
        }
    )
    assert verdict is not None and verdict.severity == "warning"
    assert verdict.headline == (
        'ranks 0 and 1 destroyed "group 1" and "group 2" in opposite orders'
    )


def test_destroyed_in_one_order_or_by_some_only() -> None:
    one, two, three = ("group 1", 0, 1), ("group 2", 0, 1), ("group 3", 1, 2)
    in_order = {
        0: [destroy(0, *one), destroy(0, *two)],
        1: [destroy(1, *three), destroy(1, *one), destroy(1, *two)],
        2: [destroy(2, *three)],
        3: [],
    }
    assert find_destroy_mismatch(in_order) is None


def test_a_group_that_one_member_keeps() -> None:
    ops = {0: [destroy(0, "group 1", 0, 1, calls=3)], 1: []}
    verdict = find_kept_group(ops, {0: 4, 1: 4})
    assert verdict is not None and verdict.ranks == (1,)
    assert find_kept_group(ops, {0: 3, 1: 3}) is None, "left to the end"


DEFAULT, TWIN = Group("world", (0, 1, 2)), Group("group 1", (0, 1, 2))


def wait(rank: int, group: Group, name: str = "all_reduce", number: int = 4) -> Wait:
    op = Op(rank, name, group, number, site=HERE)
    return Wait(op, tuple(r for r in group.ranks if r != rank))


def test_the_default_group_meets_another_of_the_same_ranks() -> None:
    verdict = find_other_group([wait(0, DEFAULT), wait(1, TWIN, number=0), wait(2, DEFAULT)])
    assert verdict is not None and verdict.ranks == (1,)
    assert verdict.headline == (
        'rank 1 called all_reduce on "group 1" where ranks 0, 2 called it on "world"'
    )


def test_other_groups_are_no_mismatch() -> None:
    half = Group("group 2", (0, 1))
    other = Group("group 3", (0, 1, 2))
    assert find_other_group([wait(0, DEFAULT), wait(1, half), wait(2, DEFAULT)]) is None
    assert find_other_group([wait(0, TWIN), wait(1, other), wait(2, TWIN)]) is None
    assert find_other_group([wait(0, DEFAULT), wait(1, TWIN, "barrier")]) is None
    assert find_other_group([wait(0, DEFAULT), wait(1, TWIN)]) is None, "rank 2 may come"


def test_a_message_on_another_group() -> None:
    send = Op(0, "send", DEFAULT, peer=1, tag=0, site=HERE)
    recv = Op(1, "recv", TWIN, peer=0, tag=0, site=HERE)
    waits = [Wait(send, (1,)), Wait(recv, (0,))]
    verdict = find_other_group(waits, [send])
    assert verdict is not None and "receives" in verdict.headline
    assert find_other_group(waits[1:], [send]) is None, "the sender has not come to its end"
    assert find_other_group(waits[1:], [send], gone=[0]) is not None


def test_parts_that_overlap_are_no_split() -> None:
    def split(rank: int, *part: int) -> Op:
        return Op(rank, "split_group", Group("world", part), site=HERE)

    splits = {0: split(0, 0, 1), 1: split(1, 0, 1), 2: split(2, 1, 2)}
    verdict = find_split_mismatch(splits, 2)
    assert verdict is not None and verdict.ranks == (2,)
    assert verdict.headline == (
        'rank 2 split [1, 2] off "world" where ranks 0, 1 split [0, 1] off'
    )
    two = find_split_mismatch({0: splits[0], 2: splits[2]}, 0)
    assert two is not None and two.ranks == ()
    assert find_split_mismatch({**splits, 2: split(2, 2, 3)}, 2) is None
