"""Schedules are pure functions of their seed and of the questions they were asked."""

from __future__ import annotations

import doctest

import pytest

from phalanx.core import schedule
from phalanx.core.schedule import FirstInFirstOut, SeededRandom, schedule_from_seed


def test_examples_in_docstrings() -> None:
    result = doctest.testmod(schedule)
    assert (result.attempted > 0, result.failed) == (True, 0)


def test_first_in_first_out_takes_the_oldest_and_never_preempts() -> None:
    policy = FirstInFirstOut()
    assert [policy.pick(ready) for ready in (1, 2, 64)] == [0, 0, 0]
    assert not policy.preempts


def test_seeded_random_repeats_itself() -> None:
    one, other = SeededRandom(7), SeededRandom(7)
    questions = [2, 3, 64, 5, 1, 2] * 20
    assert [one.pick(n) for n in questions] == [other.pick(n) for n in questions]


def test_seeds_differ() -> None:
    answers = {tuple(map(SeededRandom(seed).pick, [4] * 16)) for seed in range(1, 101)}
    assert len(answers) == 100


@pytest.mark.parametrize("ready", [1, 2, 7])
def test_picks_are_in_range_and_reach_everybody(ready: int) -> None:
    policy = SeededRandom(3)
    assert {policy.pick(ready) for _ in range(200)} == set(range(ready))


def test_one_ready_strand_costs_no_random_number() -> None:
    with_questions, without = SeededRandom(5), SeededRandom(5)
    assert [with_questions.pick(1) for _ in range(10)] == [0] * 10
    assert [with_questions.pick(9) for _ in range(10)] == [without.pick(9) for _ in range(10)]


def test_seed_zero_is_in_order() -> None:
    assert isinstance(schedule_from_seed(0), FirstInFirstOut)
    assert isinstance(schedule_from_seed(1), SeededRandom)
