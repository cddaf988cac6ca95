"""What a rank has of its own although ranks share a process, and what it must not do to it.

Two ways: state that Python code reads (`os.environ`) is looked up by the calling thread;
state inside torch and the interpreter (the random generator, `sys.argv`, `__main__`) is
swapped when another rank gets the baton. Calls that block or would end the process are
replaced during runs. `isolation_patches` lists all of it for `patches.py` to install.
"""

from __future__ import annotations

import os
import sys
import threading
import time
from collections.abc import Iterator
from types import ModuleType
from typing import Any

import torch

from phalanx import callsite
from phalanx.backend import private
from phalanx.backend.session import RankContext
from phalanx.core.baton import RUNNING, Strand, Switcher, here
from phalanx.errors import RankExited

POLLS = 50
"""How many looks at one and the same file count as polling: then the others get a turn."""


class RankSwitcher(Switcher):
    """Swaps, when a rank gets the baton after another one: torch's CPU generator always,
    `sys.argv` and `__main__` for ranks that have their own (scripts do)."""

    def __init__(self) -> None:
        self._owner: RankContext | None = None
        self._generator = torch.default_generator
        self._outer_random = self._generator.get_state()
        self._outer_argv = sys.argv
        self._outer_main = sys.modules.get("__main__")

    def enter(self, strand: Strand) -> None:
        context: RankContext = strand.local
        owner = self._owner
        if context is owner:
            return
        if owner is not None:
            owner.saved["random"] = self._generator.get_state()
        self._owner = context
        saved = context.saved
        self._generator.set_state(saved.get("random", self._outer_random))
        if "argv" in saved:
            sys.argv = saved["argv"]
            sys.modules["__main__"] = saved["main"]

    def restore(self) -> None:
        """After the run: as the launcher had it."""
        if self._owner is not None:
            self._owner.saved["random"] = self._generator.get_state()
            self._owner = None
        self._generator.set_state(self._outer_random)
        sys.argv = self._outer_argv
        if self._outer_main is not None:
            sys.modules["__main__"] = self._outer_main


def own_script_state(context: RankContext, argv: list[str], main: ModuleType) -> None:
    """Give a rank its own `sys.argv` and `__main__`, from now on."""
    context.saved["argv"], context.saved["main"] = argv, main
    sys.argv, sys.modules["__main__"] = argv, main


class RankEnviron(os._Environ):  # type: ignore[type-arg]
    """The class of `os.environ` during runs: a rank reads and writes its own copy."""

    def __getitem__(self, key: str) -> str:
        own = _own_environ()
        return super().__getitem__(key) if own is None else own[key]

    def __setitem__(self, key: str, value: str) -> None:
        own = _own_environ()
        if own is None:
            super().__setitem__(key, value)
        elif not isinstance(key, str) or not isinstance(value, str):
            wrong = value if isinstance(key, str) else key
            raise TypeError(f"str expected, not {type(wrong).__name__}")
        else:
            own[key] = value

    def __delitem__(self, key: str) -> None:
        own = _own_environ()
        if own is None:
            super().__delitem__(key)
        else:
            del own[key]

    def __iter__(self) -> Iterator[str]:
        own = _own_environ()
        return super().__iter__() if own is None else iter(list(own))

    def __len__(self) -> int:
        own = _own_environ()
        return super().__len__() if own is None else len(own)


def _own_environ() -> dict[str, str] | None:
    strand = here.strand
    return None if strand is None else strand.local.environ


def main_strand() -> Strand | None:
    """The calling thread's strand if it is a rank's main thread and holds the baton."""
    strand = here.strand
    if strand is None or strand.helper or strand.state is not RUNNING:
        return None
    return strand


class Blocked:
    """Why a rank is outside, as the report shows it."""

    __slots__ = ("mark", "what")

    def __init__(self, what: str) -> None:
        self.what = what
        self.mark = callsite.mark(2)


def isolation_patches() -> list[tuple[Any, str, Any]]:
    """(owner, attribute, replacement) for everything replaced in Python itself."""
    return [
        (os.environ, "__class__", RankEnviron),
        (time, "sleep", _sleeping(time.sleep)),
        (os, "stat", _polling(os.stat)),
        (os, "_exit", _exiting("os._exit", os._exit)),
        (os, "abort", _exiting("os.abort", os.abort)),
        (threading.Condition, "wait", _stepping_out(threading.Condition.wait)),
        (threading.Thread, "join", _stepping_out(threading.Thread.join)),
        (threading.Thread, "start", _adopting(threading.Thread.start)),
    ]


def _sleeping(original: Any) -> Any:
    def sleep(seconds: float) -> None:
        strand = here.strand
        if strand is None or strand.helper:
            original(seconds)
            return
        if seconds < 0:
            raise ValueError("sleep length must be non-negative")
        strand.baton.sleep(strand, seconds, Blocked("time.sleep"))

    return sleep


def _polling(original: Any) -> Any:
    """A rank that looks for a file in a tight loop must let the others run: one of them
    is to write it."""

    def stat(path: Any, *args: Any, **kwargs: Any) -> Any:
        strand = main_strand()
        if strand is not None:
            saved = strand.local.saved
            last, looks = saved.get("looked_at", (None, 0))
            looks = looks + 1 if last == path else 1
            if looks > POLLS:
                looks = 0
                strand.baton.give_way(strand)
            saved["looked_at"] = (path, looks)
        return original(path, *args, **kwargs)

    return stat


def _exiting(how: str, original: Any) -> Any:
    """`os._exit` in a rank would end all ranks and the caller without a word."""

    def leave(code: int = 134) -> None:
        if here.strand is None:
            original(code) if how == "os._exit" else original()
        raise RankExited(how, code)

    return leave


def _stepping_out(original: Any) -> Any:
    """Waits of Python's own threading: the rank lets the others run meanwhile."""

    def wait(self: Any, timeout: float | None = None) -> Any:
        strand = main_strand()
        if strand is None or "starting" in strand.local.saved:
            return original(self, timeout)
        strand.why = Blocked(f"threading.{type(self).__name__}.{original.__name__}")
        strand.baton.leave(strand)
        try:
            return original(self, timeout)
        finally:
            strand.baton.rejoin(strand)

    return wait


def _adopting(original: Any) -> Any:
    """A thread that a rank starts belongs to that rank."""

    def start(self: threading.Thread) -> None:
        strand = here.strand
        if strand is None:
            original(self)
            return
        context: RankContext = strand.local
        child = strand.baton.add(strand.rank, context, helper=True)
        self.run = _as_helper(child, self.run)  # type: ignore[method-assign]
        context.helpers.append(self)
        context.saved["starting"] = True
        try:
            original(self)
        except BaseException:
            strand.baton.finish(child)
            here.strand = strand
            raise
        finally:
            del context.saved["starting"]

    return start


def _as_helper(strand: Strand, body: Any) -> Any:
    def run() -> None:
        strand.baton.adopt(strand)
        enter_thread(strand.local)
        try:
            body()
        finally:
            private.unregister_groups()
            strand.baton.finish(strand)

    return run


def enter_thread(context: RankContext) -> None:
    """What torch keeps per thread and a thread of a rank needs: its groups by name, and a
    backward pass that stays in the thread, so that hooks know which rank they are."""
    torch.autograd.set_multithreading_enabled(False)
    for group, name in context.torch_state.pg_names.items():
        private.register_group(name, group)
