"""A plan of faults as sentences of a story. Pure."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from phalanx.explore.failures.story import Sentence
from phalanx.faults.fault_points import CallPoint
from phalanx.faults.fault_words import say_what_happens
from phalanx.model import Site


def sentences_of_plan(plan: Iterable[Any], journal: Any = None) -> list[Sentence]:
    """One for each fault, in the order of the plan. Where a call is counted, the journal of the
    run says at which line it was."""
    return [_sentence(fault, journal) for fault in plan]


def _sentence(fault: Any, journal: Any) -> Sentence:
    site = _site_of(fault, journal)
    return Sentence(say_what_happens(fault, str(site or "")), (site,) if site else ())


def _site_of(fault: Any, journal: Any) -> Site | None:
    """The line of the call that the fault counts."""
    point: Any = fault.point
    rank = getattr(fault, "rank", None)
    if journal is None or rank is None or not isinstance(point, CallPoint):
        return None
    calls = list(journal.filter(kind="posted", rank=rank))
    if len(calls) < point.n:
        return None
    site = getattr(calls[point.n - 1], "site", None)
    return site if isinstance(site, Site) else None
