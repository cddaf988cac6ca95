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

import dis
import gc
import sys
import threading
import warnings
import weakref
from types import FrameType
from typing import Any

from phalanx import callsite
from phalanx.errors import RankKilled

_RESUMED = 0x20 | 0x80 | 0x200
"""Flags of the code of generators, coroutines and asynchronous generators."""


_OF_WEAK_REFERENCES = {weakref.__file__, weakref.WeakSet.__init__.__code__.co_filename}
"""Files whose functions Python calls when objects die."""

_HANDLING = {
    dis.opmap[name]
    for name in ("PUSH_EXC_INFO", "COPY", "POP_EXCEPT", "RERAISE")
    if name in dis.opmap
}
"""What Python itself does at the beginning and at the end of a handler. Interrupted there, the
thread would count as handling that error from then on."""


def _unwinds(frame: FrameType, event: str) -> bool:
    return event != "call" and frame.f_code.co_code[frame.f_lasti] in _HANDLING


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
        _collector.pause()
        _here.unwinding = _Unwinding(sys._getframe(1))
        _here.unwinding.arm()


def free(error: BaseException) -> None:
    """The program's frames are unwound: let go of them and what they hold."""
    if _here.unwinding is not None:
        _here.unwinding.frames.clear()
    chain: dict[int, BaseException] = {}
    following: list[BaseException | None] = [error]
    while following:
        each = following.pop()
        if each is not None and id(each) not in chain:
            chain[id(each)] = each
            following += [each.__context__, each.__cause__]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # files and sockets that nobody has closed
        for each in chain.values():
            each.__traceback__ = each.__context__ = each.__cause__ = None


def end_unwinding() -> None:
    """The thread is at our own code again. Does nothing in one that is not unwound."""
    if _here.unwinding is not None:
        _here.unwinding.disarm()
        _here.unwinding = None
        _collector.resume()


class _Collector:
    """The garbage collector pauses while any thread unwinds: it would run what belongs to other
    objects there, which would be taken for the program."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._pauses = 0
        self._was_on = False

    def pause(self) -> None:
        with self._lock:
            self._pauses += 1
            if self._pauses == 1:
                self._was_on = gc.isenabled()
                gc.disable()

    def resume(self, *, for_all: bool = False) -> None:
        with self._lock:
            left = 0 if for_all else max(0, self._pauses - 1)
            if self._pauses and not left and self._was_on:
                gc.enable()
            self._pauses = left


_collector = _Collector()


def end_run() -> None:
    """All threads of a run have ended, some of them where nobody could say so."""
    _collector.resume(for_all=True)


class _Unwinding:
    """Of one thread."""

    def __init__(self, frame: FrameType | None) -> None:
        self.frames = {
            each
            for each in callsite.near_frames(frame, sys.maxsize)
            if not callsite.is_own_file(each.f_code.co_filename)
        }
        """Those that are there when it begins. All others belong to what dies with them."""
        self._before: tuple[Any, Any] = (sys.gettrace(), sys.getprofile())

    def arm(self) -> None:
        for frame in self.frames:
            self._follow(frame)
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
        if event in ("call", "line", "opcode") and not _unwinds(frame, event):
            error = self._error_at(frame)
            if error is not None:
                sys.setprofile(self._profile)
                try:
                    raise error
                finally:  # it holds this frame, which must not hold it
                    del error
        return None if event == "call" else self._trace

    def _profile(self, frame: FrameType, event: str, given: Any) -> None:
        if event in ("call", "c_call"):
            error = self._error_at(frame)
            if error is not None:
                for each in self.frames:
                    self._follow(each)
                sys.settrace(self._trace)
                try:
                    raise error
                finally:
                    del error
        elif event == "return":
            sys.settrace(self._trace)

    def _error_at(self, frame: FrameType | None) -> BaseException | None:
        """What is raised, if it is the program that goes on here or a library on its behalf. A
        frame that is traced makes no calls: what it seems to call are callbacks of objects that
        die. Of these, generators are closed, and may end with their own exception; Python would
        report any other."""
        first, is_closed, is_called = frame, False, False
        while frame is not None and frame not in self.frames:
            code = frame.f_code
            if callsite.is_own_file(code.co_filename):
                if is_closed:
                    return GeneratorExit()
                return RankKilled() if is_called and self.frames else None
            if code.co_name == "__del__" or code.co_filename in _OF_WEAK_REFERENCES:
                return None
            if not callsite.is_library(code.co_filename):
                is_called = True
                is_closed = is_closed or bool(code.co_flags & _RESUMED)
            frame = frame.f_back
        if frame is None or not self._is_of_program(frame):
            return None
        if is_closed:
            return GeneratorExit()
        return RankKilled() if frame is first or frame.f_trace is None else None

    @staticmethod
    def _is_of_program(frame: FrameType | None) -> bool:
        while frame is not None and not callsite.is_own_file(frame.f_code.co_filename):
            if not callsite.is_library(frame.f_code.co_filename):
                return True
            frame = frame.f_back
        return False
