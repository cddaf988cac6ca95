"""The errors raised inside a rank, which are torch's too, so that `except RuntimeError` and
`except torch.distributed.DistError` in a program catch them as they would catch Gloo's.
"""

from __future__ import annotations

import copy
from dataclasses import replace
from typing import Any

import torch.distributed as dist

from phalanx import errors
from phalanx.model import Deadlock, Mismatch, Names, Stall, Verdict
from phalanx.report.text import render


class CollectiveMismatchError(errors.CollectiveMismatchError, dist.DistError):
    __module__ = "phalanx"


class DeadlockError(errors.DeadlockError, dist.DistError):
    __module__ = "phalanx"


class StallError(errors.StallError, dist.DistError):
    __module__ = "phalanx"


class InFlightBufferError(errors.InFlightBufferError, dist.DistError):
    __module__ = "phalanx"


class UnwaitedWorkError(errors.UnwaitedWorkError, dist.DistError):
    __module__ = "phalanx"


class ThreadRaceError(errors.ThreadRaceError, dist.DistError):
    __module__ = "phalanx"


class BackendHazardError(errors.BackendHazardError, dist.DistError):
    __module__ = "phalanx"


class InvalidCallError(errors.InvalidCallError, dist.DistError, ValueError):
    """One rank's own arguments are wrong. torch raises ValueError for some of these mistakes
    and RuntimeError, from C++, for others; this is both. Its verdict is made of the frames that
    it went through, when somebody asks."""

    __module__ = "phalanx"
    _verdict: Verdict | None = None

    @property
    def verdict(self) -> Verdict | None:  # type: ignore[override]
        if self._verdict is None and self.__traceback__ is not None:
            from phalanx.backend.evidence.invalid_call import (
                find_invalid_call,  # which needs this module
            )

            self._verdict = find_invalid_call(self)
        return self._verdict


class UnsupportedTypeError(InvalidCallError, TypeError):
    """A dtype that the backend does not support; torch raises TypeError for some of these."""

    __module__ = "phalanx"


class NotSupportedError(InvalidCallError, NotImplementedError):
    """An operation that the backend does not support; torch raises NotImplementedError."""

    __module__ = "phalanx"


class OpTimeoutError(errors.PhalanxError, dist.DistBackendError):
    """An operation outlived the timeout that the program gave it or its group."""

    __module__ = "phalanx"


_CLASSES: dict[type[Verdict], type[errors.VerdictError]] = {
    Mismatch: CollectiveMismatchError,
    Deadlock: DeadlockError,
    Stall: StallError,
}
_FINDINGS: dict[str, type[errors.VerdictError]] = {
    "mismatch": CollectiveMismatchError,
    "in-flight-buffer": InFlightBufferError,
    "unwaited-work": UnwaitedWorkError,
    "thread-race": ThreadRaceError,
    "backend-hazard": BackendHazardError,
    "invariant": errors.InvariantError,
    "different-results": errors.DifferentResultsError,
    "uncontrolled-chance": errors.UncontrolledChanceError,
}


def error_for(verdict: Verdict, replay: str | None) -> errors.VerdictError:
    return error_of(verdict, render(verdict, replay=replay))


def error_of(verdict: Verdict, text: str) -> errors.VerdictError:
    """The error for a verdict that was rendered elsewhere."""
    found = _FINDINGS.get(verdict.kind) or _CLASSES[type(verdict)]
    return found(text, verdict)


def add_names(
    error: BaseException, verdict: Verdict | None, names: Names, replay: str | None
) -> BaseException:
    """The error with this verdict instead of its own, and these lines in its report, if it is
    one that has such lines."""
    if not isinstance(verdict, (Mismatch, Deadlock, Stall)):
        return error
    if not names and verdict is getattr(error, "verdict", None):
        return error
    named = error_for(replace(verdict, names=(*verdict.names, *names)), replay)
    named.__cause__, named.__context__ = error.__cause__, error.__context__
    return named.with_traceback(error.__traceback__)


def one_for_each(error: Exception, count: int) -> list[Exception]:
    """The same error for several ranks: each raises a copy, or their tracebacks would mix."""
    copies = []
    for _ in range(count - 1):
        try:
            copies.append(copy.copy(error))
        except Exception:
            copies.append(error)
    return [error, *copies]


def _travel(error: BaseException) -> tuple[Any, ...]:
    """Pickles by the name in this module: `phalanx` exports other classes of that name."""
    return _arrive, (type(error).__name__, error.args, dict(vars(error)))


def _arrive(name: str, args: tuple[Any, ...], state: dict[str, Any]) -> BaseException:
    error: BaseException = globals()[name](*args)
    vars(error).update(state)
    return error


for _class in (
    CollectiveMismatchError,
    DeadlockError,
    StallError,
    InFlightBufferError,
    UnwaitedWorkError,
    ThreadRaceError,
    BackendHazardError,
    InvalidCallError,
    UnsupportedTypeError,
    NotSupportedError,
    OpTimeoutError,
):
    _class.__reduce__ = _travel  # type: ignore[assignment, method-assign]
