"""Strategies: which of the possible next steps goes first. One module for each policy."""

from __future__ import annotations

from phalanx.explore.strategies.random_walk import RandomWalk
from phalanx.explore.strategy import Strategy
from phalanx.options import check_choice

STRATEGIES = {"random": RandomWalk}


def make_strategy(name: str, seed: int) -> Strategy:
    """The strategy of that name. Raises `UsageError` if there is none."""
    check_choice("strategy", name, tuple(STRATEGIES))
    return STRATEGIES[name](seed)
