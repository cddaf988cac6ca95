"""The exception tree. Used by every layer; must never import torch.

What is raised *inside* a rank is also a `torch.distributed.DistError`, so that a program's
`except RuntimeError` keeps working: the backend layer derives those classes from the ones
here (this layer knows nothing of torch).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from phalanx.model import Deadlock, Finding, Mismatch, RankFailure, Stall, Verdict

RANK_STDERR = 10
"""How many lines of a dead rank's standard error its error shows."""


class PhalanxError(Exception):
    """The base of every error that Phalanx raises."""

    verdict: Verdict | None = None
    journal: Any = None
    """What happened in the run that raised this, as `World.journal` gives it."""
    timeline: Any = None
    """The run that raised this, to look at, as `World.timeline()` gives it."""

    def _repr_html_(self) -> str | None:
        """The picture that a notebook shows; None where there is none, and the text stands."""
        return None if self.timeline is None else str(self.timeline._repr_html_())


class UsageError(PhalanxError, ValueError):
    """Phalanx was called wrongly: the text says what was given and what is allowed."""


class WrongCommand(UsageError):
    """The command line was wrong, which shows only when the script runs."""


class VerdictError(PhalanxError, RuntimeError):
    """A check found something; `verdict` is the finding as data, the text its rendering."""

    of_finished = False
    """Whether all ranks had ended by themselves when this was found."""

    def __init__(self, text: str, verdict: Verdict | None = None) -> None:
        super().__init__(text)
        self.verdict = verdict

    def for_each(self, count: int) -> list[VerdictError]:
        """As many errors of this kind: each rank raises one of its own, rendered once."""
        return [self, *(type(self)(str(self), self.verdict) for _ in range(count - 1))]


class CollectiveMismatchError(VerdictError):
    """Calls that meet in one collective, or a send and its receive, disagree."""

    verdict: Mismatch | None


class DeadlockError(VerdictError):
    """Ranks wait that can never move again. This is proved, not guessed."""

    verdict: Deadlock | None


class InvalidCallError(PhalanxError):
    """One rank's own arguments are wrong. The rank raises it, and so does the run."""


class StallError(VerdictError):
    """Time ran out while a rank was out of Phalanx's sight. Nothing is proved."""

    verdict: Stall | None


class InFlightBufferError(VerdictError):
    """A tensor was written, read or used again before its operation was waited for."""

    verdict: Finding | None


class UnwaitedWorkError(VerdictError):
    """A result was used although the `Work` of its operation was dropped unwaited."""

    verdict: Finding | None


class ThreadRaceError(VerdictError):
    """Two threads of one rank use one group, and nothing orders their calls."""

    verdict: Finding | None


class BackendHazardError(VerdictError):
    """By the rules of the profile's backend the program may hang or corrupt data."""

    verdict: Finding | None


class InvariantError(VerdictError, AssertionError):
    """In a run that is explored: what `phalanx.always` says did not hold. The run has failed,
    even if the program catches this."""

    verdict: Finding | None


class DifferentResultsError(VerdictError):
    """A program that is explored ends with another result in another order, or with faults."""

    verdict: Finding | None


class UncontrolledChanceError(VerdictError):
    """A failure that exploring has found does not come again in the same order: something that
    is no choice decides as well."""

    verdict: Finding | None


class HazardError(PhalanxError, RuntimeError):
    """With `strict`: the run succeeded, but the checks have `findings`."""

    def __init__(self, text: str, findings: Sequence[Verdict]) -> None:
        super().__init__(text)
        self.findings = tuple(findings)
        self.verdict = self.findings[0] if self.findings else None


class PhalanxWarning(UserWarning):
    """A check found something in a run that succeeded. `finding` is the finding as data."""

    def __init__(self, text: str, finding: Verdict | None = None) -> None:
        super().__init__(text)
        self.finding = finding


class RankFailedError(PhalanxError):
    """A rank's own code raised. `failures` maps each such rank to its exception."""

    verdict: RankFailure | None

    def __init__(
        self,
        text: str,
        failures: Mapping[int, BaseException],
        verdict: RankFailure | None = None,
    ) -> None:
        super().__init__(text)
        self.failures = dict(failures)
        self.verdict = verdict


class RankStopped(BaseException):
    """Unwinds a rank because another one failed. Not an Exception: programs must not eat it."""


class RankKilled(RankStopped):
    """Unwinds a rank whose process a plan of faults has killed."""


class RankInterrupted(RankStopped, KeyboardInterrupt):
    """The same because of Ctrl-C: comes once, and programs may do something about it."""


class RankDied(PhalanxError):
    """A rank's process ended in the middle of a call: by a signal, or by itself with a code.
    `stderr` holds the last lines it wrote there, `last` says what it was seen doing last."""

    def __init__(
        self,
        *,
        code: int,
        signal: str | None,
        stderr: Sequence[str] = (),
        last: str | None = None,
    ) -> None:
        how = f"of {signal}" if signal else f"with exit code {code}"
        text = [f"died {how}"] if last is None else [f"died {how}", last]
        if stderr:
            text += ["its last lines on standard error:", *stderr[-RANK_STDERR:]]
        super().__init__("\n".join(text))
        self.last = last
        self.code = code
        self.signal = signal
        self.stderr = tuple(stderr)


class RankExited(BaseException):
    """A rank called `os._exit` or the like, which would have ended every rank at once."""

    def __init__(self, how: str, code: int) -> None:
        super().__init__(f"{how} with code {code}")
        self.code = code


def text_of(error: BaseException) -> str:
    """`str(error)`, also of an error whose `__str__` is broken, in Python's words for it."""
    try:
        return str(error)
    except Exception:
        return "<exception str() failed>"


for _public in (
    PhalanxError,
    UsageError,
    CollectiveMismatchError,
    DeadlockError,
    StallError,
    InvalidCallError,
    InFlightBufferError,
    UnwaitedWorkError,
    ThreadRaceError,
    BackendHazardError,
    InvariantError,
    DifferentResultsError,
    UncontrolledChanceError,
    HazardError,
    PhalanxWarning,
    RankFailedError,
):
    _public.__module__ = "phalanx"  # where users find them, hence what tracebacks show
