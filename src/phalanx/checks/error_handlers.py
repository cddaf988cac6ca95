"""Ranks that make a call while they handle an error: decide whether that error is the cause.

An `except`, a `finally` or the end of a `with` that saves a checkpoint or waits for the others
is entered by those ranks only that have an error. Their call then meets another one, or nobody.
Pure; used by every engine for each verdict about calls that disagree or cannot end.

| ranks that handle an error                              | the error is                     |
|---------------------------------------------------------|----------------------------------|
| call what ranks without one do not call                 | the cause                        |
| are in a call in which ranks without one are too        | a note: the calls agree          |
| are all ranks                                           | a note: they went the same way   |
| wait for ranks that are stuck for another reason        | a note                           |
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from typing import TypeVar

from phalanx.model import (
    Deadlock,
    Finding,
    HandledError,
    Handling,
    Mismatch,
    Op,
    Site,
    Stall,
    Verdict,
    ViewBlock,
)

HINT = (
    "only ranks that have an error come to what handles it: mend the error, and let no call "
    "in an except, a finally or the end of a with need the other ranks"
)

_Any = TypeVar("_Any", bound=Verdict)
_Blocks = Sequence[tuple[tuple[int, ...], Op]]


def with_handled(verdict: _Any, handling: Mapping[int, Handling]) -> _Any:
    """The verdict with the errors that ranks were handling, and with these ranks at fault if an
    error is the cause."""
    if not handling or verdict.handled:
        return verdict
    found: Verdict = verdict
    if isinstance(verdict, Mismatch):
        found = _in_mismatch(verdict, handling)
    elif isinstance(verdict, Deadlock):
        found = _in_deadlock(verdict, handling)
    elif isinstance(verdict, Stall):
        found = _in_stall(verdict, handling)
    elif isinstance(verdict, Finding) and verdict.kind == "mismatch":
        calls = [(block.ranks, block.op) for block in verdict.blocks]
        there = _standing_there(calls, handling)
        guilty = _alone(calls, there)
        ranks = verdict.ranks or tuple(sorted(guilty))
        found = replace(verdict, ranks=ranks, handled=_handled(handling, there, guilty))
    assert isinstance(found, type(verdict))
    return found


def _in_mismatch(verdict: Mismatch, handling: Mapping[int, Handling]) -> Mismatch:
    calls = [(block.ranks, block.op) for block in verdict.blocks]
    there = _standing_there(calls, handling)
    guilty = _alone(calls, there)
    found = replace(verdict, handled=_handled(handling, there, guilty))
    if not guilty:
        return found
    found = replace(found, hint=HINT)
    if verdict.ranks:
        return found
    blocks = [replace(each, odd=guilty.issuperset(each.ranks)) for each in verdict.blocks]
    blocks.sort(key=lambda each: each.odd)
    return replace(found, ranks=tuple(sorted(guilty)), blocks=tuple(blocks))


def _in_deadlock(verdict: Deadlock, handling: Mapping[int, Handling]) -> Deadlock:
    waiting = [each for each in verdict.blocks if each.view.status == "waiting"]
    calls = [(each.ranks, each.view.wait.op) for each in waiting if each.view.wait]
    there = _standing_there(calls, handling)
    guilty = {
        rank
        for block in waiting
        if there.issuperset(block.ranks) and not _has_company(block, waiting, there)
        for rank in block.ranks
        if _is_concerned(rank, block, verdict)
    }
    gone = {r for b in verdict.blocks if b.view.status == "finished" for r in b.ranks}
    if not ({rank for ranks, _ in calls for rank in ranks} | gone) - guilty:
        guilty = set()
    found = replace(verdict, handled=_handled(handling, there, guilty))
    return replace(found, ranks=tuple(sorted(guilty)), hint=HINT) if guilty else found


def _in_stall(verdict: Stall, handling: Mapping[int, Handling]) -> Stall:
    """Those at fault, and those that wait where nobody without an error does."""
    waiting = [each for each in verdict.blocks if each.view.status == "waiting"]
    known = set(handling)
    guilty = known.intersection(verdict.ranks)
    for block in waiting:
        if known.issuperset(block.ranks) and not _has_company(block, waiting, known):
            guilty.update(block.ranks)
    everyone = {rank for block in verdict.blocks for rank in block.ranks}
    guilty = guilty if everyone - known else set()
    return replace(verdict, handled=_handled(handling, handling, guilty))


def _standing_there(calls: _Blocks, handling: Mapping[int, Handling]) -> set[int]:
    """Ranks that make their call while they handle an error. One that began a call before and
    waits for it in a handler is no such rank."""
    return {
        rank
        for ranks, op in calls
        for rank in ranks
        if rank in handling and op.site is not None and handling[rank].at == op.site
    }


def _alone(calls: _Blocks, there: Collection[int]) -> set[int]:
    """Ranks of calls that only handlers make, if others make calls that no handler makes."""
    known = set(there)
    if not any(known.isdisjoint(ranks) for ranks, _ in calls):
        return set()
    return {rank for ranks, _ in calls if known.issuperset(ranks) for rank in ranks}


def _has_company(block: ViewBlock, blocks: Sequence[ViewBlock], there: set[int]) -> bool:
    """Whether ranks without an error are in the same collective."""
    slot = _slot(block)
    return slot is not None and any(
        _slot(each) == slot and not there.issuperset(each.ranks) for each in blocks
    )


def _slot(block: ViewBlock) -> tuple[str, int] | None:
    op = block.view.wait.op if block.view.wait is not None else None
    return None if op is None or op.number is None else (op.group.name, op.number)


def _is_concerned(rank: int, block: ViewBlock, verdict: Deadlock) -> bool:
    """Whether others wait for the rank, or it for ranks that have ended."""
    needed = any(
        rank in each.view.wait.needs
        for each in verdict.blocks
        if each.view.wait is not None and each is not block and each.view.status == "waiting"
    )
    wait = block.view.wait
    gone = {r for b in verdict.blocks if b.view.status == "finished" for r in b.ranks}
    return needed or rank in verdict.cycle or not gone.isdisjoint(wait.needs if wait else ())


def _handled(
    handling: Mapping[int, Handling], ranks: Collection[int], guilty: Collection[int]
) -> tuple[HandledError, ...]:
    """Causes first, equal ones together."""
    alike: dict[tuple[bool, str, Site], list[int]] = {}
    for rank in sorted(ranks):
        each = handling[rank]
        alike.setdefault((rank not in guilty, each.error, each.site), []).append(rank)
    return tuple(
        HandledError(tuple(who), error, site, cause=not other)
        for (other, error, site), who in sorted(alike.items(), key=lambda item: item[0][0])
    )
