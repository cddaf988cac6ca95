"""How each rank ended, and which error the caller of `run` gets. Pure decisions.

Used by the engines. The first failure is raised. What other ranks raise while they are stopped
is a consequence of it, and the report says so.
"""

from __future__ import annotations

import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from phalanx import errors
from phalanx.callsite import is_own_file, raised_at
from phalanx.errors import (
    HazardError,
    PhalanxWarning,
    RankDied,
    RankExited,
    RankFailedError,
    RankStopped,
    VerdictError,
    text_of,
)
from phalanx.model import Finding, Names, RankFailure, Site, Verdict, ViewBlock
from phalanx.report.text import render, render_kind

WRAPPERS = ("torch/distributed/c10d_logger.py", "torch/distributed/distributed_c10d.py")
"""Files of torch's layers between the program's line and ours."""


class InvalidCallError(errors.InvalidCallError, RankFailedError):
    """The error of a run in which a rank failed because its own call was wrong."""

    __module__ = "phalanx"
    verdict: RankFailure | None

    def __reduce__(self) -> tuple[Any, ...]:
        return _invalid_call, (str(self), self.failures, self.verdict)


def _invalid_call(*parts: Any) -> InvalidCallError:
    """Pickle finds this function by name; `phalanx.InvalidCallError` is another class."""
    return InvalidCallError(*parts)


@dataclass
class Outcome:
    """How one rank ended: with a value, an error of its own, or stopped because of another."""

    rank: int
    value: Any = None
    error: BaseException | None = None
    stopped: bool = False
    late: BaseException | None = None
    killed: bool = False
    """Whether a plan of faults has killed it, which is no failure by itself."""
    site: Site | None = None
    """Where the error was raised, if its traceback does not say, as for another process."""


@dataclass
class Outcomes:
    """How all ranks of a run ended. `order` lists those that failed, first failure first."""

    ranks: list[Outcome]
    order: list[int] = field(default_factory=list)
    stopped_at: tuple[ViewBlock, ...] = ()
    stuck: tuple[tuple[int, Site | None], ...] = ()
    names: Names = ()

    @property
    def any_stopped(self) -> bool:
        """Whether a rank was stopped, or killed. Calls that are open then are no finding."""
        return any(each.stopped or each.killed for each in self.ranks)

    def record(self, rank: int, error: BaseException, *, stopping: bool) -> bool:
        """Record how a rank ended. Returns whether this is a failure of its own."""
        outcome = self.ranks[rank]
        if isinstance(error, RankStopped):
            outcome.stopped = True
            return False
        if stopping and was_stopped(error):
            outcome.late = error
            return False
        outcome.error = error
        self.order.append(rank)
        return True


def find_error(outcomes: Outcomes, replay: str | None) -> BaseException | None:
    """The one error to raise: the first verdict or failure, with everything else inside."""
    if not outcomes.order and not outcomes.stuck:
        return None
    if outcomes.order:
        first = outcomes.ranks[outcomes.order[0]].error
        if isinstance(first, VerdictError):
            return trim_traceback(first)
    failures = {rank: _error_of(outcomes.ranks[rank]) for rank in sorted(outcomes.order)}
    verdict = _failure_verdict(outcomes, failures)
    kind = InvalidCallError if verdict.kind == "invalid-call" else RankFailedError
    error = kind(render(verdict, replay=replay), failures, verdict)
    if outcomes.order:
        error.__cause__ = trim_traceback(failures[outcomes.order[0]])
    return error


def check_findings(findings: Sequence[Verdict], replay: str | None, *, strict: bool) -> None:
    """Under `strict`, raise a `HazardError` for the findings of a run that succeeded."""
    if findings and strict:
        texts = [render_kind(each, replay=replay) for each in findings]
        raise HazardError("\n\n".join(texts), findings)


def warn_of(findings: Sequence[Verdict], *, stacklevel: int) -> None:
    for each in findings:
        warnings.warn(PhalanxWarning(render_kind(each), each), stacklevel=stacklevel + 1)


def trim_traceback(error: BaseException) -> BaseException:
    """Remove our own frames from the traceback, also from those of causes and contexts."""
    seen: set[int] = set()
    following: list[BaseException | None] = [error]
    while following:
        each = following.pop()
        if each is not None and id(each) not in seen:
            seen.add(id(each))
            _trim(each)
            following += [each.__cause__, each.__context__]
    return error


def _trim(error: BaseException) -> None:
    kept = [
        trace
        for trace in _walk(error.__traceback__)
        if not is_own_file(trace.tb_frame.f_code.co_filename)
        and not _is_wrapper(trace.tb_frame.f_code.co_filename)
    ]
    for trace, following in zip(kept, [*kept[1:], None], strict=False):
        if trace.tb_next is not following:  # to set it walks through all that follow
            trace.tb_next = following
    error.__traceback__ = kept[0] if kept else None


def _walk(trace: Any) -> list[Any]:
    found = []
    while trace is not None:
        found.append(trace)
        trace = trace.tb_next
    return found


def _is_wrapper(filename: str) -> bool:
    return filename.endswith(WRAPPERS)


def was_stopped(error: BaseException) -> bool:
    """Whether the error was raised while `RankStopped` unwound the rank."""
    seen: BaseException | None = error
    known: set[int] = set()
    while seen is not None and id(seen) not in known:  # a program can make a cycle of them
        if isinstance(seen, RankStopped):
            return True
        known.add(id(seen))
        seen = seen.__context__ or seen.__cause__
    return False


def _error_of(outcome: Outcome) -> BaseException:
    assert outcome.error is not None
    return outcome.error


def _failure_verdict(outcomes: Outcomes, failures: Mapping[int, BaseException]) -> RankFailure:
    texts: dict[str, list[int]] = {}
    for rank, error in failures.items():
        texts.setdefault(_one_line(error), []).append(rank)
    first = outcomes.order[0] if outcomes.order else -1
    raised = sorted(texts.items(), key=lambda item: (first not in item[1], item[1]))
    sites = {
        rank: outcomes.ranks[rank].site or raised_at(error.__traceback__)
        for rank, error in failures.items()
    }
    calls = {rank: call for rank, error in failures.items() if (call := _call_of(error))}
    return RankFailure(
        kind="invalid-call" if first in calls else "rank-failed",
        severity="error",
        ranks=tuple(failures) or tuple(rank for rank, _ in outcomes.stuck),
        raised=tuple((tuple(ranks), text) for text, ranks in raised),
        sites={rank: site for rank, site in sites.items() if site is not None},
        stopped=_without(outcomes.stopped_at, set(failures)),
        late=tuple((o.rank, _one_line(o.late)) for o in outcomes.ranks if o.late is not None),
        stuck=outcomes.stuck,
        calls=calls,
        names=outcomes.names,
    )


def _call_of(error: BaseException) -> Finding | None:
    """What was wrong with the rank's own call, if the rank failed because of it."""
    verdict = getattr(error, "verdict", None)
    is_one = isinstance(verdict, Finding) and verdict.kind == "invalid-call"
    return verdict if is_one else None


def _without(blocks: tuple[ViewBlock, ...], ranks: set[int]) -> tuple[ViewBlock, ...]:
    """The blocks without these ranks: one that raises an error of its own was not stopped."""
    kept = ((tuple(r for r in block.ranks if r not in ranks), block.view) for block in blocks)
    return tuple(ViewBlock(rest, view) for rest, view in kept if rest)


def _one_line(error: BaseException) -> str:
    if isinstance(error, RankExited):
        return f"called {error}"
    if isinstance(error, RankDied):
        return str(error)
    message = text_of(error).strip()
    name = type(error).__name__
    return f"{name}: {message.splitlines()[0]}" if message else name
