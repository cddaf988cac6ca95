"""Cycles among what lanes do together."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from phalanx.matching.precedence import find_cycles


def units(*names: str) -> list[list[str]]:
    """One unit for each word, its letters the joints."""
    return [list(name) for name in names]


def lanes_of(cycles: list) -> list[list[int]]:
    return [[hop.lane for hop in cycle] for cycle in cycles]


def test_one_order_for_all_has_no_cycle() -> None:
    assert find_cycles([units("a", "b", "c"), units("a", "c"), units("b", "c")]) == []


def test_two_lanes_in_opposite_orders() -> None:
    ((zero, one),) = find_cycles([units("a", "b"), units("b", "a")])
    assert (zero.lane, zero.at, zero.waits, zero.later, zero.owes) == (0, 0, "a", 1, "b")
    assert (one.lane, one.at, one.waits, one.later, one.owes) == (1, 0, "b", 1, "a")


def test_a_cycle_over_three_lanes() -> None:
    cycles = find_cycles([units("a", "c"), units("b", "a"), units("c", "b")])
    assert lanes_of(cycles) == [[0, 1, 2]]


def test_what_is_in_one_unit_has_no_order() -> None:
    assert find_cycles([units("ab"), units("ba")]) == []
    assert find_cycles([units("ab"), units("a", "b")]) == []


def test_a_lane_can_wait_for_itself() -> None:
    assert lanes_of(find_cycles([units("a", "a")])) == [[0]]
    assert find_cycles([units("aa")]) == []


def test_what_nobody_answers_keeps_nobody() -> None:
    assert find_cycles([units("x", "a"), units("a", "y")]) == []


def test_cycles_one_after_the_other_are_all_found() -> None:
    many = [f"{i}{end}" for i in range(50) for end in "ab"]
    swapped = [f"{i}{end}" for i in range(50) for end in "ba"]
    lanes = [[[name] for name in many], [[name] for name in swapped]]
    assert len(find_cycles(lanes)) == 50
    assert len(find_cycles(lanes, most=7)) == 7


def test_three_that_are_reversed_are_one_cycle() -> None:
    assert len(find_cycles([units("a", "b", "c"), units("c", "b", "a")])) == 1


memberships = st.lists(
    st.sets(st.integers(0, 4), min_size=1), min_size=2, max_size=30
)  # of each joint, in one order for all


@given(memberships)
def test_a_total_order_restricted_to_lanes_never_has_a_cycle(members: list[set[int]]) -> None:
    lanes = [[[j] for j, who in enumerate(members) if lane in who] for lane in range(5)]
    assert find_cycles(lanes) == []


@given(memberships, st.data())
def test_a_pair_that_one_lane_swaps_is_found(
    members: list[set[int]], data: st.DataObject
) -> None:
    first = data.draw(st.integers(0, len(members) - 2))
    members[first] |= {0, 1}
    members[first + 1] |= {0, 1}
    lanes = [[[j] for j, who in enumerate(members) if lane in who] for lane in range(5)]
    at = lanes[0].index([first])
    lanes[0][at], lanes[0][at + 1] = lanes[0][at + 1], lanes[0][at]
    ((zero, one),) = find_cycles(lanes)
    assert (zero.lane, one.lane) == (0, 1)
    assert (zero.waits, one.waits) == (first + 1, first)
