"""Failing runs become small, whatever found them; made-up programs, no torch."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from phalanx.explore.explore_options import ExploreOptions
from phalanx.explore.explorer import Explorer
from phalanx.explore.failures.deviations import FollowedDeviations, deviations_in
from phalanx.explore.failures.investigation import Investigation, Suspect
from phalanx.explore.failures.shrinking import Budget
from phalanx.explore.judging import failures_of
from phalanx.explore.one_run import Execution, Subject, run_once
from phalanx.explore.strategies.random_walk import RandomWalk
from tests.explore.made_up_programs import MadeUpProgram, add, read

NEVER = ExploreOptions(store=None)


def order_of(keys_of: Callable[[int], list[str]], fails: Callable[[list[int]], bool]) -> Any:
    """A program whose ranks add to keys; it fails if the order of all additions does."""

    def make(ranks: int) -> Any:
        order: list[int] = []

        def rank_main(rank: int) -> Iterator[Any]:
            for key in keys_of(rank):
                yield add(key)
                order.append(rank)

        def end() -> list[Any]:
            assert not fails(order), "this order fails"
            return []

        return [rank_main(rank) for rank in range(ranks)], end

    return make


def lost_update(ranks: int) -> Any:
    """Each rank reads a number, does other things, and writes it back, one higher."""
    number = [0]

    def rank_main(rank: int) -> Iterator[Any]:
        yield read("other")
        yield read("n")
        seen = number[0]
        yield read(f"own {rank}")
        yield add("n")
        number[0] = seen + 1
        yield read("n")

    def end() -> list[Any]:
        assert number[0] == ranks, number[0]
        return []

    return [rank_main(rank) for rank in range(ranks)], end


def three_switches(ranks: int) -> Any:
    """Fails if ranks 0 and 1 take turns for three rounds."""
    return order_of(
        lambda rank: ["a"] * 3 if rank < 2 else ["a"] * 2,
        lambda order: [each for each in order if each < 2] == [0, 1, 0, 1, 0, 1],
    )(ranks)


def find_failing(subject: Subject, seed: int = 0) -> tuple[Suspect, Execution]:
    walk = RandomWalk(seed)
    for _ in range(3000):
        walk.begin()
        execution = run_once(subject, walk)
        for symptom, cause in failures_of(execution):
            return Suspect(symptom, subject, execution, cause), execution
    raise AssertionError("it never failed")


@pytest.mark.parametrize(
    ("make", "ranks", "fewest", "fewest_ranks"),
    [
        (lost_update, 4, 1, 2),
        (lost_update, 2, 1, 2),
        (order_of(lambda rank: ["k"], lambda order: order[0] == 3), 4, 1, 4),
        (order_of(lambda rank: ["k"] * 5, lambda order: order[:2] == [2, 1]), 4, 2, 3),
        (three_switches, 3, 4, 2),
    ],
)
@pytest.mark.parametrize("seed", range(3))
def test_the_fewest_choices_are_found(
    make: Any, ranks: int, fewest: int, fewest_ranks: int, seed: int
) -> None:
    subject = MadeUpProgram(make, ranks)
    suspect, _ = find_failing(subject, seed)
    Investigation(suspect).investigate()
    assert len(suspect.execution.trace.deviations()) == fewest
    assert suspect.subject.ranks == fewest_ranks
    assert suspect.fails_alike(suspect.execution) is not None
    assert suspect.parting is None


def test_a_program_for_a_certain_number_of_ranks_stays_on_them() -> None:
    """On fewer ranks it fails, too, in the same way, but whatever the order."""

    def make(ranks: int) -> Any:
        threads, end = lost_update(ranks)

        def always_wrong() -> list[Any]:
            assert ranks == 4 and end() == []
            return []

        return threads, always_wrong

    suspect, _ = find_failing(MadeUpProgram(make, 4))
    Investigation(suspect).investigate()
    assert suspect.subject.ranks == 4


def test_what_fails_in_the_default_order_has_no_choices() -> None:
    make = order_of(lambda rank: ["k"] * 3, lambda order: True)
    suspect, _ = find_failing(MadeUpProgram(make, 3))
    Investigation(suspect).investigate()
    assert deviations_in(suspect.execution.trace) == ()
    assert suspect.subject.ranks == 2


def test_deviations_repeat_the_run_they_are_from() -> None:
    subject = MadeUpProgram(lost_update, 4)
    for seed in range(50):
        walk = RandomWalk(seed)
        walk.begin()
        trace = run_once(subject, walk).trace
        followed = FollowedDeviations(deviations_in(trace))
        again = run_once(subject, followed).trace
        assert again.choices == trace.choices


def test_it_is_bounded_in_runs() -> None:
    subject = MadeUpProgram(three_switches, 3)
    suspect, _ = find_failing(subject)
    before = len(subject.runs)
    Investigation(suspect, budget=Budget(runs=20)).investigate()
    made = len(subject.runs) - before
    assert 20 <= made <= 40  # and those that repeat it, and those for its story
    assert suspect.fails_alike(suspect.execution) is not None


def test_the_smallest_so_far_stands_after_ctrl_c() -> None:
    subject = MadeUpProgram(three_switches, 3)
    suspect, first = find_failing(subject)
    smaller: list[int] = []

    def interrupt_when_smaller() -> None:
        smaller.append(1)
        if len(smaller) == 12:
            raise KeyboardInterrupt

    investigation = Investigation(suspect, on_run=interrupt_when_smaller)
    investigation.investigate()
    assert investigation.interrupted
    assert len(suspect.execution.trace.deviations()) < len(first.trace.deviations())
    assert len(smaller) < 20


def test_chance_is_no_failure_of_an_order() -> None:
    dice = random.Random(1)

    def make(ranks: int) -> Any:
        threads, _ = lost_update(ranks)

        def end() -> list[Any]:
            assert dice.random() < 0.5, "by chance"
            return []

        return threads, end

    found = Explorer(MadeUpProgram(make, 2), NEVER).explore(RandomWalk(0))
    kinds = {each.kind for each in found.failures}
    assert kinds <= {"uncontrolled-chance", "AssertionError"}
    assert "uncontrolled-chance" in kinds or not found.failures
