"""All orders of a program that matter: schedules, how their runs are judged, and replays.

`phalanx.explore` is this package, and the function `function_door.explore` when it is called.
"""

import sys as _sys
from types import ModuleType as _ModuleType
from typing import Any as _Any


class _Explore(_ModuleType):
    """Python puts a package into its parent under its name, where users find the function."""

    def __call__(self, *args: _Any, **kwargs: _Any) -> _Any:
        __tracebackhide__ = True
        from phalanx.explore.function_door import explore

        return explore(*args, **kwargs)

    @property
    def __wrapped__(self) -> _Any:
        """For `inspect.signature`."""
        from phalanx.explore.function_door import explore

        return explore


_sys.modules[__name__].__class__ = _Explore
