"""What a test says about findings of the checks: that one is expected, or not to be told.

    @pytest.mark.ranks_expect("deadlock", reason="the ring is what this test is about")
    @pytest.mark.ranks_silence("leak", reason="groups live as long as the process")

Used at collection (`reasons_in`) and by `items.py` after the run. Knows neither torch nor
pytest.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from phalanx.errors import HazardError, UsageError
from phalanx.kinds import ALWAYS, EXPLORE_KINDS, KINDS
from phalanx.model import Verdict
from phalanx.report.text import headline

EXPECT, SILENCE = "ranks_expect", "ranks_silence"

Reasons = tuple[tuple[str, str], ...]
"""Kinds, each with its reason; the closest mark's where several name one."""


def reasons_in(markers: Iterable[Any], name: str) -> Reasons:
    """From marks, closest first."""
    found: dict[str, str] = {}
    for mark in markers:
        if mark.name == name:
            _check(mark)
            for kind in mark.args:
                found.setdefault(kind, mark.kwargs["reason"])
    return tuple(found.items())


def _check(mark: Any) -> None:
    given = ", ".join(
        [*map(repr, mark.args), *(f"{key}={value!r}" for key, value in mark.kwargs.items())]
    )
    where = f"{mark.name}({given})"
    example = f"@pytest.mark.{mark.name}('leak', reason='...')"
    if not mark.args:
        raise UsageError(f"{where}: says no kind; write {example}")
    for kind in mark.args:
        kinds = (*KINDS, *EXPLORE_KINDS) if mark.name == EXPECT else tuple(KINDS)
        if kind not in kinds:
            raise UsageError(
                f"{where}: there is no kind {kind!r}; kinds are {', '.join(kinds)}"
            )
        if mark.name == SILENCE and kind in ALWAYS:
            raise UsageError(
                f"{where}: {kind} ends the run, so it cannot be silenced; write "
                f"@pytest.mark.{EXPECT}({kind!r}, reason='...') if it is meant to happen"
            )
    unknown = set(mark.kwargs) - {"reason"}
    if unknown:
        raise UsageError(f"{where}: unknown keyword {min(unknown)!r}; allowed: reason")
    reason = mark.kwargs.get("reason")
    if not isinstance(reason, str) or not reason.strip():
        raise UsageError(f"{where}: a reason is needed, for those who read it; {example}")


def verdicts_of(error: BaseException | None) -> Sequence[Verdict]:
    """What an error tells of, if it is of our checks."""
    if isinstance(error, HazardError):
        return error.findings
    verdict = getattr(error, "verdict", None)
    if isinstance(verdict, Verdict) and verdict.kind in {*KINDS, *EXPLORE_KINDS}:
        return (verdict,)
    return ()


def told_of(expected: Reasons, verdicts: Sequence[Verdict]) -> str:
    """For the report of a test that found what it expected."""
    reasons = dict(expected)
    lines = [
        f"[{each.kind}] {headline(each)}\n  expected: {reasons[each.kind]}"
        for each in verdicts
        if each.kind in reasons
    ]
    return "\n".join(dict.fromkeys(lines))


def missing_text(expected: Reasons, found: Sequence[Verdict]) -> str:
    """Why a test fails that did not find what it expected."""
    kinds = {each.kind for each in found}
    missing = [(kind, reason) for kind, reason in expected if kind not in kinds]
    listed = "; ".join(f"{EXPECT}({kind!r}, reason={reason!r})" for kind, reason in missing)
    instead = f"only {', '.join(sorted(kinds))}" if kinds else "nothing"
    return f"{listed}: the checks found {instead}"
