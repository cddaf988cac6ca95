"""The exhaustive search against all interleavings of small made-up programs."""

from __future__ import annotations

import math
from collections import Counter

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from phalanx.explore.strategies.exhaustive import Exhaustive
from tests.explore.strategies.made_up_programs import EveryOrder, Program, explored

_place = st.sampled_from("xy")
_op = st.one_of(
    st.tuples(st.sampled_from(["write", "read", "read", "await", "take", "drop"]), _place),
    st.tuples(st.just("both"), st.just("x"), st.just("y")),
    st.tuples(st.just("skip"), st.integers(0, 2)),
    st.tuples(st.just("value"), _place, st.just(2)),
    st.just(("meet",)),
)
_program = st.lists(
    st.lists(_op, min_size=1, max_size=4).map(tuple), min_size=2, max_size=3
).map(tuple)


def compare(program: Program, most: int = 4000) -> Exhaustive | None:
    """The same behaviours as by brute force, each once; None if there are too many."""
    try:
        wanted = set(explored(program, EveryOrder(), most))
    except OverflowError:
        return None
    search = Exhaustive()
    found = Counter(explored(program, search, most))
    assert found.keys() == wanted
    assert not search.parted
    assert found.total() == len(wanted) + search.redundant
    return search


@settings(max_examples=400, deadline=None)
@given(_program)
def test_the_same_behaviours_as_by_brute_force(program: Program) -> None:
    compare(program)


def count(program: Program) -> tuple[int, int]:
    search = Exhaustive()
    found = set(explored(program, search, 100_000))
    return len(found), search.redundant


@pytest.mark.parametrize("threads", [1, 2, 3, 4, 5])
def test_writes_to_one_place_have_all_orders(threads: int) -> None:
    assert count(((("write", "x"),),) * threads) == (math.factorial(threads), 0)


def test_places_apart_have_one_order() -> None:
    assert count(tuple((("write", number),) * 5 for number in range(6))) == (1, 0)


def test_readers_commute() -> None:
    assert count(((("read", "x"),) * 4,) * 4) == (1, 0)


def test_a_meeting_orders() -> None:
    first = (("write", "x"), ("meet",))
    assert count((first, (("meet",), ("read", "x")), (("meet",), ("read", "x")))) == (1, 0)


def test_who_takes_the_last_one_is_a_choice() -> None:
    giver = (("write", "x"),)
    assert count((giver, (("take", "x"),), (("take", "x"),)))[0] == 2


def test_a_step_that_is_no_longer_possible_is_tried_before() -> None:
    """One waits for what another one drops."""
    program = ((("write", "x"), ("meet",), ("drop", "x")), (("meet",), ("await", "x")))
    assert count(program)[0] == 2


def test_values_are_enumerated() -> None:
    program = ((("value", "x", 3), ("value", "x", 2)), (("value", "y", 4),))
    assert count(program) == (24, 0)
