"""Render a deadlock: who waits for whom, what each needs, and the proof.

Used by `text`. Must never look for causes: they are in the verdict.
"""

from __future__ import annotations

from collections.abc import Sequence

from phalanx.model import Deadlock, Op, RankView, ViewBlock, rank_list
from phalanx.report.calls import caller_texts, short_name
from phalanx.report.layout import (
    SHOWN_BLOCKS,
    Block,
    compose,
    count,
    labelled,
    lay_blocks,
    shorten,
    verb,
)
from phalanx.report.situations import (
    find_fates,
    last_call_text,
    left_at,
    left_text,
    need_text,
    situation_block,
)
from phalanx.report.uneven_text import absence_headline, absence_lines, uneven_lines

_HEADLINE_RANKS = 32
_SHOWN_STEPS = 6


def render_deadlock(verdict: Deadlock, *, replay: str | None = None) -> str:
    return compose(
        headline_deadlock(verdict),
        uneven_lines(verdict.uneven) or absence_lines(verdict.absence),
        labelled("cycle", _cycle_text(verdict.cycle)) if verdict.cycle else (),
        lay_blocks(_blocks(verdict)),
        labelled("proof", _proof_text(verdict))
        + (labelled("parted", verdict.parted) if verdict.parted else [])
        + (labelled("hint", verdict.hint) if verdict.hint else []),
        labelled("replay", replay, whole=True) if replay else (),
    )


def headline_deadlock(verdict: Deadlock) -> str:
    if verdict.absence is not None and verdict.cause == "cycle":
        return f"{absence_headline(verdict.absence)}; {_continue_text(verdict)}"
    if verdict.cause == "cycle":
        return f"{_cycle_headline(verdict)}; {_continue_text(verdict)}"
    if verdict.cause == "nobody-can":
        return _nobody_headline(verdict)
    fault = verdict.ranks if verdict.cause == "failed-peer" else verdict.missed
    waiting = [block for block in _waiting(verdict) if _needs_any(block.view, fault)]
    ranks = tuple(rank for block in waiting for rank in block.ranks)
    return (
        f"{_ranks(fault)} {_end_text(verdict, fault)}; "
        f"{_ranks(ranks)} {verb(ranks, 'waits', 'wait')} for {verb(fault, 'it', 'them')}"
        f"{_common_place([block.view for block in waiting])}"
    )


def _end_text(verdict: Deadlock, ranks: Sequence[int]) -> str:
    """How these ended, if all did so in the same way."""
    if verdict.cause == "failed-peer":
        return "failed"
    ways = {
        left_text(b.view.left) for b in verdict.blocks if not set(ranks).isdisjoint(b.ranks)
    }
    return ways.pop() if len(ways) == 1 else "have ended"


def _cycle_headline(verdict: Deadlock) -> str:
    cycle = verdict.cycle
    if len(cycle) == 1:
        return f"rank {cycle[0]} waits for itself"
    if len(cycle) > 2:
        return f"{_ranks(cycle)} wait for each other in a cycle"
    first, second = verdict.blocks[:2]
    if _is_mutual(first, second) and len(first.ranks) + len(second.ranks) > 2:
        return f"{_ranks(first.ranks)} and {_ranks(second.ranks)} wait for each other"
    return f"ranks {cycle[0]} and {cycle[1]} wait for each other"


def _is_mutual(first: ViewBlock, second: ViewBlock) -> bool:
    one, other = first.view.wait, second.view.wait
    if one is None or other is None:
        return False
    return set(one.needs) >= set(second.ranks) and set(other.needs) >= set(first.ranks)


def _nobody_headline(verdict: Deadlock) -> str:
    for block in _waiting(verdict):
        wait = block.view.wait
        if wait is not None and wait.op.key is not None:
            return (
                f'no rank can set "{wait.op.key}"; {_ranks(block.ranks)} '
                f"{verb(block.ranks, 'waits', 'wait')} for it in {short_name(wait.op)}"
            )
    ranks = tuple(rank for block in _waiting(verdict) for rank in block.ranks)
    waits = verb(ranks, "waits", "wait")
    return f"{_ranks(ranks)} {waits} for what no rank can give; {_continue_text(verdict)}"


def _continue_text(verdict: Deadlock) -> str:
    if not verdict.partial:
        return "no rank can continue"
    return "none of them can ever continue" if verdict.blocked > 1 else "it can never continue"


def _waiting(verdict: Deadlock) -> list[ViewBlock]:
    return [block for block in verdict.blocks if block.view.status == "waiting"]


def _needs_any(view: RankView, ranks: Sequence[int]) -> bool:
    return view.wait is not None and not set(ranks).isdisjoint(view.wait.needs)


def _common_place(views: Sequence[RankView]) -> str:
    """Where all of these wait, if that is one place: `in call #9`, or `in recv`."""
    places = {_place(view.wait.op) for view in views if view.wait is not None}
    if len(places) == 1:
        return f" in {places.pop()[1]}"
    names = {short_name(view.wait.op) for view in views if view.wait is not None}
    return f" in {names.pop()}" if len(names) == 1 else ""


def _place(op: Op) -> tuple[str, str]:
    if op.number is not None:
        return op.group.name, f"call #{op.number}"
    return "", short_name(op)


def _cycle_text(cycle: Sequence[int]) -> str:
    steps = [f"rank {rank}" for rank in cycle]
    if len(steps) > 2 * _SHOWN_STEPS:
        skipped = len(steps) - 2 * _SHOWN_STEPS + 1
        steps = [*steps[:_SHOWN_STEPS], f"({skipped} more)", *steps[1 - _SHOWN_STEPS :]]
    return " -> ".join([*steps, f"rank {cycle[0]}"])


def _blocks(verdict: Deadlock) -> list[Block]:
    """Each part of the story is shortened by itself, so that none hides another."""
    fates = find_fates(verdict.blocks, verdict.cycle)
    cycle = set(verdict.cycle)
    parts: dict[str, list[ViewBlock]] = {}
    for block in verdict.blocks:
        part = "cycle" if cycle.intersection(block.ranks) else block.view.status
        parts.setdefault(part, []).append(block)
    return [
        block
        for part in parts.values()
        for block in shorten(
            # Of those that are left out only the ranks count: there may be a thousand.
            [_block(each, fates, verdict) for each in part[:SHOWN_BLOCKS]]
            + [Block(each.ranks, ()) for each in part[SHOWN_BLOCKS:]]
        )
    ]


def _block(block: ViewBlock, fates: dict[int, str], verdict: Deadlock) -> Block:
    view = block.view
    if view.wait is not None and view.status == "waiting":
        called = caller_texts(verdict, block.ranks, view.wait.op.site)
        needs = [need_text(view.wait, fates), *_near(view, verdict.hint or "")]
        return situation_block(block, [*called, *needs])
    if view.status == "failed":
        return situation_block(block, [last_call_text(view.last, block.ranks)])
    if left_at(view) is not None:
        at = f" at {view.last.site}" if view.last is not None and view.last.site else ""
        return situation_block(block, [last_call_text(view.last, block.ranks) + at])
    return situation_block(block)


def _near(view: RankView, hint: str) -> list[str]:
    """Near misses that the hint does not tell already."""
    near = view.wait.near if view.wait else ()
    return [f"near miss: {text}" for text in near if text not in hint]


def _proof_text(verdict: Deadlock) -> str:
    parts = [f"{verdict.blocked} of {verdict.total} ranks blocked"]
    for word, fate in (
        ("returned", "finished"),
        ("left", "left"),
        ("killed", "killed"),
        ("failed", "failed"),
    ):
        gone = sum(each == fate for each in find_fates(verdict.blocks).values())
        if gone:
            parts.append(f"{gone} {word}")
    if verdict.partial:
        return ", ".join([*parts, "and what these need no other rank can do any more"])
    if verdict.in_flight:
        parts.append(f"{count(verdict.in_flight, 'message')} in flight that nobody waits for")
    else:
        parts.append("no message in flight")
    return ", ".join([*parts, "no timer pending"])


def _ranks(ranks: Sequence[int]) -> str:
    return rank_list(ranks, width=_HEADLINE_RANKS)
