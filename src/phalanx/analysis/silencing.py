"""Which findings the program itself has silenced, by a comment with a reason on its line.

    work = dist.all_reduce(t, async_op=True)  # phalanx: ignore[unwaited-work] never read

Used by the engines at the end of a run, for all that is told then; what ranks raise on the way
cannot be silenced. Pure: looks at the source lines that findings carry.

| the comment on a line of the finding | what happens |
|---|---|
| names the finding's kind, and gives a reason | it is left out, and counted as silenced |
| names the kind, without a reason | it stays, and says that a reason is needed |
| names other kinds, or none | it stays |
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import replace

from phalanx.model import Finding, Silenced, Site, Unmet, Verdict

_COMMENT = re.compile(r"#\s*phalanx:\s*ignore\[([\w\s,-]*)\]\s*(.*)$")


def split_silenced(findings: Iterable[Verdict]) -> tuple[list[Verdict], list[Silenced]]:
    """What is to be told, and what is silenced with the reason for it."""
    told: list[Verdict] = []
    silenced: list[Silenced] = []
    for finding in findings:
        comments = [comment for site in _sites(finding) for comment in _comments(finding, site)]
        reasons = [(site, reason) for site, reason in comments if reason]
        if reasons:
            site, reason = reasons[0]
            silenced.append(Silenced(finding.kind, reason, site))
        else:
            told.append(_without_reason(finding) if comments and not reasons else finding)
    return told, silenced


def _sites(finding: Verdict) -> list[Site]:
    if not isinstance(finding, (Finding, Unmet)):
        return []
    return [block.op.site for block in finding.blocks if block.op.site is not None]


def _comments(finding: Verdict, site: Site) -> Sequence[tuple[Site, str]]:
    """The reason, perhaps empty, if the line has a comment for this kind."""
    found = _COMMENT.search(site.source)
    if found is None or finding.kind not in map(str.strip, found[1].split(",")):
        return ()
    return ((site, found[2].strip()),)


def _without_reason(finding: Verdict) -> Verdict:
    text = f"give a reason: # phalanx: ignore[{finding.kind}] why it is right here"
    if isinstance(finding, Finding):
        return replace(finding, facts=(*finding.facts, ("ignored?", text)))
    if isinstance(finding, Unmet):
        return replace(finding, near=(*finding.near, text))
    return finding
