"""Strategies: which of the possible next steps goes first. One module for each policy."""

from __future__ import annotations

from collections.abc import Callable

from phalanx.explore.strategies.change_points import ChangePoints
from phalanx.explore.strategies.exhaustive import Exhaustive
from phalanx.explore.strategies.partial_orders import PartialOrders
from phalanx.explore.strategies.random_walk import RandomWalk
from phalanx.explore.strategy import Strategy
from phalanx.options import check_choice

STRATEGIES: dict[str, Callable[[int], Strategy]] = {
    "pos": PartialOrders,
    "pct": ChangePoints,
    "random": RandomWalk,
    "exhaustive": Exhaustive,
}


def make_strategy(name: str, seed: int) -> Strategy:
    """The strategy of that name. Raises `UsageError` if there is none."""
    check_choice("strategy", name, tuple(STRATEGIES))
    return STRATEGIES[name](seed)
