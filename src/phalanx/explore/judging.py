"""What came of a run, so that it can be compared with what came of another.

A failure is known again by its symptom: its kind and the lines where it shows. A result is
known again by a digest of what ranks returned, printed and trained.
"""

from __future__ import annotations

from collections.abc import Collection, Hashable, Iterable, Iterator
from typing import NamedTuple

from phalanx.callsite import raised_at
from phalanx.explore.digests import digest_of
from phalanx.explore.explore_options import COMPARED
from phalanx.explore.one_run import Execution, RunOutcome
from phalanx.explore.trace import Choice, Trace
from phalanx.model import (
    Deadlock,
    Finding,
    Mismatch,
    RankFailure,
    Site,
    Stall,
    Unmet,
    Verdict,
)

LEFT_TO_EXPLORING = frozenset({"message-race"})
"""Kinds of findings that say that another order may end otherwise: other orders are tried, and
what differs is seen."""


class Symptom(NamedTuple):
    """What a failure is known by, in whatever order and on however many ranks."""

    kind: str
    places: tuple[tuple[str, int], ...]
    """File and line of where it shows."""
    detail: str = ""


def symptom_of(error: BaseException) -> Symptom:
    """Of the error of a run."""
    verdict = getattr(error, "verdict", None)
    if isinstance(verdict, Verdict):
        return symptom_of_verdict(verdict)
    return Symptom(type(error).__name__, _places([raised_at(error.__traceback__)]))


def symptom_of_verdict(verdict: Verdict) -> Symptom:
    detail = ""
    if isinstance(verdict, RankFailure):
        detail = _class_of(verdict.raised[0][1]) if verdict.raised else ""
    elif isinstance(verdict, Deadlock):
        detail = verdict.cause
    return Symptom(verdict.kind, _places(_sites(verdict)), detail)


def _sites(verdict: Verdict) -> Iterator[Site | None]:
    """Where it shows, whichever ranks it is about: bystanders are left out, since they may be
    elsewhere in another order."""
    if isinstance(verdict, RankFailure):
        first = verdict.raised[0][0][0] if verdict.raised else -1
        yield verdict.sites.get(first)
    elif isinstance(verdict, Deadlock):
        for block in verdict.blocks:
            if set(block.ranks) & set(verdict.cycle) or not verdict.cycle:
                yield block.view.wait.op.site if block.view.wait else block.view.site
                if not verdict.cycle:
                    return
    elif isinstance(verdict, (Mismatch, Unmet)):
        yield from (block.op.site for block in verdict.blocks)
    elif isinstance(verdict, Finding):
        yield from (block.op.site for block in verdict.blocks[:1])
    elif isinstance(verdict, Stall):
        yield from (block.view.site for block in verdict.blocks[:1])


def _places(
    sites: Iterable[Site | None],
) -> tuple[tuple[str, int], ...]:
    return tuple(sorted({(site.file, site.line) for site in sites if site is not None}))


def _class_of(text: str) -> str:
    return text.partition(":")[0]


def result_of(
    outcome: RunOutcome, compare: Collection[str], without: Collection[int] = ()
) -> bytes:
    """A digest of what came of a run that succeeded: equal for equal results. Ranks `without`
    are left out."""
    parts = {name: getattr(outcome, name) for name in COMPARED if name in compare}
    if without:
        parts = {
            name: [each for rank, each in enumerate(part) if rank not in without]
            for name, part in parts.items()
        }
    return digest_of(parts)


def behaviour_of(trace: Trace) -> Hashable:
    """Equal for runs that no rank can tell apart: they have the same partial order of choices,
    and the same values."""
    events = frozenset(
        (choice.thread, choice.kind, frozenset(choice.known.items()), _value(choice))
        for choice in trace.choices
    )
    return hash(events)


def _value(choice: Choice) -> str:
    return choice.value if choice.values else ""


def failures_of(execution: Execution) -> Iterator[tuple[Symptom, BaseException | Verdict]]:
    """The error of the run, or what checks found in one that succeeded."""
    outcome = execution.outcome
    if outcome.error is not None:
        yield symptom_of(outcome.error), outcome.error
    for verdict in outcome.findings:
        if verdict.kind in LEFT_TO_EXPLORING:
            continue
        if getattr(outcome.error, "verdict", None) is not verdict:
            yield symptom_of_verdict(verdict), verdict
