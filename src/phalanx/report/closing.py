"""The last line of a run with checks: how much was checked, and what was found.

Used by the command line. Must never repeat a report: it counts.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from phalanx.model import Tally, Verdict
from phalanx.report.layout import ascii_text, count


def render_closing(
    tally: Tally, findings: Sequence[Verdict], error: Verdict | None = None
) -> str:
    """One line, and one for each finding that the program has silenced.

    >>> render_closing(Tally(4, collectives=128, messages=12, groups=3), ())
    'phalanx: 4 ranks, 128 collectives and 12 messages on 3 groups checked: nothing found'
    """
    lines = [
        f"phalanx: silenced {each.kind} at {each.site}: {each.reason}"
        for each in tally.silenced
    ]
    found = _found(findings, error)
    if tally.silenced:
        found += f"; {len(tally.silenced)} silenced"
    lines.append(f"phalanx: {_checked(tally)} checked: {found}")
    return ascii_text("\n".join(lines))


def _checked(tally: Tally) -> str:
    parts = []
    if tally.collectives is not None and (tally.collectives or not tally.messages):
        parts.append(count(tally.collectives, "collective"))
    if tally.messages:
        parts.append(count(tally.messages, "message"))
    what = " and ".join(parts)
    if tally.groups:
        what += f" on {count(tally.groups, 'group')}"
    ranks = count(tally.ranks, "rank")
    return f"{ranks}, {what}" if what else ranks


def _found(findings: Sequence[Verdict], error: Verdict | None) -> str:
    found = [*findings, *([error] if error is not None else [])]
    parts = [_counted(each, found) for each in ("error", "warning")]
    return ", ".join(filter(None, parts)) or "nothing found"


def _counted(severity: str, found: Sequence[Verdict]) -> str:
    kinds = Counter(each.kind for each in found if each.severity == severity)
    told = ", ".join(
        kind if severity == "error" and len(found) == 1 else f"{number} {kind}"
        for kind, number in sorted(kinds.items())
    )
    return f"{count(sum(kinds.values()), severity)} ({told})" if kinds else ""
