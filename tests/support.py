"""What tests of several folders share."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import pytest

import phalanx
from phalanx.report.text import render_kind


def assert_silent(
    program: Callable[[], Any],
    *,
    ranks: int = 2,
    world: phalanx.World | None = None,
    seeds: Iterable[int] = (0,),
    kind: str | None = None,
    **options: Any,
) -> None:
    """Run a correct program, once for each seed, and fail if the checks find something, of this
    kind if one is given. It runs in `world` if one is given, which may have run others, and
    else in one with these options. Filters of warnings make no difference."""
    if world is not None:
        _run_silently(world, program, kind)
        return
    for seed in seeds:
        given = {**options, "seed": seed} if seed else options
        with phalanx.World(ranks=ranks, **given) as own:
            _run_silently(own, program, kind)


def _run_silently(world: phalanx.World, program: Callable[[], Any], kind: str | None) -> None:
    before = len(world.findings)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", phalanx.PhalanxWarning)
        world.run(program)
    found = [each for each in world.findings[before:] if kind in (None, each.kind)]
    assert not found, "\n\n".join(map(render_kind, found))


def covering(first: Sequence[Any], second: Sequence[Any]) -> list[Any]:
    """All pairs as parameters. Those that are not needed to have each value once are slow, so
    that `make test` has each value of either list and `make test-full` every pair."""
    longer = max(len(first), len(second))
    needed = {(at % len(first), at % len(second)) for at in range(longer)}
    return [
        pytest.param(
            one,
            other,
            marks=() if (row, column) in needed else pytest.mark.slow,
            id=f"{one}-{other}",
        )
        for row, one in enumerate(first)
        for column, other in enumerate(second)
    ]
