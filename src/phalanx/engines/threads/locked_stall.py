"""The stall of a run whose threads could not run, since code held Python's lock.

Made from the stacks that `lock_watcher.py` has read: in that process if it has to print the
report itself, else in the run. Must not import torch, which takes longer than the report may.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from phalanx.callsite import is_library, site_in
from phalanx.model import Group, Op, RankView, Site, Stall, ViewBlock, Wait
from phalanx.report.positions import render_positions
from phalanx.report.text import render

Frame = Sequence[Any]
"""File, line and function."""


def stall_of(seen: dict[str, Any], ranks: int) -> Stall:
    """What the stacks say alone."""
    holders = tuple(seen["ranks"])
    suspects = {each["rank"] for each in seen.get("suspects", ())}
    stacks, views = {}, {}
    for thread in _main_threads(seen):
        rank, frames = thread["rank"], thread["stack"]
        stack = _user_stack(frames)
        stacks[rank] = stack
        if rank in holders:
            views[rank] = _holding(rank, stack)
        elif rank in suspects:
            views[rank] = RankView(rank, "outside", site=stack[-1] if stack else None)
        elif frames:
            views[rank] = _waiting(rank, frames, stack)
    for rank in range(ranks):
        views.setdefault(rank, RankView(rank, "ready"))
    return Stall(
        kind="stall",
        severity="error",
        ranks=holders,
        seconds=seen["seconds"],
        blocks=_grouped(views, stacks),
        stacks=stacks,
        over_limit=seen.get("over_limit", False),
        locked=True,
    )


def render_end(seen: dict[str, Any], terms: dict[str, Any], *, interrupted: bool) -> str:
    """What the process beside prints in the place of a run that can say nothing."""
    stall = stall_of(seen, terms["ranks"])
    if interrupted:
        who = "a rank" if not stall.ranks else f"rank {stall.ranks[0]}"
        text = render_positions(
            f"interrupted, while {who} held Python's lock; each rank was at", stall.blocks
        )
        text = f"\n{text}"
    else:
        text = f"StallError: {render(stall, replay=terms['replay'])}"
    tests = _tests(seen, ended=not interrupted)
    end = "the process was ended from outside: while its lock is held, Python can end nothing"
    return "\n".join([text, *([""] if tests else []), *tests, f"phalanx: {end}"])


def _tests(seen: dict[str, Any], *, ended: bool) -> list[str]:
    """Which test it was, which did not run since, and of which pytest could not report."""
    test = seen.get("test")
    if not test:
        return []
    after, failed = ((seen.get(name) or ((), 0)) for name in ("after", "failed"))
    why = f"held Python's lock for {seen['seconds']:g} s" if ended else "was interrupted"
    line = f"phalanx: {test} {why}"
    if after[1]:
        several = f"{after[1]} tests after it did"
        line += f"; {'the test after it did' if after[1] == 1 else several} not run:"
    lines = [line, *_listed(*after)]
    if failed[1]:
        lines += ["phalanx: had failed before, without a report here:", *_listed(*failed)]
    return lines


def _listed(names: Sequence[str], count: int) -> list[str]:
    lines = [f"    {each}" for each in names]
    more = count - len(names)
    return [*lines, f"    and {more} more"] if more > 0 else lines


def _main_threads(seen: dict[str, Any]) -> list[dict[str, Any]]:
    return [each for each in seen.get("threads", ()) if each["thread"] is None]


def _holding(rank: int, stack: Sequence[Site]) -> RankView:
    return RankView(rank, "holding", site=stack[-1] if stack else None)


def _waiting(rank: int, frames: Sequence[Frame], stack: Sequence[Site]) -> RankView:
    """In a call of torch, or on its way there."""
    site = stack[-1] if stack else None
    name = _call_of(frames)
    if name is None:
        return RankView(rank, "ready", site=site)
    op = Op(rank, name, Group("world", ()), site=site)
    return RankView(rank, "waiting", wait=Wait(op, ()), traced=False)


def _call_of(frames: Sequence[Frame]) -> str | None:
    """The function that the program's line has called: its innermost line calls it, wrappers of
    torch between them left out."""
    inner: list[Frame] = []
    for frame in frames:
        if not is_library(frame[0]):
            names = [each[2] for each in reversed(inner) if each[2] not in _WRAPPERS]
            return names[0] if names else None
        inner.append(frame)
    return None  # it has not begun


_WRAPPERS = {"wrapper", "decorate_context", "inner", "_fn"}


def _user_stack(frames: Sequence[Frame]) -> tuple[Site, ...]:
    own = [frame for frame in reversed(frames) if not is_library(frame[0])]
    return tuple(site_in(file, line, function) for file, line, function in own)


def _grouped(
    views: dict[int, RankView], stacks: dict[int, tuple[Site, ...]]
) -> tuple[ViewBlock, ...]:
    alike: dict[object, list[int]] = {}
    for rank, view in sorted(views.items()):
        call = view.wait.op.name if view.wait is not None else None
        alike.setdefault((view.status, call, stacks.get(rank)), []).append(rank)
    return tuple(ViewBlock(tuple(ranks), views[ranks[0]]) for ranks in alike.values())
