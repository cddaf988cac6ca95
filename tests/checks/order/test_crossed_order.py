"""Crossings: the rule table, and properties over random programs."""

from __future__ import annotations

import random

from hypothesis import given, settings
from hypothesis import strategies as st

from phalanx.checks.order.crossed_order import (
    Level,
    NotedCall,
    Part,
    Source,
    find_crossing,
    find_other_part,
)

SURE = Source(together=lambda one, other: True, expression=lambda place: f"call at {place}")
NEVER = Source(together=lambda one, other: False, expression=lambda place: f"call at {place}")
BLIND = Source(together=lambda one, other: True, expression=lambda place: None)


def trail(*levels: Level) -> list[NotedCall]:
    return [NotedCall(number, "all_reduce", (level,)) for number, level in enumerate(levels)]


def crossed(one: list[Level], other: list[Level], source: Source = SURE) -> bool:
    return find_crossing({0: trail(*one), 1: trail(*other)}, source) is not None


def word(value: str, place: int = 1) -> Level:
    return Level(place, ("t",), (("name", value),), tied=("name",))


A, B = Level(1, ("a",)), Level(2, ("b",))


def test_words_of_one_loop() -> None:
    assert crossed([word("w"), word("b")], [word("b"), word("w")])
    assert not crossed([word("w"), word("b")], [word("w"), word("b")])
    assert not crossed([word("w"), word("b")], [word("x"), word("w")])


def test_a_circle_of_three_and_one_that_does_not_close() -> None:
    assert crossed([*map(word, "abc")], [*map(word, "bca")])
    assert not crossed([*map(word, "abc")], [*map(word, "bcd")])


def test_lines_need_names_and_one_pass() -> None:
    assert crossed([A, B], [B, A])
    assert not crossed([A, B], [B, A], NEVER)
    unnamed = [Level(1), Level(2)]
    assert crossed(unnamed, unnamed[::-1])
    assert not crossed(unnamed, unnamed[::-1], BLIND)
    alike = [Level(1, ("t",)), Level(2, ("t",))]
    assert not crossed(alike, alike[::-1])


def test_one_place_needs_a_loop_that_differs_or_goes_over_the_tensors() -> None:
    one, two = Level(1, ("b[0]",)), Level(1, ("b[1]",))
    assert not crossed([one, two], [two, one])
    swept = [Level(1, names, swept=True) for names in (("b[0]",), ("b[1]",))]
    assert crossed(swept, swept[::-1])
    steps = [
        [Level(1, (f"b[{(step + rank) % 2}]",), (("step", step),)) for step in range(4)]
        for rank in range(2)
    ]
    assert not crossed(*steps)
    chosen = [Level(1, (f"b[{index}]",), (("i", index),)) for index in range(2)]
    assert crossed(chosen, chosen[::-1])


def test_numbers_alone_are_data() -> None:
    samples = [Level(1, ("loss",), (("i", index),)) for index in range(4)]
    assert not crossed(samples, samples[::-1])


def test_other_operations_are_not_paired() -> None:
    one = [NotedCall(0, "all_reduce", (word("w"),)), NotedCall(1, "broadcast", (word("b"),))]
    other = [NotedCall(0, "all_reduce", (word("b"),)), NotedCall(1, "broadcast", (word("w"),))]
    assert find_crossing({0: one, 1: other}, SURE) is None


def test_the_largest_set_of_ranks_is_right() -> None:
    usual, odd = [word("w"), word("b")], [word("b"), word("w")]
    trails = {0: trail(*odd), 1: trail(*usual), 2: trail(*usual)}
    found = find_crossing(trails, SURE)
    assert found is not None and found.ranks == (1, 2) and found.others == (0,)
    assert found.labels == ("name='w'", "name='b'") and found.in_loop


def test_evidence_further_out() -> None:
    inner = Level(9, ("tensor",))
    one = [NotedCall(i, "all_reduce", (inner, level)) for i, level in enumerate((A, B))]
    other = [NotedCall(i, "all_reduce", (inner, level)) for i, level in enumerate((B, A))]
    found = find_crossing({0: one, 1: other}, SURE)
    assert found is not None and found.pairs[0].places == (9, 9)


PROGRAM = st.lists(
    st.builds(
        Level,
        st.integers(0, 5),
        st.sampled_from([(), ("a",), ("b",), ("c", "d[0]")]),
        st.sampled_from([(), (("i", 1),), (("name", "w"),), (("name", "b"),)]),
        st.booleans(),
    ),
    max_size=30,
)


@given(PROGRAM, st.integers(2, 5))
@settings(max_examples=50)
def test_ranks_that_agree_are_never_accused(program: list[Level], ranks: int) -> None:
    trails = {rank: trail(*program) for rank in range(ranks)}
    assert find_crossing(trails, SURE) is None


@given(PROGRAM, st.integers(0, 5), st.integers(0, 2**32))
@settings(max_examples=50)
def test_branches_with_the_same_names_are_never_accused(
    program: list[Level], shift: int, seed: int
) -> None:
    """Each rank comes by other lines, but with the same names and values."""
    chosen = random.Random(seed)
    other = [
        Level(chosen.choice([10, level.place]), level.names or ("t",), level.loop)
        for level in program
    ]
    mine = [Level(level.place, level.names or ("t",), level.loop) for level in program]
    assert not crossed(mine, other)


@given(
    st.lists(st.text("abcdef", min_size=1, max_size=3), min_size=2, max_size=12, unique=True),
    st.integers(1, 4),
    st.data(),
)
@settings(max_examples=50)
def test_one_swap_is_found(names: list[str], steps: int, data: st.DataObject) -> None:
    one = data.draw(st.integers(0, len(names) - 2))
    other = data.draw(st.integers(one + 1, len(names) - 1))
    swapped = list(names)
    swapped[one], swapped[other] = swapped[other], swapped[one]
    found = find_crossing(
        {
            0: trail(*(word(name) for _ in range(steps) for name in names)),
            1: trail(*(word(name) for _ in range(steps) for name in swapped)),
        },
        SURE,
    )
    assert found is not None
    assert {pair.number % len(names) for pair in found.pairs} == {one, other}


def parts(*names: str) -> dict[int, Part]:
    return {number: Part(name, "all_gather", 1) for number, name in enumerate(names)}


def test_the_first_call_for_other_parts() -> None:
    found = find_other_part({0: parts("a", "b"), 1: parts("a", "c"), 2: parts("a", "b")})
    assert found is not None and found[0] == 1
    assert [(part.part, ranks) for part, ranks in found[1]] == [("b", [0, 2]), ("c", [1])]
    assert find_other_part({0: parts("a", "b"), 1: parts("a")}) is None
    assert find_other_part({}) is None
