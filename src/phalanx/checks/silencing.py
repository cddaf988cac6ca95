"""Which findings the program itself has silenced, by a comment with a reason on its line.

    work = dist.all_reduce(t, async_op=True)  # phalanx: ignore[unwaited-work] never read

Used by the engines at the end of a run, for all that is told then; what ranks raise on the way
cannot be silenced, but for the use of a result whose `Work` was dropped. Pure: looks at the
source lines that findings carry.

| the comment on a line of the finding | what happens |
|---|---|
| names the finding's kind, and gives a reason | it is left out, and counted as silenced |
| names the kind, without a reason | it stays, and says that a reason is needed |
| names other kinds, wrong ones or none | it stays, and says so |
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import replace
from difflib import get_close_matches

from phalanx.kinds import KINDS
from phalanx.model import Finding, Silenced, Site, Unmet, Verdict

_COMMENT = re.compile(r"#\s*phalanx:\s*ignore\[([\w\s,-]*)\]\s*(.*)$")


def split_silenced(findings: Iterable[Verdict]) -> tuple[list[Verdict], list[Silenced]]:
    """What is to be told, and what is silenced with the reason for it."""
    told: list[Verdict] = []
    silenced: list[Silenced] = []
    for finding in findings:
        comments = [
            (site, found)
            for site in _sites(finding)
            if (found := _COMMENT.search(site.source)) is not None
        ]
        reasons = [
            (site, found[2].strip())
            for site, found in comments
            if finding.kind in _kinds(found) and found[2].strip()
        ]
        if reasons:
            site, reason = reasons[0]
            silenced.append(Silenced(finding.kind, reason, site))
        else:
            notes = [_note(finding.kind, _kinds(found)) for _, found in comments]
            told.append(_noted(finding, tuple(dict.fromkeys(notes))))
    return told, silenced


def _sites(finding: Verdict) -> list[Site]:
    if not isinstance(finding, (Finding, Unmet)):
        return []
    return [block.op.site for block in finding.blocks if block.op.site is not None]


def _kinds(comment: re.Match[str]) -> list[str]:
    return [word for part in comment[1].split(",") if (word := part.strip())]


def _note(kind: str, named: Sequence[str]) -> str:
    """Why the comment does not silence this finding."""
    if kind in named:
        return f"give a reason: # phalanx: ignore[{kind}] why it is right here"
    for word in named:
        if word not in KINDS:
            near = get_close_matches(word, KINDS, n=1)
            meant = f"; did you mean {near[0]!r}?" if near else ""
            return f"# phalanx: ignore[{word}]: there is no kind {word!r}{meant}"
    return f"the comment on this line is for {', '.join(named) or 'no kind'}, this is {kind}"


def _noted(finding: Verdict, notes: tuple[str, ...]) -> Verdict:
    if isinstance(finding, Finding):
        facts = (*finding.facts, *(("note", text) for text in notes))
        return replace(finding, facts=facts) if notes else finding
    if isinstance(finding, Unmet):
        return replace(finding, notes=notes) if notes else finding
    return finding
