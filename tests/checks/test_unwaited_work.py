"""Works nobody waited for: one finding for each line, whoever made the calls."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from phalanx.checks.unwaited_work import Unwaited, find_unwaited
from phalanx.model import Group, Op, Site

WORLD = Group("world", tuple(range(8)))
HERE, THERE = Site("a.py", 1, "f"), Site("a.py", 2, "f")


def left(rank: int, site: Site = HERE, **more: object) -> Unwaited:
    return Unwaited(Op(rank, "all_reduce", WORLD, 0, site=site), **more)  # type: ignore[arg-type]


def test_nothing_left_is_no_finding() -> None:
    assert find_unwaited([]) == ()


def test_ranks_at_one_line_are_one_finding() -> None:
    (found,) = find_unwaited([left(2), left(0), left(1)])
    assert (found.kind, found.severity) == ("unwaited-work", "warning")
    assert found.ranks == (0, 1, 2)
    assert found.headline == "ranks 0-2 never waited for all_reduce at a.py:1"


def test_lines_stand_apart() -> None:
    found = find_unwaited([left(0), left(0, THERE)])
    assert [each.blocks[0].op.site for each in found] == [HERE, THERE]


def test_how_often() -> None:
    (one,) = find_unwaited([left(3, count=12)])
    assert one.headline.endswith("at a.py:1, 12 times")
    (each,) = find_unwaited([left(0, count=2), left(1, count=2)])
    assert each.headline.endswith("at a.py:1, 2 times each")
    (some,) = find_unwaited([left(0, count=2), left(1, count=5)])
    assert some.headline.endswith("at a.py:1, 2 to 5 times each")


def test_where_a_result_was_used_all_the_same() -> None:
    (found,) = find_unwaited([left(0, read=THERE), left(1)])
    assert "used at a.py:2" in found.blocks[0].notes[0]


def test_functional_results_have_a_hint_of_their_own() -> None:
    (found,) = find_unwaited([left(0, functional=True)])
    assert found.hint is not None and "never used" in found.hint


@given(
    st.lists(
        st.tuples(st.integers(0, 7), st.sampled_from((HERE, THERE)), st.integers(1, 9)),
        max_size=20,
    )
)
def test_every_rank_is_told_once_for_each_line(calls: list[tuple[int, Site, int]]) -> None:
    found = find_unwaited(left(rank, site, count=count) for rank, site, count in calls)
    told = [(rank, each.blocks[0].op.site) for each in found for rank in each.ranks]
    assert sorted(told, key=str) == sorted({(r, s) for r, s, _ in calls}, key=str)
