"""accelerate's `debug_launcher`, on our engines. Used by tests; needs no pytest."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable
from typing import Any


def debug_launcher(
    function: Callable[..., Any],
    args: Iterable[Any] = (),
    num_processes: int = 2,
    *,
    engine: str = "processes",
) -> None:
    """Run `function(*args)` on CPU ranks with a Gloo group, as accelerate's function of this
    name does. Ranks are processes, because accelerate keeps its state once per process; what
    keeps none runs faster with `engine="threads"`.
    """
    __tracebackhide__ = True
    from phalanx.engines.world import World

    replay = f"debug_launcher({getattr(function, '__name__', 'function')}, ...)"
    with World(ranks=num_processes, engine=engine, backend="gloo", replay=replay) as world:
        world.run(_as_launched, function, tuple(args))


def _as_launched(function: Callable[..., Any], args: tuple[Any, ...]) -> None:
    """What accelerate's launcher sets up for the function."""
    __tracebackhide__ = True
    os.environ.update(
        ACCELERATE_USE_CPU="yes", ACCELERATE_MIXED_PRECISION="no", FORK_LAUNCHED="1"
    )
    function(*args)
