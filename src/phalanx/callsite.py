"""Find the user's line: the innermost frame that is neither Phalanx's nor torch's.

Used by the backend for each call, so the hot path stores only a code object and an
instruction offset; `resolve` turns that into a `Site` when a report needs it.
Must never import torch or anything above the words layer.
"""

from __future__ import annotations

import functools
import linecache
import os
import sys
import threading
from collections.abc import Iterator
from types import CodeType, FrameType, TracebackType

from phalanx.model import Site, StackLine
from phalanx.system import current_frames, folder_here

Mark = tuple[CodeType, int]

_OWN_ROOT = os.path.dirname(os.path.abspath(__file__)) + os.sep
_STDLIB_ROOT = os.path.dirname(os.path.abspath(os.__file__)) + os.sep
_AROUND_THREADS = {
    os.path.join(_OWN_ROOT, "emulation", "stdlib", name)
    for name in ("executor_pools.py", "replaced_calls.py")
}
"""Files of ours that stand around what a thread or a job of the program runs."""
_RUNNERS = ("pytest", "_pytest", "pluggy")
"""Packages that run a program's tests, and are in no line of it."""
_library: dict[str, bool] = {}
"""By file: to hash a name is far cheaper than to hash a code object."""


def mark(depth: int = 1) -> Mark | None:
    """The user's frame above the caller, as cheaply as possible. None in a thread of native
    code, such as one of autograd's for a GPU, that has called into Python."""
    try:
        frame: FrameType | None = sys._getframe(depth)
    except ValueError:
        return None
    known = _library.get
    while frame is not None:  # `mark_of`, for every call: the usual frame costs one look
        if known(frame.f_code.co_filename):
            frame = frame.f_back
        elif known(frame.f_code.co_filename) is None:
            return mark_of(frame)
        else:
            return frame.f_code, frame.f_lasti
    return None


def mark_of_main_thread() -> Mark | None:
    """Where the main thread is: whoever called `backward` waits there for autograd's own."""
    return mark_of(current_frames().get(threading.main_thread().ident or 0))


def mark_of(frame: FrameType | None) -> Mark | None:
    known = _library
    while frame is not None:
        code = frame.f_code
        file = code.co_filename
        skip = known.get(file)
        if skip is None:
            skip = known[file] = is_library_file(file)
        if not skip:
            return code, frame.f_lasti
        frame = frame.f_back
    return None


def is_library(filename: str) -> bool:
    """`is_library_file`, remembered."""
    skip = _library.get(filename)
    if skip is None:
        skip = _library[filename] = is_library_file(filename)
    return skip


def is_called_by_program(caller: FrameType | None) -> bool:
    """Whether what is called from this frame is called by the program: by its own code, or by
    Python's as the function of a thread or a job, where no code of the program is around."""
    while caller is not None:
        filename = caller.f_code.co_filename
        if not is_library(filename):
            return True
        is_stdlib = filename.startswith(_STDLIB_ROOT) and "site-packages" not in filename
        if not is_stdlib and filename not in _AROUND_THREADS:
            return False
        caller = caller.f_back
    return True


def resolve(place: Mark | None) -> Site | None:
    if place is None:
        return None
    code, offset = place
    return _site(code, line_at(code, offset))


def site_at(code: CodeType, line: int) -> Site:
    """A line of the file that this code is from."""
    return _site(code, line)


def site_in(filename: str, line: int, function: str) -> Site:
    """A place of which only the names are known, as in the text of a stack."""
    return _named_site(filename, line, function, folder_here())


MOST_FRAMES = 500
"""Frames of the program that are looked at in a stack, from inside: to look at one of those of
a deep recursion makes it an object, which takes memory and time."""


def user_stack(frame: FrameType | None) -> tuple[Site, ...]:
    """The user frames of a thread, innermost last: the innermost `MOST_FRAMES` of them."""
    sites: list[Site] = []
    for each in near_frames(frame, 4 * MOST_FRAMES):
        if not is_library(each.f_code.co_filename):
            sites.append(_site(each.f_code, each.f_lineno or 0))
            if len(sites) == MOST_FRAMES:
                break
    return tuple(reversed(sites))


def near_frames(frame: FrameType | None, most: int = MOST_FRAMES) -> Iterator[FrameType]:
    """This frame and those around it, at most so many."""
    while frame is not None and most > 0:
        yield frame
        frame, most = frame.f_back, most - 1


def outer_places(
    frame: FrameType | None, most: int = -1
) -> tuple[tuple[CodeType, ...], tuple[int, ...]]:
    """The code and the instruction of each of the user's frames from here outwards, up to ours
    that run the program; none if these are more than `most` frames away."""
    known, own = _library, _OWN_ROOT
    codes: list[CodeType] = []
    offsets: list[int] = []
    while frame is not None:
        code = frame.f_code
        file = code.co_filename
        skip = known.get(file)
        if skip is None:
            skip = known[file] = is_library_file(file)
        if not skip:
            codes.append(code)
            offsets.append(frame.f_lasti)
        elif codes and file.startswith(own):
            break
        most -= 1
        if not most:
            return (), ()
        frame = frame.f_back
    return tuple(codes), tuple(offsets)


def call_stack(frame: FrameType | None) -> tuple[StackLine, ...]:
    """The lines through which the program came to a call, that of the call last; none if it
    began more than `MOST_FRAMES` frames away."""
    return tuple(map(stack_line, *outer_places(frame, MOST_FRAMES)))[::-1]


def stack_line(code: CodeType, offset: int) -> StackLine:
    return StackLine(_site(code, line_at(code, offset)), is_installed(code.co_filename))


def is_installed(filename: str) -> bool:
    """Whether a file belongs to a package that was installed, not to the user's program."""
    return "site-packages" in filename or "dist-packages" in filename


def raised_at(trace: TracebackType | None) -> Site | None:
    """The innermost user line of a traceback."""
    found = None
    while trace is not None:
        if not is_library(trace.tb_frame.f_code.co_filename):
            found = trace
        trace = trace.tb_next
    return _site(found.tb_frame.f_code, found.tb_lineno) if found else None


def is_library_file(filename: str) -> bool:
    """Whether reports leave this file out: ours, torch's, the standard library's, generated."""
    if filename.startswith(_OWN_ROOT):
        return True
    if filename.startswith("<"):
        return not filename.startswith(("<stdin", "<ipython", "<python-input", "<doctest"))
    if f"{os.sep}site-packages{os.sep}torch{os.sep}" in filename:
        return True
    if f"{os.sep}torch{os.sep}distributed{os.sep}" in filename:
        return True
    if any(f"{os.sep}site-packages{os.sep}{name}{os.sep}" in filename for name in _RUNNERS):
        return True
    if filename.endswith(f"{os.sep}typing_extensions.py"):  # around what torch has deprecated
        return True
    return filename.startswith(_STDLIB_ROOT) and "site-packages" not in filename


def is_own_file(filename: str) -> bool:
    return filename.startswith(_OWN_ROOT)


def shown_path(filename: str) -> str:
    """Relative to the current directory if below it, else the last two parts."""
    here = folder_here() or os.sep
    relative = os.path.relpath(filename, here) if os.path.isabs(filename) else filename
    if not relative.startswith(os.pardir):
        return relative
    shown = os.sep.join(filename.split(os.sep)[-2:])
    _outside.setdefault(shown, filename)
    return shown


_outside: dict[str, str] = {}
"""Files that are not below the current directory, by what is shown of their path."""
_programs: dict[str, None] = {}
"""Folders above those of programs that run."""


def remember_program(filename: str) -> None:
    """A script that runs, maybe in other processes, whose places are known here by what they
    show of their path."""
    _programs[os.path.dirname(os.path.dirname(os.path.abspath(filename)))] = None


def real_path(shown: str) -> str:
    """The file that is shown so, as far as that is known: it may be another one of the same
    name."""
    path = os.path.abspath(shown)
    if os.path.isabs(shown) or os.path.exists(path):
        return path
    near = (os.path.join(folder, shown) for folder in _programs)
    return _outside.get(shown) or next(filter(os.path.exists, near), path)


def _site(code: CodeType, line: int) -> Site:
    return _named_site(code.co_filename, line, code.co_name, folder_here())


@functools.lru_cache(maxsize=1024)
def _named_site(filename: str, line: int, function: str, _folder: str | None) -> Site:
    """Cached, because a thousand ranks are usually at the same few places."""
    source = linecache.getline(filename, line).strip()
    return Site(shown_path(filename), line, function, source)


def line_at(code: CodeType, offset: int) -> int:
    """The line of an instruction."""
    line = code.co_firstlineno
    for start, end, candidate in code.co_lines():
        if start <= offset < end and candidate is not None:
            return candidate
    return line
