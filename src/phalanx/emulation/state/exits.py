"""Functions that a rank registers for the end of the process run at the end of the rank.

These are `atexit` functions, `weakref.finalize` and `multiprocessing.util.Finalize`. What a
library registers while it is imported, and what torch does for the process as a whole, stays
with the process. Used by `run_patches.py` and the engine.
"""

from __future__ import annotations

import atexit
import multiprocessing.util
import os
import site
import sys
import sysconfig
import traceback
import weakref
from collections.abc import Callable
from functools import cache
from types import FrameType
from typing import Any

from phalanx.backend.session import RankContext
from phalanx.callsite import is_own_file
from phalanx.core.strand import here
from phalanx.emulation.state.interpreter import without_torch
from phalanx.errors import RankStopped

Patch = tuple[Any, str, Any]
FUNCTIONS = "exit functions"
FINALIZERS = "finalizers"
MOST_DEAD = 1000

_Registered = tuple[Callable[..., Any], tuple[Any, ...], dict[str, Any]]


def exit_patches() -> list[Patch]:
    util: Any = multiprocessing.util
    return [
        (atexit, "register", _registering(atexit.register)),
        (atexit, "unregister", _unregistering(atexit.unregister)),
        (weakref.finalize, "__init__", _noting(weakref.finalize.__init__)),
        (util.Finalize, "__init__", _noting(util.Finalize.__init__)),
    ]


def _functions() -> list[_Registered] | None:
    """The functions registered by the calling thread's rank; None outside of ranks."""
    strand = here.strand
    return None if strand is None else strand.local.saved.setdefault(FUNCTIONS, [])


def _registering(original: Any) -> Any:
    def register(func: Any, /, *args: Any, **kwargs: Any) -> Any:
        own = _functions()
        if own is None or not _is_the_ranks(sys._getframe(1)):
            return original(func, *args, **kwargs)
        if not callable(func):
            raise TypeError("the first argument must be callable")
        own.append((func, args, kwargs))
        return func

    return register


def _unregistering(original: Any) -> Any:
    def unregister(func: Any, /) -> None:
        own = _functions()
        if own is None:
            original(func)
        elif any(each[0] == func for each in own):
            own[:] = [each for each in own if each[0] != func]
        elif not _is_the_ranks(sys._getframe(1)):
            original(func)

    return unregister


def _noting(original: Any) -> Any:
    """Note which rank made a finalizer."""

    def construct(self: Any, *args: Any, **kwargs: Any) -> None:
        original(self, *args, **kwargs)
        strand = here.strand
        if strand is not None and _is_the_ranks(sys._getframe(1)):
            own = strand.local.saved.setdefault(FINALIZERS, [])
            own.append(self)
            if len(own) > MOST_DEAD:
                own[:] = [each for each in own if _priority(each) is not None]

    return construct


def _priority(finalizer: Any) -> tuple[int, int] | None:
    """The key by which finalizers are sorted; None if it has nothing to do at exit."""
    if isinstance(finalizer, weakref.finalize):
        return (0, 0) if finalizer.alive and finalizer.atexit else None
    wanted = finalizer.still_active() and finalizer._key[0] is not None
    return (1, finalizer._key[0]) if wanted else None


def end(context: RankContext) -> None:
    """Run them. The rank has returned, failed or called `sys.exit`; its groups still exist."""
    saved = context.saved
    if FUNCTIONS in saved:
        run_functions(context)
        saved.pop(FUNCTIONS, None)
    while FINALIZERS in saved:
        made = saved.pop(FINALIZERS)
        alive = [(_priority(each), number, each) for number, each in enumerate(made)]
        for _, _, each in sorted((a for a in alive if a[0] is not None), reverse=True):
            _call(each, (), {}, "finalizer")


def run_functions(context: RankContext) -> None:
    """Last in, first out, including functions that are registered meanwhile."""
    own: list[_Registered] = context.saved.get(FUNCTIONS, [])
    while own:
        func, args, kwargs = own.pop()
        _call(func, args, kwargs, "atexit callback")


def _call(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any], what: str) -> None:
    """Run one function. An error is printed and ends neither the rank nor the functions that
    follow."""
    try:
        func(*args, **kwargs)
    except RankStopped:  # it wanted to communicate, and the run is over
        pass
    except BaseException as error:
        trace = error.__traceback__.tb_next if error.__traceback__ is not None else None
        lines = traceback.format_exception(type(error), error, trace)
        text = "".join([f"Exception ignored in {what} {func!r}:\n", *lines])
        print(text, end="", file=sys.stderr)


def call_own_hook(error: Exception, everybodys: Any) -> None:
    """Pass the error of a script's rank to the `sys.excepthook` that it has set, besides the
    report. Not to torch's hook, which puts the rank before the lines of a traceback, as we
    do."""
    hook = without_torch(sys.excepthook)
    if hook in (None, everybodys, sys.__excepthook__):
        return
    trace = error.__traceback__
    while trace is not None and is_own_file(trace.tb_frame.f_code.co_filename):
        trace = trace.tb_next
    _call(hook, (type(error), error, trace), {}, "sys.excepthook")


def _is_the_ranks(frame: FrameType | None) -> bool:
    """Whether a registration belongs to the rank. What torch registers, or any library while it
    is imported, does not, because other ranks use it too. Python's own modules act for their
    caller, as `tempfile` does."""
    asked = False
    while frame is not None:
        name = frame.f_globals.get("__name__", "")
        kind = _kind(frame.f_code.co_filename)
        if not asked and kind != "python":
            asked = True
            if name == "torch" or name.startswith("torch."):
                return False
        if kind != "program" and frame.f_code.co_name == "<module>" and name != "__main__":
            return False
        frame = frame.f_back
    return asked


@cache
def _kind(path: str) -> str:
    """The kind of this code: "python", "library" or "program"."""
    if path.startswith("<frozen"):
        return "python"
    full = os.path.abspath(path)
    libraries = [*site.getsitepackages(), site.getusersitepackages()]
    libraries += [sysconfig.get_path("purelib"), sysconfig.get_path("platlib")]
    if any(full.startswith(os.path.join(folder, "")) for folder in libraries):
        return "library"
    standard = os.path.join(sysconfig.get_path("stdlib"), "")
    return "python" if full.startswith(standard) else "program"
