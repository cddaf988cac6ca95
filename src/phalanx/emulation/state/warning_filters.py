"""What `warnings.catch_warnings` and `logging.captureWarnings` replace: each rank has its own.
Used by `switcher.py`.

Modules note which of their warnings were shown, so that Python shows them once. The notes of
shared modules are common to ranks. Python drops such notes when filters change; at hand-overs
that would show every warning again and again. So a change is announced to Python only where
another rank's filters could require a warning that was noted.
"""

from __future__ import annotations

import logging
import warnings
from collections.abc import Iterable
from typing import Any


def get_warnings() -> tuple[Any, ...]:
    """The values that both replace and put back."""
    return (
        warnings.filters,
        warnings.showwarning,
        logging_module._warnings_showwarning,
        _warnings_module._showwarnmsg_impl,
    )


def set_warnings(state: tuple[Any, ...]) -> None:
    filters, show, put_aside, show_message = state
    logging_module._warnings_showwarning = put_aside
    if warnings.filters is filters and warnings.showwarning is show:
        return
    _warnings_module.filters, _warnings_module.showwarning = filters, show
    _warnings_module._showwarnmsg_impl = show_message


def note_valid() -> None:
    """Record that the notes of modules agree with the present filters."""
    _valid[:] = warnings.filters


def settle() -> None:
    """After a change of filters: drop the notes of modules, if necessary."""
    if warnings.filters != _valid:
        if _demanding(warnings.filters) != _demanding(_valid):
            _warnings_module._filters_mutated()
        note_valid()


def _demanding(filters: Iterable[Any]) -> list[Any]:
    """The filters that apply to every warning. Ignored warnings are not noted, and filters
    after one for everything are never reached."""
    found = []
    for each in filters:
        if each[0] not in ("ignore", "default", "once", "module"):
            found.append(each)
        if each[1:] == (None, Warning, None, 0):
            break
    return found


_valid: list[Any] = []


_warnings_module: Any = warnings
logging_module: Any = logging
"""Holds the function that `captureWarnings` has replaced, if it is on."""
