"""End a thread of a rank that was killed, so that nothing of its program runs any more.

A thread cannot be ended from outside; it unwinds by an exception. Neither `except` nor
`finally` nor `with` of the program may run meanwhile, and generators that die with their frames
must not clean up. So the exception arms a trace function and a profile function in its thread:
both raise it again wherever code of the program, or of a library on its behalf, would go on.
Python takes away the one that has raised, then the other one puts it back. Our own code runs as
usual.

What cannot be kept from running: `__del__` methods, and what types written in C do as they are
closed or freed (a file is flushed).
"""

from __future__ import annotations

import sys
import threading
from types import FrameType
from typing import Any

from phalanx import callsite
from phalanx.errors import RankKilled

_RESUMED = 0x20 | 0x80 | 0x200
"""Flags of the code of generators, coroutines and asynchronous generators."""


class _UnwindingHere(threading.local):
    unwinding: _Unwinding | None = None


_here = _UnwindingHere()


class Killed(RankKilled):
    """To make one ends the thread that makes it: give a thread the class, not an object."""

    def __init__(self, *args: object) -> None:
        super().__init__(*args)
        begin_unwinding()


def begin_unwinding() -> None:
    """From now on no code of the program runs in this thread."""
    if _here.unwinding is None:
        _here.unwinding = _Unwinding()
        _here.unwinding.arm(sys._getframe(1))


def free(error: BaseException) -> None:
    """The program's frames are unwound: let go of them and what they hold."""
    if _here.unwinding is not None:
        _here.unwinding.is_freeing = True
    chain: dict[int, BaseException] = {}
    following: list[BaseException | None] = [error]
    while following:
        each = following.pop()
        if each is not None and id(each) not in chain:
            chain[id(each)] = each
            following += [each.__context__, each.__cause__]
    for each in chain.values():
        each.__traceback__ = each.__context__ = each.__cause__ = None


def end_unwinding() -> None:
    """The thread is at our own code again. Does nothing in one that is not unwound."""
    if _here.unwinding is not None:
        _here.unwinding.disarm()
        _here.unwinding = None


class _Unwinding:
    """Of one thread."""

    def __init__(self) -> None:
        self.is_freeing = False
        """Whether only what dies with the frames could still run."""
        self._before: tuple[Any, Any] = (sys.gettrace(), sys.getprofile())

    def arm(self, frame: FrameType | None) -> None:
        while frame is not None:
            if not callsite.is_own_file(frame.f_code.co_filename):
                self._follow(frame)
            frame = frame.f_back
        sys.setprofile(self._profile)
        sys.settrace(self._trace)

    def disarm(self) -> None:
        trace, profile = self._before
        sys.settrace(trace)
        sys.setprofile(profile)

    def _follow(self, frame: FrameType) -> None:
        frame.f_trace = self._trace
        frame.f_trace_opcodes = True

    def _trace(self, frame: FrameType, event: str, given: Any) -> Any:
        if event in ("call", "line", "opcode") and self._is_over(frame):
            sys.setprofile(self._profile)
            raise self._error()
        return None if event == "call" else self._trace

    def _profile(self, frame: FrameType, event: str, given: Any) -> None:
        if event in ("call", "c_call") and self._is_over(frame):
            self._follow(frame)
            sys.settrace(self._trace)
            raise self._error()
        if event == "return":
            sys.settrace(self._trace)

    def _is_over(self, frame: FrameType | None) -> bool:
        """Whether it is the program that goes on here, or a library that it has called. Once
        only freeing is left, that is a generator that is closed: all else is a `__del__`."""
        resumed = False
        while frame is not None:
            code = frame.f_code
            if callsite.is_own_file(code.co_filename):
                return False
            resumed = resumed or bool(code.co_flags & _RESUMED)
            if not callsite.is_library(code.co_filename):
                return resumed or not self.is_freeing
            frame = frame.f_back
        return False

    def _error(self) -> BaseException:
        """A generator may end with its own exception when it is closed; Python would report
        any other."""
        return GeneratorExit() if self.is_freeing else RankKilled()
