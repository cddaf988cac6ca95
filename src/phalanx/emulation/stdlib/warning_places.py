"""Where a warning comes from: the line that called, not a frame of ours between it and torch.

Torch counts frames (`stacklevel=2`) to find the line of the program, and C++ takes the frame
that called into it. Where Phalanx calls torch for the program (a wrapped method, a function
mode), that frame is ours. `warnings` makes one message for each warning that it shows or
records, whoever looks at it; so the place is put right there, and only if it is ours.
"""

from __future__ import annotations

import os
import sys
import warnings
from collections.abc import Iterator
from types import FrameType
from typing import Any

from phalanx.callsite import is_own_file

_TORCH = f"{os.sep}torch{os.sep}"


class PlacedWarning(warnings.WarningMessage):
    """What `warnings` hands on, with the place of the caller."""

    def __init__(
        self, message: Any, category: Any, filename: str, lineno: int, *more: Any, **named: Any
    ) -> None:
        if is_own_file(filename):
            filename, lineno = _caller(sys._getframe(1), filename, lineno)
        super().__init__(message, category, filename, lineno, *more, **named)


def warning_patches() -> Iterator[tuple[Any, str, Any]]:
    yield warnings, "WarningMessage", PlacedWarning


def _caller(frame: FrameType | None, filename: str, lineno: int) -> tuple[str, int]:
    """The first frame beyond ours that is not torch's; the given place if there is none, or if
    the warning is about that line itself."""
    while frame is not None and frame.f_code.co_filename != filename:
        frame = frame.f_back
    while frame is not None:
        file = frame.f_code.co_filename
        if not is_own_file(file) and _TORCH not in file:
            return file, frame.f_lineno
        frame = frame.f_back
    return filename, lineno
