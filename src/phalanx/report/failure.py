"""Render a failure of ranks: the error that came first, then in one line what it stopped.

Used by `text`. Must never show a consequence (a stopped rank, a late error) as a cause.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from phalanx.model import Finding, RankFailure, Site, ViewBlock, rank_list
from phalanx.report.calls import call_pieces, call_text
from phalanx.report.layout import (
    WIDTH,
    Block,
    compose,
    cut,
    labelled,
    lay_blocks,
    shorten,
    verb,
)
from phalanx.report.situations import has_left, site_of

FAULT = "fault"
"""The label of what a plan of faults has done."""

_HEADLINE_RANKS = 32
_SHOWN_ERROR_LINES = 12
_LEAST_TEXT = 72
"""Columns of an error's own text in the headline, which may be all that is shown of it."""


def render_failure(verdict: RankFailure, *, replay: str | None = None) -> str:
    wrong = _wrong_calls(verdict)
    blocks = [_call_block(ranks, finding) for ranks, finding in wrong]
    blocks += [
        _block(ranks, text, verdict.sites.get(ranks[0]))
        for raisers, text in verdict.raised
        for ranks in _split_by_site(raisers, verdict)
    ]
    return compose(
        headline_failure(verdict),
        render_faults(verdict),
        lay_blocks(shorten(blocks)),
        _facts([finding for _, finding in wrong]),
        _consequences(verdict, _names(verdict, faults=False)),
        labelled("replay", replay, whole=True) if replay else (),
    )


def headline_failure(verdict: RankFailure) -> str:
    if verdict.kind == "invalid-call":
        return _headline_call(verdict)
    if not verdict.raised:
        stuck = tuple(rank for rank, _ in verdict.stuck) or verdict.ranks
        return f"{rank_list(stuck, width=_HEADLINE_RANKS)} could not be stopped"
    ranks, text = verdict.raised[0]
    others = tuple(rank for more, _ in verdict.raised[1:] for rank in more)
    tail = ""
    if others:
        what = verb(others, "raised another error", "raised other errors")
        tail = f"; {rank_list(others, width=_HEADLINE_RANKS)} {what}"
    # What ended a rank without raising, such as os._exit, comes with its own verb.
    did = "" if text.startswith(("called ", "died ")) else "raised "
    if text.startswith("died "):  # followed by what it wrote, which belongs below
        text = text.partition("\n")[0]
    start = f"{rank_list(ranks, width=_HEADLINE_RANKS)} {did}"
    return start + cut(text, max(_LEAST_TEXT, WIDTH - len(start) - len(tail))) + tail


def _headline_call(verdict: RankFailure) -> str:
    (ranks, finding), *others = _wrong_calls(verdict)
    block = finding.blocks[0]
    start = f"{rank_list(ranks, width=_HEADLINE_RANKS)} called {block.op.name} wrongly: "
    tail = f"; {rank_list([r for more, _ in others for r in more], width=24)}, too" * bool(
        others
    )
    return (
        start
        + cut(" ".join(block.notes), max(_LEAST_TEXT, WIDTH - len(start) - len(tail)))
        + tail
    )


def _wrong_calls(verdict: RankFailure) -> list[tuple[tuple[int, ...], Finding]]:
    """One block for ranks that made the same wrong call; the first failure comes first."""
    alike: dict[object, list[int]] = {}
    for rank, finding in sorted(verdict.calls.items()):
        block = finding.blocks[0]
        alike.setdefault((block.notes, replace(block.op, rank=0)), []).append(rank)
    first = verdict.raised[0][0] if verdict.raised else ()
    ordered = sorted(alike.values(), key=lambda ranks: (not set(first) & set(ranks), ranks))
    return [(tuple(ranks), verdict.calls[ranks[0]]) for ranks in ordered]


def _call_block(ranks: tuple[int, ...], finding: Finding) -> Block:
    block = finding.blocks[0]
    pieces = call_pieces(block.op, where=True)
    return Block(ranks, pieces, block.op.site, block.notes, "<- wrong")


def _facts(findings: Sequence[Finding]) -> list[str]:
    """Further labelled lines, each once."""
    lines: dict[tuple[str, str], None] = {}
    for finding in findings:
        lines.update(dict.fromkeys(finding.facts))
        lines.update({("hint", finding.hint): None} if finding.hint else {})
    return [line for label, text in lines for line in labelled(label, text)]


def _split_by_site(ranks: Sequence[int], verdict: RankFailure) -> list[tuple[int, ...]]:
    parts: dict[Site | None, list[int]] = {}
    for rank in ranks:
        if rank in verdict.calls:
            continue
        parts.setdefault(verdict.sites.get(rank), []).append(rank)
    return [tuple(part) for part in parts.values()]


def _block(ranks: tuple[int, ...], text: str, site: Site | None) -> Block:
    """The first line of the error, its place, then what else the error says."""
    first, *rest = text.splitlines() or [""]
    if len(rest) > _SHOWN_ERROR_LINES:
        rest = [*rest[:_SHOWN_ERROR_LINES], "..."]
    return Block(ranks, (first,), site, tuple(rest))


def render_consequences(verdict: RankFailure) -> list[str]:
    return _consequences(
        verdict, [*_names(verdict, faults=True), *_names(verdict, faults=False)]
    )


def _consequences(verdict: RankFailure, names: Sequence[str]) -> list[str]:
    lines = list(names)
    if verdict.stopped:
        lines += labelled("stopped", "; ".join(map(_stopped_text, verdict.stopped)))
    for rank, text in verdict.late:
        told = cut(text, 2 * WIDTH)
        lines += labelled("late", f"rank {rank} raised {told} while it was being stopped")
    for rank, site in verdict.stuck:
        place = f"; it is at {site} in {site.function}" if site else ""
        lines += labelled("stuck", f"rank {rank} could not be stopped{place}")
    return lines


def render_faults(verdict: RankFailure) -> list[str]:
    """What a plan of faults has done, which may be the cause: right below the headline."""
    return _names(verdict, faults=True)


def _names(verdict: RankFailure, *, faults: bool) -> list[str]:
    chosen = [each for each in verdict.names if (each[0] == FAULT) is faults]
    return [line for label, text in chosen for line in labelled(label, text)]


def _stopped_text(block: ViewBlock) -> str:
    view, who = block.view, rank_list(block.ranks)
    site = site_of(view)
    place = f" at {site}" if site else ""
    if view.left is not None and view.left.how == "killed":
        return f"{who} had been killed"
    if view.status == "finished":
        return f"{who} had {'left' if has_left(view) else 'returned'}"
    if view.wait is not None and view.status == "waiting":
        op = view.wait.op
        if not view.traced:
            return f"{who} in {op.name}{place}"
        slot = f" (call #{op.number})" if op.number is not None else ""
        return f"{who} in {call_text(op)}{slot}{place}"
    words = {"outside": "outside Phalanx's sight", "ready": "ready to run"}
    doing = words.get(view.status, view.status)
    return f"{who} {doing}{place}"
