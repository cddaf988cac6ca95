"""`random`, `pct` and `pos`: equal seeds choose alike, and rare orders are found."""

from __future__ import annotations

import pytest

from phalanx.errors import UsageError
from phalanx.explore.strategies import STRATEGIES, make_strategy
from phalanx.explore.strategies.replay import FollowedChoices
from phalanx.explore.strategy import Strategy
from tests.explore.strategies.made_up_programs import Machine, Program, run_made_up

SAMPLERS = ("random", "pct", "pos")

LONG: Program = (
    (("write", "x"), *(("write", "a"),) * 20, ("read", "y")),
    (("write", "y"), *(("write", "b"),) * 20, ("read", "x")),
)
"""The last one to read sees that the other one has written. That both do is usual; that one
does not needs an order that simple chance has not once in a million runs."""


def runs_until(program: Program, strategy: Strategy, wanted: object, most: int) -> int:
    for count in range(1, most + 1):
        assert strategy.begin()
        _, seen = run_made_up(program, strategy)
        if any(thread[0][-1] == wanted for thread in seen):
            return count
    return most + 1


@pytest.mark.parametrize("name", SAMPLERS)
def test_equal_seeds_choose_alike(name: str) -> None:
    def behaviours(seed: int) -> list[object]:
        strategy = make_strategy(name, seed)
        program: Program = ((("write", "x"),) * 3,) * 3
        return [run_made_up(program, strategy)[0] for _ in range(20) if strategy.begin()]

    assert behaviours(3) == behaviours(3)
    assert behaviours(3) != behaviours(4)


@pytest.mark.parametrize("name", ["pct", "pos"])
@pytest.mark.parametrize("seed", range(5))
def test_a_rare_order_is_found(name: str, seed: int) -> None:
    assert runs_until(LONG, make_strategy(name, seed), 0, 100) <= 100


def test_chance_alone_does_not_find_it() -> None:
    assert runs_until(LONG, make_strategy("random", 0), 0, 100) > 100


@pytest.mark.parametrize("name", STRATEGIES)
def test_deviations_repeat_a_run(name: str) -> None:
    program = ((("write", "x"), ("value", "y", 3)), (("write", "x"), ("take", "x"))) * 2
    strategy = make_strategy(name, 1)
    for _ in range(20):
        if not strategy.begin():
            return
        machine = Machine(program, strategy)
        machine.run()
        strategy.end(machine.choices.trace)
        again = FollowedChoices(machine.choices.trace.deviations())
        repeated = Machine(program, again)
        repeated.run()
        again.end(repeated.choices.trace)
        assert repeated.choices.trace == machine.choices.trace
        assert not again.missed


def test_an_unknown_name_is_refused() -> None:
    with pytest.raises(UsageError, match="strategy='dance'"):
        make_strategy("dance", 0)
