"""Where ranks part, by example; and that it is silent where ranks may differ."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from phalanx.matching.divergence import (
    OtherKind,
    Pace,
    Stride,
    Trail,
    find_other_kind,
    find_parting,
    tell_other_kind,
    tell_parting,
)

light = settings(max_examples=60, deadline=None)
ALL = (0, 1, 2)


def trail(*places: str, members: tuple[int, ...] = ALL, group: str = "world") -> list[Pace]:
    """Collectives, each from the place given as `line` or `line:operation`."""
    paces = []
    for number, place in enumerate(places):
        line, _, name = place.partition(":")
        paces.append(Pace((group, number), members, line, name or "all_reduce", number))
    return paces


def message(place: str) -> Pace:
    return Pace(None, ALL, place, "send")


def tell(trails: dict[int, Trail], ended: frozenset[int] = frozenset()) -> str | None:
    parting = find_parting(trails, ended)
    return tell_parting(parting, str) if parting is not None else None


def test_ranks_that_call_something_else() -> None:
    usual, odd = trail("5", "8:broadcast", "9"), trail("5", "9:all_reduce")
    assert tell({0: usual[:2], 1: usual[:2], 2: odd}) == (
        "ranks 0, 1 went 5 -> 8; rank 2 went 5 -> 9 (call #1)"
    )


def test_ranks_that_return() -> None:
    usual = trail("5", "8")
    assert tell({0: usual, 1: usual, 2: usual[:1]}, frozenset({2})) == (
        "ranks 0, 1 went 5 -> 8; rank 2 made no call after 5 (call #1)"
    )


def test_nothing_of_ranks_that_may_still_come() -> None:
    usual = trail("5", "8")
    assert tell({0: usual, 1: usual, 2: usual[:1]}) is None


def test_a_call_skipped_long_before_it_shows() -> None:
    steps = ["6", "8", "9"] * 4
    skipped = [*steps[:4], *steps[5:]]  # the second "8" is missing
    usual, odd = trail(*steps[:11], "9"), trail(*skipped[:11], "10:barrier")
    assert tell({0: usual, 1: usual, 2: odd}) == (
        "ranks 0, 1 went 6 -> 8; rank 2 went 6 -> 9 (call #4)"
    )


def test_other_lines_of_the_same_collectives_are_legal() -> None:
    one, other = trail("5", "8", "9:barrier"), trail("5", "20", "9:all_gather")
    assert tell({0: one, 1: one, 2: other}) is None, "no last place in common"
    assert tell({0: one[:2], 1: other[:2]}) is None


def test_groups_of_others_are_legal() -> None:
    start = trail("5")
    left = [*start, *trail("8", members=(0, 1), group="left")]
    right = [*start, *trail("9", members=(2, 3), group="right")]
    assert tell({0: left, 1: left, 2: right, 3: right}) is None


def test_stages_of_a_pipeline_are_legal() -> None:
    start = trail("5")
    assert tell({0: [*start, message("8")], 1: [*start, message("9")]}) is None


def test_who_exchanges_messages_first_might_have_come() -> None:
    start = trail("5")
    early, late = [*start, *trail("5", "7:barrier")[1:]], [*start, message("6")]
    assert tell({0: early, 1: early, 2: late}) is None


def test_who_comes_to_it_later_has_not_parted() -> None:
    start, end = trail("5", "7")[:1], trail("5", "7")[1:]
    early, late = [*start, *end], [*start, message("6"), *end]
    assert tell({0: early, 1: late}) is None


def test_trails_that_begin_late_are_aligned() -> None:
    whole = trail(*"5656567", "8:broadcast")
    odd = trail(*"5656567", "9:barrier")
    assert tell({0: whole, 1: whole[3:], 2: odd[2:]}) == (
        "ranks 0, 1 went 7 -> 8; rank 2 went 7 -> 9 (call #7)"
    )
    assert tell({0: whole[:3], 1: whole[4:]}) is None


@light
@given(st.lists(st.sampled_from(["5", "6:broadcast", "7:barrier"]), min_size=1, max_size=12))
def test_equal_ways_never_part(places: list[str]) -> None:
    assert tell(dict.fromkeys(range(4), trail(*places))) is None


@light
@given(
    st.lists(st.sampled_from(["5:a", "6:b", "7:c"]), min_size=2, max_size=12),
    st.data(),
)
def test_one_other_operation_is_found(places: list[str], data: st.DataObject) -> None:
    at = data.draw(st.integers(1, len(places) - 1))
    usual = trail(*places[: at + 1])
    odd = trail(*places[:at], "99:other")
    line = places[at - 1].partition(":")[0]
    assert tell({0: usual, 1: usual, 2: odd}) == (
        f"ranks 0, 1 went {line} -> {places[at].partition(':')[0]}; "
        f"rank 2 went {line} -> 99 (call #{at})"
    )


def ways(*kinds: str, place: str = "a") -> dict[int, list[Stride]]:
    """One call by each rank, at the same place, after one that all made alike."""
    first = Stride("start", "barrier", "world")
    return {rank: [first, Stride(place, "send", kind)] for rank, kind in enumerate(kinds)}


def test_most_ranks_say_which_kind_of_group_was_meant() -> None:
    found = find_other_kind(ways("tp", "tp", "dp", "tp"))
    assert found == OtherKind("a", (0, 1, 3), "tp", (2,), "dp")
    told = tell_other_kind(found, str)
    assert told == 'at a ranks 0, 1, 3 called on "tp", rank 2 on "dp"'


def test_who_has_not_come_so_far_has_no_vote() -> None:
    late = {**ways("tp", "tp", "dp"), 3: [], 4: []}
    assert find_other_kind(late) == OtherKind("a", (0, 1), "tp", (2,), "dp")


@pytest.mark.parametrize(
    "taken",
    [
        ways("tp", "tp", "tp"),
        ways("tp", "dp"),
        ways("tp", "tp", "dp", "pp", "tp"),
        {**ways("tp", "tp", "tp"), 3: [Stride("start", "barrier", None)]},
        {**ways("tp", "tp", "tp"), 3: ways("dp", place="b")[0]},
        {},
    ],
    ids=["alike", "no majority", "three kinds", "forgotten", "another line", "nobody"],
)
def test_otherwise_the_kind_of_group_tells_nothing(taken) -> None:
    assert find_other_kind(taken) is None
