"""What unittest reports for the ends of all ranks: passed, skipped or failed, and the text.

Used by the test classes. `end_of` runs in a rank and returns a skip as a value, beside the
other ranks' ends; failures are raised through the engine, which stops the other ranks and makes
the report. Must never start a rank.
"""

from __future__ import annotations

import inspect
import sys
import traceback
import unittest
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from types import FrameType
from typing import Any

from phalanx.core.strand import here
from phalanx.engines.outcome import trim_traceback
from phalanx.engines.remote.failure_evidence import RemoteTraceback
from phalanx.errors import (
    PhalanxError,
    PhalanxWarning,
    RankDied,
    RankFailedError,
    RankStopped,
    VerdictError,
)
from phalanx.model import Deadlock, Verdict, rank_list
from phalanx.report.text import render_kind
from phalanx.testing.torch_compat.shown_traceback import place_of
from phalanx.testing.torch_compat.skips import TestSkip, skip_for_code

__unittest = True  # unittest leaves the frames of this module out of its tracebacks

SHOWN_TRACES = 4
"""Tracebacks in one failure: ranks that fail alike share one; the report names all ranks."""


class RankTestError(RankFailedError, RuntimeError):
    """A test raised on some ranks. `failures` maps each rank that did to its exception."""


class RankAssertionError(RankTestError, AssertionError):
    """A `RankTestError` of failed assertions only: unittest says FAIL."""


RankTestError.__module__ = RankAssertionError.__module__ = "phalanx.testing"


@dataclass(frozen=True)
class Ended:
    """How a rank left its test: with the reason of a skip, or with an exit code."""

    code: int = 0
    skip: str | None = None
    pid: int | None = None


# -- in a rank ------------------------------------------------------------------------------


def end_of(test: Callable[[], Any], *, keeps_code: bool = False) -> Ended:
    """Run a rank's part. `keeps_code`: an exit code is no failure by itself, because the test
    has said that it expects one."""
    try:
        test()
    except unittest.SkipTest as skip:
        return Ended(skip=str(skip))
    except SystemExit as end:
        return _end_of_exit(end, keeps_code=keeps_code)
    except BaseException as error:
        if _is_outcome(error, "skip"):
            return Ended(skip=_outcome_text(error))
        drop_harness_frames(error)
        if here.strand is None and _is_outcome(error, "fail"):
            raise _that_travels(error).with_traceback(error.__traceback__) from None
        raise
    return Ended()


def _end_of_exit(end: SystemExit, *, keeps_code: bool) -> Ended:
    code = end.code if isinstance(end.code, int) else 0 if end.code is None else 1
    skip: TestSkip | None = skip_for_code(code)
    if skip is not None:
        return Ended(code, skip.message)
    if code and not keeps_code:
        raise end
    return Ended(code)


def _is_outcome(error: BaseException, name: str) -> bool:
    """Whether the test called pytest.skip(), pytest.fail() or pytest.xfail()."""
    pytest: Any = sys.modules.get("pytest")
    return pytest is not None and isinstance(error, getattr(pytest, name).Exception)


class ExpectedFailure(Exception):
    """pytest.xfail() was called in a rank that is a process."""


def _that_travels(error: BaseException) -> Exception:
    """pytest's own exceptions cannot be pickled: they say that they are builtins."""
    kind = ExpectedFailure if _is_outcome(error, "xfail") else AssertionError
    return kind(_outcome_text(error))


def _outcome_text(error: BaseException) -> str:
    return str(getattr(error, "msg", None) or error)


def run_all(*steps: Callable[[], Any]) -> None:
    """Take every step, also after an error: the first failure is raised in the end, or the
    first skip. The engine hears of a failure at once: what the rest does is a consequence."""
    found: BaseException | None = None
    for step in steps:
        try:
            step()
        except BaseException as error:
            failed = _is_failure(error)
            if found is None or (failed and not _is_failure(found)):
                found = error
            if failed and found is error:
                _tell(error)
    if found is not None:
        raise found


def _is_failure(error: BaseException) -> bool:
    if isinstance(error, SystemExit):
        return bool(error.code) and not (
            isinstance(error.code, int) and skip_for_code(error.code)
        )
    left = isinstance(error, (unittest.SkipTest, RankStopped, KeyboardInterrupt))
    return not left and not _is_outcome(error, "skip")


def _tell(error: BaseException) -> None:
    strand = here.strand
    tell = getattr(strand.local, "tell_failure", None) if strand is not None else None
    if tell is not None:
        drop_harness_frames(error)
        tell(error)


def drop_harness_frames(error: BaseException) -> None:
    """Leave out the inside of assertions and decorators: the test's own lines say it all."""
    trace, kept = error.__traceback__, []
    while trace is not None:
        if not _is_harness(trace.tb_frame):
            kept.append(trace)
        trace = trace.tb_next
    for each, following in zip(kept, [*kept[1:], None], strict=True):
        if each.tb_next is not following:  # to set it walks through all that follow
            each.tb_next = following
    if kept:
        error.__traceback__ = kept[0]


def _is_harness(frame: FrameType) -> bool:
    """unittest's own, torch's, what manages contexts, and what says so itself, as
    `pytest.fail` does."""
    place = frame.f_code.co_filename.replace("\\", "/")
    return (
        "__unittest" in frame.f_globals
        or "/torch/testing/" in place
        or place.endswith("/contextlib.py")
        or bool(frame.f_locals.get("__tracebackhide__"))
    )


# -- in the program -------------------------------------------------------------------------


def settle(run: Callable[[], Sequence[Ended]], test: Callable[..., Any]) -> Sequence[Ended]:
    """Run `test` on all ranks and return how they ended. Raises what unittest is to report: a
    skip, or the failure in full."""
    __tracebackhide__ = True
    found: BaseException | None
    try:
        ends = run()
    except PhalanxError as error:
        found = failure_of(error)
    else:
        found = skip_of(dict(enumerate(ends)), len(ends))
    if found is not None:
        raise found.with_traceback(place_of(found, test)) from None
    return ends


def warn_of(findings: Sequence[Verdict], test: Callable[..., Any]) -> None:
    """Warn about findings in a test that passed, such as messages that were not received."""
    code = inspect.unwrap(test).__code__
    for each in findings:
        warning = PhalanxWarning(render_kind(each), each)
        warnings.warn_explicit(warning, PhalanxWarning, code.co_filename, code.co_firstlineno)


def skip_of(ends: Mapping[int, Ended], ranks: int) -> unittest.SkipTest | None:
    """A skip on any rank skips the test: what it would have tested was not tested."""
    reasons: dict[str, list[int]] = {}
    for rank, end in sorted(ends.items()):
        if end.skip is not None:
            reasons.setdefault(end.skip, []).append(rank)
    if not reasons:
        return None
    if len(reasons) == 1 and len(next(iter(reasons.values()))) == ranks:
        return unittest.SkipTest(next(iter(reasons)))
    return unittest.SkipTest(
        "; ".join(f"{rank_list(who)}: {reason}" for reason, who in reasons.items())
    )


def failure_of(error: PhalanxError) -> BaseException:
    """What to raise for an error of the engine."""
    if isinstance(error, RankFailedError):
        return _failed(error)
    returned = getattr(error, "returned", {})
    if isinstance(error, VerdictError) and _waits_for_skipped(error, returned):
        ends = {rank: end for rank, end in returned.items() if isinstance(end, Ended)}
        return skip_of(ends, -1) or error
    return error


def _waits_for_skipped(error: VerdictError, returned: Mapping[int, Any]) -> bool:
    """Ranks that wait for one that has skipped the test are no mistake of the program; a
    cycle among the others is one."""
    verdict = error.verdict
    if not isinstance(verdict, Deadlock) or verdict.cause != "finished-peer":
        return False
    ends = [returned.get(rank) for rank in verdict.missed]
    return bool(ends) and all(isinstance(e, Ended) and e.skip is not None for e in ends)


def _failed(error: RankFailedError) -> BaseException:
    failures = list(error.failures.values())
    expected = [each for each in failures if _is_expected(each)]
    pytest: Any = sys.modules.get("pytest")
    if pytest is not None and expected and len(expected) == len(failures):
        reason: BaseException = pytest.xfail.Exception(_outcome_text(expected[0]))
        return reason
    alike = all(
        isinstance(each, AssertionError) or _is_outcome(each, "fail") for each in failures
    )
    kind = RankAssertionError if alike and failures else RankTestError
    text = "\n".join([str(error), *_traces(_cause_first(error))])
    return kind(text, error.failures, error.verdict)


def _cause_first(error: RankFailedError) -> dict[int, BaseException]:
    blocks = error.verdict.raised if error.verdict is not None else ()
    order = [rank for ranks, _ in blocks for rank in ranks]
    return {rank: error.failures[rank] for rank in [*order, *error.failures]}


def _is_expected(failure: BaseException) -> bool:
    return isinstance(failure, ExpectedFailure) or _is_outcome(failure, "xfail")


def _traces(failures: Mapping[int, BaseException]) -> list[str]:
    """The tracebacks, each once, with the ranks that raised it."""
    owners: dict[str, list[int]] = {}
    for rank, failure in failures.items():
        if not isinstance(failure, RankDied):
            owners.setdefault(_trace(failure), []).append(rank)
    shown = [
        f"\n{rank_list(who)}:\n{text.rstrip()}"
        for text, who in list(owners.items())[:SHOWN_TRACES]
    ]
    left = len(owners) - len(shown)
    return [*shown, *([f"\n({left} more tracebacks)"] if left > 0 else [])]


def _trace(failure: BaseException) -> str:
    cause = failure.__cause__
    if isinstance(cause, RemoteTraceback):
        return cause.text
    return "".join(traceback.format_exception(trim_traceback(failure)))
