"""Ranks that did the same are one fold."""

from __future__ import annotations

from pathlib import Path

from phalanx.report.timeline.behaviour import MOST_FOLDS, fold_ranks
from tests.report.timeline.made_up import met, posted, table_of_lines, words

TIMES = [1000, 2000, 3000]


def test_ranks_that_made_the_same_calls_are_one_fold(tmp_path: Path) -> None:
    lines = [posted(rank, [t + rank for t in TIMES]) for rank in range(62)]
    lines += [posted(62, TIMES, site=[0, 0, 1]), posted(63, TIMES[:2])]
    table = table_of_lines(tmp_path, 64, [*words(), *lines])
    assert fold_ranks(table) == [list(range(62)), [62], [63]]


def test_a_rank_whose_last_call_was_met_is_not_like_one_that_waits(tmp_path: Path) -> None:
    lines = [posted(0, TIMES), posted(1, TIMES, number=[0, 1, 7]), met(1, TIMES)]
    table = table_of_lines(tmp_path, 2, [*words(), *lines])
    assert fold_ranks(table) == [[0], [1]]


def test_a_rank_that_a_verdict_blames_stands_alone(tmp_path: Path) -> None:
    table = table_of_lines(tmp_path, 4, [*words(), *(posted(r, TIMES) for r in range(4))])
    assert fold_ranks(table, apart=[2]) == [[0, 1, 3], [2]]


def test_ranks_are_compared_from_the_first_call_that_all_still_have(tmp_path: Path) -> None:
    whole = posted(0, TIMES, site=[1, 0, 0])
    rest = posted(1, TIMES[1:], number=[1, 2], serial={"from": 1})
    table = table_of_lines(tmp_path, 2, [*words(), whole, rest])
    assert fold_ranks(table) == [[0, 1]]


def test_too_many_folds_are_compared_by_less(tmp_path: Path) -> None:
    count = MOST_FOLDS + 8
    sites = [{"site": 2 + n, "at": ["train.py", n, "step", []]} for n in range(count)]
    lines = [posted(rank, TIMES, site=2 + rank) for rank in range(count)]
    table = table_of_lines(tmp_path, count, [*words(), *sites, *lines])
    assert fold_ranks(table) == [list(range(count))]
