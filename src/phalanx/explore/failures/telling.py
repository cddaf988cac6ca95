"""From what was found to what is told: the failures of an exploration, with story and token."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

from phalanx.backend.rank_errors import error_of
from phalanx.errors import HazardError
from phalanx.explore.exploration import ExplorationFailure
from phalanx.explore.failures.fault_sentences import sentences_of_plan
from phalanx.explore.failures.investigation import Suspect
from phalanx.explore.failures.order_results import DifferentResults
from phalanx.explore.failures.partings import chance_found
from phalanx.explore.failures.story import sentences_of, story_lines
from phalanx.explore.one_run import Execution, Subject
from phalanx.explore.tokens import Token, token_of
from phalanx.explore.trace import Trace
from phalanx.model import Verdict
from phalanx.report.layout import compose, labelled
from phalanx.report.text import headline, render

ReplayLine = Callable[[Token], str]


def tell_suspect(suspect: Suspect, replay_line: ReplayLine) -> ExplorationFailure:
    """A failure that was found."""
    if suspect.parting is not None:
        return _tell_chance(suspect, replay_line)
    verdict = _verdict_of(suspect.cause)
    report = _report_of(suspect.cause)
    order = _order_of(suspect.execution, suspect.subject, suspect.without)
    text = _with_story(report, order)
    error = suspect.cause
    if isinstance(error, Verdict):
        error = HazardError(text, [error])
    return _failure(
        kind=verdict.kind if verdict is not None else type(error).__name__,
        title=headline(verdict) if verdict is not None else report.partition("\n")[0],
        story=text,
        order=order,
        error=error,
        execution=suspect.execution,
        subject=suspect.subject,
        times=suspect.times,
        first=suspect.first,
        behaviours=len(suspect.behaviours),
        replay_line=replay_line,
    )


def tell_results(found: DifferentResults, replay_line: ReplayLine) -> ExplorationFailure:
    """Different results in different orders, the two orders side by side."""
    report = render(found.finding)
    order = _order_of(found.other, found.subject, found.without)
    text = _with_story(report, order, found.rows())
    return _failure(
        kind=found.finding.kind,
        title=headline(found.finding),
        story=text,
        order=order,
        error=error_of(found.finding, text),
        execution=found.other,
        subject=found.subject,
        times=max(1, found.times),
        first=found.first,
        behaviours=max(1, found.behaviours),
        replay_line=replay_line,
    )


def _tell_chance(suspect: Suspect, replay_line: ReplayLine) -> ExplorationFailure:
    """A failure that did not come again: what parted, and then the failure itself."""
    assert suspect.parting is not None
    verdict = _verdict_of(suspect.cause)
    lost = headline(verdict) if verdict is not None else str(suspect.cause)
    finding = chance_found(suspect.parting, suspect.hint, lost)
    whole = _without_replay(_report_of(suspect.cause))
    text = compose(render(finding), ["the failure that came once:", "", *whole.split("\n")])
    return _failure(
        kind=finding.kind,
        title=headline(finding),
        story=text,
        error=error_of(finding, text),
        execution=suspect.execution,
        subject=suspect.subject,
        times=suspect.times,
        first=suspect.first,
        behaviours=len(suspect.behaviours),
        replay_line=replay_line,
    )


def _order_of(
    execution: Execution, subject: Subject, without: Sequence[Trace]
) -> tuple[str, ...]:
    """The faults and the choices of the run, in order, as lines."""
    sentences = [
        *sentences_of_plan(subject.faults, execution.outcome.journal),
        *sentences_of(execution.trace, without),
    ]
    return tuple(story_lines(sentences))


def _with_story(report: str, order: Sequence[str], rows: Sequence[str] = ()) -> str:
    """The report, with the story below its headline. The line that would repeat it by
    `phalanx.run` is left out: that makes the default order."""
    headline_text, _, rest = _without_replay(report).partition("\n\n")
    body = rest.split("\n") if rest else []
    return compose(headline_text, order, rows, body)


def _without_replay(report: str) -> str:
    lines = [
        line for line in report.split("\n") if not line.startswith(("  replay ", "  timeline "))
    ]
    return "\n".join(lines).rstrip()


def _failure(
    *,
    kind: str,
    title: str,
    story: str,
    order: tuple[str, ...] = (),
    error: BaseException,
    execution: Execution,
    subject: Subject,
    times: int,
    first: int,
    behaviours: int,
    replay_line: ReplayLine,
) -> ExplorationFailure:
    token = replace(
        token_of(subject.ranks, execution.trace), faults=", ".join(map(str, subject.faults))
    )
    replay = replay_line(token)
    last = labelled("replay", replay, whole=True)
    error.args = ("\n".join([story, "", *last]), *error.args[1:])
    return ExplorationFailure(
        kind=kind,
        title=title,
        token=str(token),
        story=story,
        error=error,
        trace=execution.trace,
        schedules=times,
        first=first,
        behaviours=behaviours,
        ranks=subject.ranks,
        replay=replay,
        fingerprint=execution.fingerprint,
        order=order,
        kept=execution.outcome.kept,
    )


def _verdict_of(cause: Any) -> Verdict | None:
    verdict = cause if isinstance(cause, Verdict) else getattr(cause, "verdict", None)
    return verdict if isinstance(verdict, Verdict) else None


def _report_of(cause: Any) -> str:
    return render(cause) if isinstance(cause, Verdict) else str(cause)
