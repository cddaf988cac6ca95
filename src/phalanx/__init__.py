"""Run, test and debug torch.distributed programs: any number of ranks in one process.

>>> import torch, torch.distributed as dist, phalanx
>>> def program():
...     t = torch.tensor(float(dist.get_rank()))
...     dist.all_reduce(t)
...     return t.item()
>>> phalanx.run(program, ranks=4)
[6.0, 6.0, 6.0, 6.0]
"""

import os as _os
from importlib import import_module as _import_module
from typing import TYPE_CHECKING, Any

from phalanx.errors import (
    BackendHazardError,
    CollectiveMismatchError,
    DeadlockError,
    DifferentResultsError,
    HazardError,
    InFlightBufferError,
    InvalidCallError,
    InvariantError,
    PhalanxError,
    PhalanxWarning,
    RankFailedError,
    StallError,
    ThreadRaceError,
    UncontrolledChanceError,
    UnwaitedWorkError,
    UsageError,
)

if TYPE_CHECKING:
    from phalanx.core.invariants import always
    from phalanx.engines.world import World, run
    from phalanx.explore.function_door import explore as explore

__all__ = [
    "BackendHazardError",
    "CollectiveMismatchError",
    "DeadlockError",
    "DifferentResultsError",
    "HazardError",
    "InFlightBufferError",
    "InvalidCallError",
    "InvariantError",
    "PhalanxError",
    "PhalanxWarning",
    "RankFailedError",
    "StallError",
    "ThreadRaceError",
    "UncontrolledChanceError",
    "UnwaitedWorkError",
    "UsageError",
    "World",
    "always",
    "explore",
    "run",
]

__version__ = "0.1.0"


def __dir__() -> list[str]:
    return sorted(__all__)


def __getattr__(name: str) -> Any:
    """`run` and `World` need torch, which takes a second to import: only when asked for."""
    if name in ("World", "run"):
        from phalanx.engines import world

        return getattr(world, name)
    if name == "always":
        from phalanx.core.invariants import always

        return always
    if name == "explore":
        return _import_module("phalanx.explore")  # which can be called
    raise AttributeError(f"module 'phalanx' has no attribute {name!r}")


if _os.environ.get("PHALANX_BLACKBOX") == "1" and "RANK" in _os.environ:
    from phalanx.blackbox import install as _install_black_box

    _install_black_box()
