"""Results that say the same, folded into one line. Pure functions.

Used by the command, below its tables. Two results are alike if their outcomes and reasons are,
apart from numbers and ranks: a defect of a backend shows in many cases at once.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Hashable, Iterable, Sequence
from typing import TypeVar

from phalanx.conformance.case_model import Result, Table
from phalanx.conformance.known_differences import CaseDifference

SHOWN = 3
"""How many ids stand for all that are alike."""

_WHO = re.compile(r"^ranks? [\d,]+: ")
_NUMBER = re.compile(r"-?\d+(\.\d+)?(e[-+]?\d+)?")

T = TypeVar("T", Result, CaseDifference)


def render_findings(table: Table) -> str:
    """What is WRONG or fails, the most frequent first; empty if nothing is."""
    found = [result for result in table.results if result.outcome in ("WRONG", "fail")]
    groups = _alike(found, lambda result: (result.outcome, _shape(result.reason)))
    return "\n".join(_line(f"{each[0].outcome:5}", each, each[0].reason) for each in groups)


def render_refusals(table: Table) -> str:
    """Refusals that no rule of a profile explains, with their reasons; empty without any."""
    found = [r for r in table.results if r.outcome == "refuse" and not r.rule]
    if not found:
        return ""
    groups = _alike(found, lambda result: _shape(result.reason))
    lines = [f"{len(found):,} refused without a known rule:"]
    for each in groups:
        reason = _WHO.sub("", each[0].reason)
        lines.append(f"  {len(each):,} x {reason} (e.g. {each[0].id})")
    return "\n".join(lines)


def render_differences(found: Sequence[CaseDifference], path: str) -> str:
    """Differences without an explanation."""
    groups = _alike(found, lambda each: (each.one, each.other))
    return "\n".join(
        _line("DIFFERS", each, f"{each[0].one} here, {each[0].other} in {path}")
        for each in groups
    )


def _alike(found: Iterable[T], key: Callable[[T], Hashable]) -> list[list[T]]:
    groups: dict[Hashable, list[T]] = {}
    for each in found:
        groups.setdefault(key(each), []).append(each)
    return sorted(groups.values(), key=len, reverse=True)


def _shape(reason: str) -> str:
    """A reason without what differs from case to case."""
    return _NUMBER.sub("#", _WHO.sub("", reason))


def _line(word: str, alike: Sequence[Result] | Sequence[CaseDifference], reason: str) -> str:
    """`WRONG id: reason`, or with a count and the first ids of many."""
    ids = [each.id for each in alike]
    if len(ids) == 1:
        return f"{word} {ids[0]}: {reason}"
    more = ", ..." if len(ids) > SHOWN else ""
    return f"{word} {len(ids):,} x {reason} ({', '.join(ids[:SHOWN])}{more})"
