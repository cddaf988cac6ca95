"""One run of a test on ranks, and its judgement: passed, skipped, or which error to raise.

Used by `items.py`. Pure decisions over the ranks' records and the error of the engine.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from phalanx.errors import (
    HazardError,
    RankDied,
    RankExited,
    RankFailedError,
    StallError,
    UsageError,
    VerdictError,
)
from phalanx.model import rank_list
from phalanx.system import monotonic
from phalanx.testing.pytest.rank_record import Failure, Record
from phalanx.testing.pytest_compat import pytest_private as private

OWN_REPORTS = (VerdictError, HazardError)
"""Errors whose text is a whole report, so that a traceback would only hide it."""


@dataclass
class RanksRun:
    """The records of the ranks and the error of the engine. `cause` is why the test fails,
    `others` are failures in their own right, the rest are consequences."""

    records: Sequence[Record]
    error: BaseException | None
    findings: Sequence[Any] = ()
    silenced: Sequence[Any] = ()
    """Findings that lines of the program silence."""
    timeline: str | None = None
    """What `phalanx report` takes in order to show this run."""
    journal: Any = None
    """What happened, where ranks are threads."""
    fingerprint: int = 0
    """Of the order in which threads had the baton."""
    cause: Failure | None = field(init=False, default=None)
    others: list[Failure] = field(init=False, default_factory=list)
    raised: BaseException | None = field(init=False, default=None)

    def __post_init__(self) -> None:
        failures = self._failures()
        if not failures:
            return
        self.cause = min(failures, key=lambda each: _weight(each, self._first()))
        self.others = [each for each in failures if each is not self.cause]
        self.raised = self.cause.error

    def _failures(self) -> list[Failure]:
        """Failures of ranks that failed by themselves, by the engine's judgement, and of
        teardowns."""
        error = self.error
        if error is None:
            return []
        if isinstance(error, OWN_REPORTS):
            own = [each for record in self.records for each in record.failures]
            if not any(each.verdict for each in own):
                own.append(_bare(error, 0))
            return own
        if not isinstance(error, RankFailedError):
            return []
        found: list[Failure] = []
        for rank, each in error.failures.items():
            found += self.records[rank].failures or [_bare(each, rank, self.site(rank))]
        return found

    def site(self, rank: int) -> Any:
        """Where a rank was when it died, if that is known."""
        verdict = getattr(self.error, "verdict", None)
        return getattr(verdict, "sites", {}).get(rank)

    def _first(self) -> BaseException | None:
        """The error that the engine calls the cause. A time limit that passes after a failure,
        in a teardown that hangs, is no cause."""
        error = self.error
        if isinstance(error, StallError):
            return None
        return error.__cause__ if isinstance(error, RankFailedError) else error

    @property
    def interrupt(self) -> BaseException | None:
        """An error that ends the whole run of pytest, or comes from outside of the ranks."""
        for failure in [self.cause, *self.others]:
            if failure is not None and isinstance(
                failure.error, (private.Exit, KeyboardInterrupt)
            ):
                return failure.error
        if self.error is None or isinstance(self.error, (RankFailedError, *OWN_REPORTS)):
            return None
        return self.error

    def is_beyond(
        self, allows: Callable[[BaseException], bool], marked: Sequence[int] | None = None
    ) -> bool:
        """Whether some failure is not covered by an `xfail` mark: on another rank than those
        that have put it there (None: it is on the test), in a teardown, or because the test
        could not be run."""
        if isinstance(self.interrupt, UsageError):
            return True
        return any(
            failure.phase == "teardown"
            or failure.refused
            or (marked is not None and failure.rank not in marked and not failure.verdict)
            or (failure.error is not None and not allows(failure.error))
            for failure in [self.cause, *self.others]
            if failure is not None and not isinstance(failure.error, private.XFailed)
        )

    @property
    def skipped(self) -> list[Record]:
        return [record for record in self.records if record.end == "skipped"]

    def skip_reason(self) -> str:
        """One reason where all ranks have the same."""
        reasons: dict[str, list[int]] = {}
        for record in self.skipped:
            reasons.setdefault(record.reason, []).append(record.rank)
        if len(reasons) == 1 and len(self.skipped) == len(self.records):
            return next(iter(reasons))
        return "; ".join(f"{rank_list(ranks)}: {why}" for why, ranks in reasons.items())


def _weight(failure: Failure, first: BaseException | None) -> tuple[bool, bool, float]:
    """What was expected to fail (`pytest.xfail()`) must not hide what was not; then what the
    engine says; then the time."""
    expected = isinstance(failure.error, private.XFailed)
    return (expected, failure.error is not first, failure.when)


def _bare(error: BaseException, rank: int, site: Any = None) -> Failure:
    """A failure without a record: the rank died, or it is our own report about all ranks."""
    died = isinstance(error, (RankDied, RankExited))
    text = str(error)
    if isinstance(error, RankDied):
        text = text.partition("\n")[0]  # what it wrote last is among the captured output
        if error.last is not None:
            text += f"\n{error.last}"
        if site is not None:
            text += f"\n{site} in {site.function}\n>  {site.source}"
    return Failure(
        rank=rank,
        phase="call",
        when=monotonic(),
        kind=type(error).__name__,
        message=text,
        shown=text if died else f"{type(error).__name__}: {text}",
        verdict=isinstance(error, OWN_REPORTS),
        refused=not died and not isinstance(error, OWN_REPORTS),
        error=error,
    )
