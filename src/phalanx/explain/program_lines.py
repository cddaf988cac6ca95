"""Lines of the program in dumps: which frames are the program's, and the text of a line.

Used by the readers. A dump may come from another machine, where libraries lie elsewhere, so
files are judged by the shape of their path. A path in a dump is not trusted: of files here
only Python sources are looked at.
"""

from __future__ import annotations

import linecache
import os
import re
from collections.abc import Iterable

from phalanx.callsite import is_library_file, shown_path
from phalanx.model import Site

_LIBRARY = re.compile(
    r"[\\/]lib[\\/]python3[.\d]*[\\/](?!site-packages|dist-packages)"
    r"|[\\/]torch[\\/](distributed|nn|autograd|utils|_ops|_dynamo|multiprocessing|_functorch)\b"
    r"|[\\/](site|dist)-packages[\\/](torch|typing_extensions)\b"
    r"|[\\/]phalanx[\\/](blackbox|backend|engines)[\\/]"
    r"|[\\/]bin[\\/]torchrun$|^<frozen "
)
MOST_FRAMES = 200
LARGEST_SOURCE = 4 << 20
"""Bytes of a file of source whose lines are shown."""


def is_of_library(file: str) -> bool:
    """Whether reports leave this file out."""
    return is_library_file(file) or _LIBRARY.search(file) is not None


def site_at(file: str, line: int, function: str, source: str = "") -> Site:
    """A line as reports show it, with its text if the file is here."""
    if not source and file.endswith(".py") and _is_readable(file):
        source = linecache.getline(file, line).strip()
    return Site(shown_path(file), line, function, source)


def _is_readable(file: str) -> bool:
    """A dump is not trusted: it may name a pipe or a device."""
    try:
        return os.path.isfile(file) and os.path.getsize(file) <= LARGEST_SOURCE
    except (OSError, ValueError):
        return False


def program_lines(frames: Iterable[tuple[str, int, str]]) -> tuple[Site, ...]:
    """The program's own among frames of (file, line, function), in the same order."""
    return tuple(
        site_at(file, line, function)
        for file, line, function in frames
        if not is_of_library(file)
    )
