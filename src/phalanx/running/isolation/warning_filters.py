"""What `warnings.catch_warnings` replaces, each rank with its own. Used by `switcher.py`."""

from __future__ import annotations

import warnings
from typing import Any


def get_warnings() -> tuple[Any, ...]:
    """What `warnings.catch_warnings` replaces and puts back."""
    return warnings.filters, warnings.showwarning, _warnings_module._showwarnmsg_impl


def set_warnings(state: tuple[Any, ...]) -> None:
    if warnings.filters is state[0] and warnings.showwarning is state[1]:
        return
    _warnings_module.filters, _warnings_module.showwarning, show_message = state
    _warnings_module._showwarnmsg_impl = show_message
    filters_mutated()


def filters_mutated() -> None:
    """Forget what was decided by other filters."""
    _warnings_module._filters_mutated()


_warnings_module: Any = warnings
