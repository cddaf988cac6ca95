"""What a recorded run came to, in numbers: ranks, groups, operations, messages, findings.

`summarize` makes it from the table of calls. `summary_screen.py` shows it on one screen,
`as_data` gives it to programs. A recording is not trusted: texts in here are texts, of any
length. Needs no torch.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import asdict, dataclass, field
from typing import Any

from phalanx.report.timeline.behaviour import fold_ranks
from phalanx.report.timeline.calls_table import NONE, CallsTable, size_of
from phalanx.report.timeline.message_counts import MessageCount, count_messages
from phalanx.report.timeline.operation_counts import (
    SECOND,
    GroupUse,
    OperationUse,
    UseCounter,
    is_open,
    line_of,
    waits_of,
)
from phalanx.report.timeline.page_verdicts import page_verdicts, text
from phalanx.report.timeline.rank_times import RankTime, has_costs, rank_times
from phalanx.report.timeline.screen_layout import many

MOST_FINDINGS = 1000
FACTS = ("program", "command", "engine", "backend", "seed", "profile", "python", "torch")
"""What is told of a recording's header."""


@dataclass
class RankFold:
    """Ranks that made the same calls. `calls` and `bytes` are those of one of them, as far as
    they are kept; `forgotten` counts its calls that are not. `waited` is the least and the
    most. `last` is the newest call, which may be still `open`."""

    ranks: list[int]
    calls: int
    forgotten: int
    bytes: int
    waited: tuple[float, float]
    ended: str
    last: str
    open: bool


@dataclass
class FindingLine:
    """What a check found, in one line."""

    severity: str
    kind: str
    ranks: list[int]
    headline: str


@dataclass
class RunSummary:
    """The whole of it. Of the `seconds` that the run took, the last `kept` ones are recorded.
    `status` is "finished", "failed" or "unknown", `text` the report. `runs`
    says how many runs of a `World` this was, `failed_run` which of them failed last; 0 if
    none did."""

    facts: dict[str, str]
    ranks: int
    started: float | None
    seconds: float
    kept: float
    status: str
    error: str
    text: str
    folds: list[RankFold]
    groups: list[GroupUse]
    operations: list[OperationUse]
    messages: list[MessageCount]
    findings: list[FindingLine]
    faults: list[str]
    """Those of the plan that happened, in order of time."""
    missing: list[str]
    runs: int = 1
    failed_run: int = 0
    times: list[RankTime] = field(default_factory=list)
    """Of each rank, if operations had a cost."""


def summarize(table: CallsTable) -> RunSummary:
    """The summary of a run. Takes some seconds for a million calls."""
    recording = table.recording
    header, end = recording.header, recording.end
    started = header.get("started")
    operations, groups = UseCounter(table).counted()
    verdicts = page_verdicts(table)
    blamed = [rank for v in verdicts if v["severity"] == "error" for rank in v["ranks"]]
    return RunSummary(
        facts={name: text(header[name]) for name in FACTS if header.get(name)},
        ranks=recording.ranks,
        started=float(started) if isinstance(started, (int, float)) else None,
        seconds=table.duration / SECOND,
        kept=(table.duration - table.since) / SECOND,
        status=text(end.get("status")) if end is not None else "unknown",
        error=text((end or {}).get("error")),
        text=str((end or {}).get("text") or ""),
        folds=_folds(table, blamed),
        groups=groups,
        operations=operations,
        messages=count_messages(table),
        findings=_findings(table, verdicts),
        faults=_faults(table),
        missing=missing(table),
        runs=_count(end, "runs") or 1,
        failed_run=_count(end, "run"),
        times=rank_times(table) if has_costs(table) else [],
    )


def _count(end: dict[str, Any] | None, name: str) -> int:
    found = (end or {}).get(name)
    return found if isinstance(found, int) else 0


def as_data(summary: RunSummary) -> dict[str, Any]:
    """As JSON has it; `docs/timeline.md` lists the fields."""
    return asdict(summary)


def missing(table: CallsTable) -> list[str]:
    """What a recording does not hold, a sentence for each reason."""
    recording = table.recording
    found = []
    if recording.end is None:
        found.append("the recording has no end: the run was killed, or still goes on")
    if recording.dropped and not recording.from_rings:
        found.append(f"{recording.dropped:,} events: ranks outran the recorder")
    if earlier := sum(calls.forgotten for calls in table.ranks):
        found.append(f"the {many(earlier, 'oldest call')}: only the newest were kept")
    elif recording.dropped and recording.from_rings:
        forgotten = many(recording.dropped, "oldest event")
        found.append(f"the {forgotten}: only the newest were kept")
    return found


# -- ranks, messages, findings --------------------------------------------------------------


def _folds(table: CallsTable, blamed: list[int]) -> list[RankFold]:
    ends = _ends(table)
    waited = [sum(waits_of(calls, table.duration)) / SECOND for calls in table.ranks]
    return [_fold(table, ranks, waited, ends) for ranks in fold_ranks(table, blamed)]


def _fold(
    table: CallsTable, ranks: list[int], waited: list[float], ends: dict[int, str]
) -> RankFold:
    calls = table.ranks[ranks[0]]
    last, still = "", False
    if len(calls):
        newest = len(calls) - 1
        line = line_of(table, calls.site[newest])
        last = f"{table.ops[calls.op[newest]]} {line}".rstrip()
        still = is_open(calls, newest)
    waits = [waited[rank] for rank in ranks]
    return RankFold(
        ranks=ranks,
        calls=len(calls),
        forgotten=calls.forgotten,
        bytes=sum(
            number * sum(map(size_of, table.recording.tensors[tensors]))
            for tensors, number in Counter(calls.tensors).items()
            if tensors != NONE
        ),
        waited=(min(waits), max(waits)),
        ended=", ".join(sorted({ends.get(rank, "unknown") for rank in ranks})),
        last=last,
        open=still,
    )


def _ends(table: CallsTable) -> dict[int, str]:
    found = {}
    for block in table.recording.of_kind("rank-ended"):
        how, error = text(block["how"][-1]), text(block["error"][-1])
        found[block.rank] = f"{how}: {error}" if error else how
    return found


def _findings(table: CallsTable, verdicts: list[dict[str, Any]]) -> list[FindingLine]:
    """Those of the end of the run, and those of its course that no verdict repeats."""
    found = [FindingLine(v["severity"], v["kind"], v["ranks"], v["headline"]) for v in verdicts]
    told = Counter(line.kind for line in found)
    for block in table.recording.of_kind("finding-made"):
        for place in range(min(block.count, MOST_FINDINGS)):
            kind, severity = text(block["about"][place]), text(block["severity"][place])
            if told[kind]:
                told[kind] -= 1
                continue
            ranks = [r for r in block["ranks"][place] or () if isinstance(r, int)]
            found.append(FindingLine(severity, kind, ranks, ""))
    return found


def _faults(table: CallsTable) -> list[str]:
    found = [
        (block["time"][place], text(block["shown"][place]))
        for block in table.recording.of_kind("fault-struck")
        for place in range(min(block.count, MOST_FINDINGS))
        if block["how"][place] == "struck"
    ]
    return [shown for _, shown in sorted(found)]
