"""Counts per line and rank, by example; and that they are silent where ranks may differ."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from phalanx.matching.uneven.call_counts import find_counts

light = settings(max_examples=60, deadline=None)


def ways(*lines: str, first: int = 0) -> dict[int, dict[int, str]]:
    """A rank for each word: a letter for the line of each of its calls."""
    return {rank: dict(enumerate(word, first)) for rank, word in enumerate(lines)}


def count(*lines: str, behind: tuple[int, ...] = (), disputed: bool = False):
    """What is found: the lines of rank 0, and how often each rank was there. The last call of
    all is the one in dispute."""
    last = len(lines[0]) - 1 if disputed else None
    found = find_counts(ways(*lines), disputed=last, behind=behind)
    if found is None:
        return None
    return [(place.lines[0], tuple(place.times.values())) for place in found.places]


def test_one_rank_has_fewer_rounds_and_ends() -> None:
    assert count("aaaa", "aaa", behind=(1,)) == [("a", (4, 3))]


def test_one_rank_has_fewer_rounds_and_goes_on() -> None:
    assert count("aaaa", "aaab", disputed=True) == [("a", (4, 3))]
    assert count("aaaa", "aaaa", "aaab", disputed=True) == [("a", (4, 4, 3))]


def test_a_step_that_was_left_out_long_before() -> None:
    assert count("abababab", "abbabab", behind=(1,)) == [("a", (4, 3))]


def test_of_two_places_the_one_counts_that_was_left_out() -> None:
    assert count("ababa", "ababb", disputed=True) == [("a", (3, 2))], "b after b is new"
    assert count("abaabaa", "abaabab", disputed=True) == [("a", (5, 4))], "nothing is new"
    assert count("abababc", "abbabac", disputed=True) is None, "equally often in the end"
    assert count("abababa", "abbabab", disputed=True) == [("a", (4, 3))], "parted before"


def test_a_place_that_only_one_rank_comes_to() -> None:
    assert count("abab", "bbb", behind=(1,)) == [("a", (2, 0))]


def test_the_last_call_of_all_together() -> None:
    found = find_counts(ways("aaaba", "aaab"), behind=(1,))
    assert found is not None
    assert found.places[0].together == 2


def test_lines_of_a_branch_by_rank_are_one_place() -> None:
    assert count("xaxa", "xbxb") is None
    found = find_counts(ways("aaaa", "bbbc"), disputed=3)
    assert found is not None
    (place,) = found.places
    assert dict(place.times) == {0: 4, 1: 3}
    assert dict(place.lines) == {0: "a", 1: "b"}


def test_a_first_visit_says_nothing() -> None:
    assert count("aab", "aac", disputed=True) is None
    assert count("aab", "aa", behind=(1,)) is None
    assert count("a", "b", disputed=True) is None


def test_what_those_behind_did_more_often_is_no_cause() -> None:
    assert count("abab", "bbbb", behind=(0,)) == [("b", (2, 4))]


def test_calls_that_were_forgotten() -> None:
    late = {0: dict(enumerate("aaaa", 6)), 1: dict(enumerate("aaaa", 5))}
    found = find_counts(late, behind=(1,))
    assert found is not None
    assert found.since == 6
    assert dict(found.places[0].times) == {0: 4, 1: 3}


def test_nothing_of_calls_with_gaps() -> None:
    steps = {0: {0: "a", 1: "a", 2: "a"}, 1: {0: "a", 2: "b"}}
    assert find_counts(steps, disputed=2) is None
    assert find_counts({0: {5: "a", 6: "a"}, 1: {}}) is None, "rank 1 may have called before"
    assert find_counts({0: {5: "a"}, 1: {1: "a"}}) is None, "no call in common"
    assert find_counts({}) is None
    assert find_counts({0: {0: "a"}}) is None


@light
@given(st.text("abc", max_size=12))
def test_equal_ways_have_equal_counts(word: str) -> None:
    assert count(word, word, word) is None


@light
@given(st.text("abc", min_size=1, max_size=12), st.integers(1, 4))
def test_names_of_lines_do_not_matter_where_ranks_have_their_own(word: str, most: int) -> None:
    assert count(word, word.upper(), *[word] * most) is None


@light
@given(st.text("ab", min_size=2, max_size=12), st.data())
def test_a_call_left_out_is_counted(word: str, data: st.DataObject) -> None:
    at = data.draw(st.integers(0, len(word) - 1))
    without = word[:at] + word[at + 1 :]
    found = count(word, without, behind=(1,))
    line, times = word[at], (word.count(word[at]), without.count(word[at]))
    if times[1]:
        assert found == [(line, times)]
    else:
        assert found in (None, [(line, times)])
