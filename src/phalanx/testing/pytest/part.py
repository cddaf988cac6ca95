"""One rank's part of a test: its fixtures, the test function, the teardown, the record.

Runs in the rank, a thread or a process; used by `on_threads.py` and `in_rank.py`.
"""

from __future__ import annotations

import traceback
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import pytest

from phalanx.backend.evidence.invalid_call import note_invalid_call
from phalanx.callsite import is_library_file
from phalanx.engines.outcome import trim_traceback
from phalanx.errors import RankStopped, VerdictError, text_of
from phalanx.system import monotonic
from phalanx.testing.pytest.fixtures import FixturePlan, RankFixtures
from phalanx.testing.pytest.rank_record import Failure, Phase, Record
from phalanx.testing.pytest.world_fixture import RankWorld
from phalanx.testing.pytest_compat import pytest_private as private
from phalanx.testing.pytest_compat.fixture_standins import Place, SharedPlace
from phalanx.testing.pytest_compat.hypothesis_examples import (
    as_in_an_example,
    drawn_of,
    inner_of,
)

OnFailure = Callable[[BaseException], Any]


class RankPart:
    """What one rank does for a test. `tell` is called at the first error, before the teardown,
    so that the other ranks stop waiting for this one."""

    def __init__(
        self,
        plan: FixturePlan,
        world: RankWorld,
        *,
        extra: Mapping[str, Any],
        tell: OnFailure,
        place: SharedPlace | None = None,
    ) -> None:
        self.record = Record(world.rank)
        self._plan = plan
        self._extra = extra
        self._tell = tell
        self._phase: Phase = "setup"
        self._place = Place(world, self.record, self._represent, place)
        self._fixtures = RankFixtures(plan, self._place)

    @property
    def request(self) -> Any:
        return self._fixtures.top

    @property
    def node(self) -> Any:
        return self._fixtures.node

    def run(self) -> None:
        """Fill the record. Raises the first error of the rank, or what stopped it."""
        __tracebackhide__ = True
        first = self._run_function()
        self._turn_to("teardown")
        for error in self._fixtures.tear_down():
            # That there is nothing to tear down says nothing about the test.
            if _is_skip(error):
                self.record.sections.append(("teardown", "skip", _reason_of(error)))
            else:
                self.note(error)
                first = first or error
        self._fixtures.hand_in(self.record)
        if first is not None:
            raise first
        if self.record.end == "unfinished":
            self.record.end = "passed"

    def take_logs(self, handler: Any) -> None:
        """In a process, whose handler is the rank's."""
        self._place.take_logs(handler)
        self._place.settle(self.node)

    def _turn_to(self, phase: Phase) -> None:
        self._phase = phase
        self._place.turn_to(phase)

    def dissolve(self) -> None:
        """After it went well: let go of what refers back, so that all of it ends here. The
        garbage collector would find it, but that takes as long as a small test."""
        self._fixtures.dissolve()
        del self._fixtures, self._place

    def _run_function(self) -> BaseException | None:
        __tracebackhide__ = True
        try:
            arguments = self._fixtures.make_all()
            self._turn_to("call")
            if self._extra:
                arguments.update(self._extra)
            result = self._call(arguments)
        except BaseException as error:
            if _is_skip(error):
                self._skip(error)
                return None
            self.note(error)
            return error
        else:
            self.record.returned = None if result is None else repr(type(result))
        return None

    def _call(self, arguments: Mapping[str, Any]) -> Any:
        """The test function, bound to the rank's own instance; for Hypothesis, which has drawn
        the values already, the inner one."""
        __tracebackhide__ = True
        in_class = self._plan.in_class
        function: Callable[..., Any] = self.node.obj if in_class else self._plan.function
        drawn = drawn_of(function)
        if drawn is None:
            return function(**arguments)
        inner = inner_of(drawn)
        function = inner.__get__(self.node.instance) if in_class else inner
        with as_in_an_example():
            return function(**arguments)

    def _skip(self, error: BaseException) -> None:
        self.record.end = "skipped"
        self.record.reason = _reason_of(error)
        crash = pytest.ExceptionInfo.from_exception(error)
        place = private.crash_of(crash.getrepr(style="short"))
        self.record.skipped_at = None if place is None else (place.path, place.lineno)

    def note(self, error: BaseException) -> None:
        record = self.record
        if isinstance(error, RankStopped):
            if record.end not in ("failed", "skipped"):
                record.end = "stopped"
            return
        note_invalid_call(error)
        record.failures.append(self._represent(error))
        if record.end != "failed":
            record.end = "failed"
            self._tell(error)

    def _represent(self, error: BaseException) -> Failure:
        when = monotonic()
        verdict = isinstance(error, VerdictError)
        trim_traceback(error)
        shown = self._shown(error)
        chain = list(_chain(error))
        return Failure(
            rank=self.record.rank,
            phase=self._phase,
            when=when,
            kind=type(error).__name__,
            message=private.message_of(error),
            shown=shown,
            crash=private.crash_of(shown),
            trail=tuple((type(each).__name__, _lines_of(each)) for each, _ in chain),
            causes=tuple(_in_short(each, how) for each, how in chain[1:]),
            verdict=verdict,
            error=error,
        )

    def _shown(self, error: BaseException) -> Any:
        """pytest's own representation, with the explained assertion and, if asked for, the
        local variables; made now, before the teardown changes them."""
        if isinstance(error, pytest.fail.Exception) and not error.pytrace:
            return str(error)
        if error.__traceback__ is None:
            return private.shown_without_traceback(error)
        try:
            return self.node.repr_failure(pytest.ExceptionInfo.from_exception(error))
        except Exception as problem:  # a broken __repr__, say
            return f"{type(error).__name__}: {text_of(error)}\n(no traceback: {problem!r})"


def _chain(error: BaseException) -> Iterator[tuple[BaseException, str]]:
    """The error, what is in it if it is a group, and what it was raised from, as Python would
    show them; and what each has to do with it."""
    seen: set[int] = set()
    waiting: list[tuple[BaseException | None, str]] = [(error, "")]
    while waiting:
        each, how = waiting.pop(0)
        if each is not None and id(each) not in seen:
            seen.add(id(each))
            yield each, how
            inner = getattr(each, "exceptions", ())  # of a group, and a tuple then
            for one in inner if isinstance(inner, tuple) else ():
                waiting.append((one if isinstance(one, BaseException) else None, "with"))
            context = None if each.__suppress_context__ else each.__context__
            waiting.append((each.__cause__ or context, "from" if each.__cause__ else "after"))


def _lines_of(error: BaseException) -> tuple[tuple[str, int], ...]:
    """The program's lines on the way. One rank may be deeper in a recursion than another."""
    places = [
        (frame.f_code.co_filename, line)
        for frame, line in traceback.walk_tb(error.__traceback__)
        if not is_library_file(frame.f_code.co_filename)
    ]
    return tuple(dict.fromkeys(places))


def _in_short(error: BaseException, how: str) -> str:
    text = private.message_of(error).partition("\n")[0]
    return f"{how} {type(error).__name__}" + (f": {text}" if text else "")


def _is_skip(error: BaseException) -> bool:
    return isinstance(error, pytest.skip.Exception) or is_unittest_skip(error)


def _reason_of(skip: BaseException) -> str:
    return str(getattr(skip, "msg", None) or skip)


def is_unittest_skip(error: BaseException) -> bool:
    import unittest

    return isinstance(error, unittest.SkipTest)
