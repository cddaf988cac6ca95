"""The report of a test that failed on ranks: the cause first, equal failures of ranks once.

Built from pytest's own report objects, so that xdist, junit and `--tb` work with it. Must never
show a consequence as a cause. Used by `items.py`.
"""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from phalanx.callsite import shown_path
from phalanx.errors import RankFailedError
from phalanx.model import RankFailure, rank_list
from phalanx.report.failure import render_consequences, render_faults
from phalanx.report.layout import cut, labelled
from phalanx.testing.pytest.item_run import RanksRun
from phalanx.testing.pytest.rank_record import Failure
from phalanx.testing.pytest_compat import pytest_private as private
from phalanx.testing.pytest_compat.hypothesis_examples import without_own_lines

MOST_LINES = 8
"""Ranks that failed at the same place with other values get a line each, up to so many."""

LINE_WIDTH = 160

GROUP_TWICE = "initialize the default process group twice"
HAS_GROUP = (
    "ranks of a test have a default group already; leave init_process_group out, or write "
    "ranks(N, init=False)"
)

Group = list[Failure]


def show_failure(run: RanksRun, *, report: str, replay: str) -> Any:
    """The representation of the whole failure, in pytest's terms."""
    assert run.cause is not None
    groups = group_alike([run.cause, *run.others])
    whole = len(run.records)
    if report == "line":  # pytest itself shows the first
        body = [private.native_text(line) for line in _concise(groups)[1:]]
    elif report == "concise":
        body = [private.native_text("\n".join(_concise(groups)))]
    else:
        shown = groups[:1] if report == "first" else groups
        body = _show_groups(shown, whole)
        if len(shown) < len(groups):
            body.append(private.native_text(_rest(groups[len(shown) :])))
    parts = [(part, None, None) for part in body]
    last = (
        private.no_text()
        if report == "line"
        else private.native_text(_tail(run, groups, replay))
    )
    return private.ChainRepr([*parts, (last, crash_of_run(run), None)])


def show_in_order(run: RanksRun, order: Sequence[str], last: Sequence[str]) -> list[Any]:
    """The parts for a run of an exploration: its failures, the order in which they come, what
    they led to, and the `last` lines, which say how to repeat it."""
    assert run.cause is not None
    groups = group_alike([run.cause, *run.others])
    lines = ["", *order, "", *_after(run, groups), *last]
    return [*_show_groups(groups, len(run.records)), private.native_text("\n".join(lines))]


def lines_of(run: RanksRun) -> list[str]:
    """A line for each different failure of the run."""
    assert run.cause is not None
    return _concise(group_alike([run.cause, *run.others]))


def crash_of_run(run: RanksRun) -> Any:
    """Where and by what the test failed, in one line."""
    assert run.cause is not None
    groups = group_alike([run.cause, *run.others])
    crash = _crash(groups, len(run.records))
    if not (groups[0][0].verdict and run.skipped):
        return crash
    gone = rank_list([record.rank for record in run.skipped])
    return private.FileLocation(crash.path, crash.lineno, f"{crash.message} ({gone} skipped)")


def show_alike(failures: Sequence[Failure], ranks: int) -> Any:
    """Failures of one subtest."""
    groups = group_alike(failures)
    *parts, last = _show_groups(groups, ranks)
    first = [(part, None, None) for part in parts]
    return private.ChainRepr([*first, (last, _crash(groups, ranks), None)])


def group_alike(failures: Sequence[Failure]) -> list[Group]:
    """By place and kind of error; the first failure's group first, and in it itself first.
    Reports of our own are about all ranks: one is enough."""
    groups: dict[Any, Group] = {}
    for failure in failures:
        key: Any = "verdict" if failure.verdict else failure.place
        if failure.crash is None and not failure.verdict:
            key = (failure.kind, str(failure.shown))
        groups.setdefault(key, []).append(failure)
    return list(groups.values())


def _show_groups(groups: Sequence[Group], ranks: int) -> list[Any]:
    parts = _show_group(groups[0], ranks)
    for group in groups[1:]:
        parts += [private.native_text(""), *_show_group(group, ranks)]
    return parts


def _show_group(group: Group, ranks: int) -> list[Any]:
    first = group[0]
    if first.verdict:
        notes = _late_notes(first)
        text = f"{first.kind}: {first.message}"
        return [private.native_text(f"{text}\n{notes}" if notes else text)]
    alike = [each for each in group if each.whole == first.whole]
    others = [each for each in group if each not in alike]
    parts = [private.native_text(_heading(alike, ranks))]
    for part, _, link in private.parts_of(first.shown):
        parts += [part, private.native_text(f"\n{link}\n")] if link else [part]
    notes = _late_notes(first)
    if notes:
        parts.append(private.native_text(notes))
    if others:
        parts.append(private.native_text("\n" + _same_place(group, others)))
    return parts


def _heading(alike: Group, ranks: int) -> str:
    who = _who(alike, ranks)
    where = {"setup": ", making its fixtures", "teardown": ", in the teardown", "call": ""}
    first = alike[0]
    same = all(str(each.shown) == str(first.shown) for each in alike)
    values = "" if same else f" (with the values of rank {first.rank})"
    return f"{who}{where[first.phase]}{values}:"


def _who(group: Group, ranks: int) -> str:
    failed = sorted({each.rank for each in group})
    if len(failed) == ranks and ranks > 1:
        return f"all {ranks} ranks" if ranks > 2 else "both ranks"
    return rank_list(failed)


def _late_notes(failure: Failure) -> str:
    """What was added to the error after its rank had shown it, as Hypothesis does."""
    text = str(failure.shown)
    late = [note for note in getattr(failure.error, "__notes__", ()) if note not in text]
    return "\n".join(f"E   {line}" for line in without_own_lines(late))


def _same_place(group: Group, others: Group) -> str:
    lines = _by_line(group, others)
    told = [f"{rank_list(ranks)}, same line: {text}" for text, ranks in lines.items()]
    if len(told) > MOST_LINES:
        told = [*told[:MOST_LINES], f"... and {len(told) - MOST_LINES} more"]
    return "\n".join(told)


def _concise(groups: Sequence[Group]) -> list[str]:
    lines: dict[str, list[int]] = {}
    for group in groups:
        if group[0].verdict:
            lines[_headline(group[0])] = []
            continue
        place = group[0].crash
        where = f"{shown_path(place.path)}:{place.lineno}: " if place is not None else ""
        there = [each for other in groups for each in other if str(each.crash) == str(place)]
        for text, ranks in _by_line(there, group).items():
            lines.setdefault(f"{where}{text}", []).extend(ranks)
    return [
        f"{rank_list(sorted(ranks))}: {text}" if ranks else text
        for text, ranks in lines.items()
    ]


def _by_line(group: Group, shown: Group) -> dict[str, list[int]]:
    """One line for each of those to be shown: the first one of its error, and the first one
    that is not the same on all ranks of the group."""
    most = max(len(each.lines) for each in group)
    filled = [each.lines + [""] * (most - len(each.lines)) for each in group]
    odd = next((n for n, same in enumerate(zip(*filled, strict=True)) if len(set(same)) > 1), 0)
    lines: dict[str, list[int]] = {}
    for each in shown:
        text = each.line
        if 0 < odd < len(each.lines):
            text = f"{text}; {each.lines[odd].strip()}"
        lines.setdefault(cut(text, LINE_WIDTH), []).append(each.rank)
    return lines


def _rest(groups: Sequence[Group]) -> str:
    ranks = sorted({each.rank for group in groups for each in group})
    return f"\n{rank_list(ranks)} failed otherwise; --ranks-report all shows how"


def _tail(run: RanksRun, groups: Sequence[Group], replay: str) -> str:
    """What the failure led to, and how to run it again. Our own reports have said both."""
    lines = [*([] if groups[0][0].verdict else [""]), *_after(run, groups)]
    if not any(group[0].verdict for group in groups):
        lines += labelled("replay", replay, whole=True)
    return "\n".join([*lines, *timeline_lines(run)])


def timeline_lines(run: RanksRun) -> list[str]:
    if run.timeline is None:
        return []
    return labelled("timeline", f"phalanx report {shlex.quote(run.timeline)}", whole=True)


def _after(run: RanksRun, groups: Sequence[Group]) -> list[str]:
    lines: list[str] = []
    if isinstance(run.error, RankFailedError) and run.error.verdict is not None:
        lines += render_faults(run.error.verdict)
        lines += render_consequences(_without_skipped(run, run.error.verdict))
    if run.skipped:
        lines += labelled("skipped", run.skip_reason())
    if GROUP_TWICE in groups[0][0].message:
        lines += labelled("hint", HAS_GROUP)
    return lines


def _without_skipped(run: RanksRun, verdict: RankFailure) -> RankFailure:
    """The verdict without the ranks that skipped: to the engine they have returned, and they
    are listed apart."""
    skipped = {record.rank for record in run.skipped}
    kept = [
        replace(block, ranks=ranks)
        for block in verdict.stopped
        if (ranks := tuple(rank for rank in block.ranks if rank not in skipped))
    ]
    return replace(verdict, stopped=tuple(kept))


def _headline(failure: Failure) -> str:
    return f"{failure.kind}: {failure.message.partition(chr(10))[0]}"


def _crash(groups: Sequence[Group], ranks: int) -> Any:
    """The text for the short summary, which must be complete by itself."""
    first = groups[0][0]
    text = first.line
    if first.verdict:
        text = _headline(first)
    else:
        alike = [each for each in groups[0] if each.whole == first.whole]
        text = f"{_who(alike, ranks)}: {text}"
        failed = {each.rank for group in groups for each in group if not each.verdict}
        rest = len(failed - {each.rank for each in alike})
        if rest:
            text += f" ({rest} more {'ranks' if rest > 1 else 'rank'} failed)"
    place = first.crash
    if place is None:
        return private.FileLocation("", 0, text)
    return private.FileLocation(place.path, place.lineno, text)
