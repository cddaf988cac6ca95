"""Operations that completed and that nobody waited for, once a run has ended. Pure.

| what became of the `Work`                               | told                          |
|---------------------------------------------------------|-------------------------------|
| `wait`, `synchronize`, `result`; `is_completed` seen    | nothing                       |
| true; its future asked for                              |                               |
| dropped, and the result used                            | an error, at the use          |
| dropped, and the result used after a call that orders   | a warning for each line       |
| the two (a barrier on Gloo); dropped, or kept and never |                               |
| asked                                                   |                               |
| the tensor of a functional collective, never used       | a warning for each line       |
| its operation never met its counterpart                 | by `leftovers`, not here      |

One finding for each line that made such calls, whichever ranks they were.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Protocol

from phalanx.checks.in_flight_buffer import MARKS, Touch
from phalanx.journal.events import Noted
from phalanx.journal.reader import Journal
from phalanx.matching.hints import name_ranks
from phalanx.model import CallBlock, Finding, Group, Op, Site, Unmet

KIND = "unwaited-work"


@dataclass(frozen=True)
class Unwaited:
    """`count` calls of one rank at one line. `read` is where a result was used after a later
    call on the group, which makes sure on this backend that it is there.
    `functional` results wait by themselves when they are used."""

    op: Op
    count: int = 1
    read: Site | None = None
    functional: bool = False


class UnmetHost(Protocol):
    """What this check asks of the engine besides the journal."""

    @property
    def unmet(self) -> Sequence[Unmet]:
        """Calls that never met their counterpart, which are told already."""


def find_unwaited_work(journal: Journal, host: UnmetHost) -> tuple[Finding, ...]:
    """From what the ranks noted: each knows its own works."""
    told = {
        (rank, block.op.name, block.op.site)
        for each in host.unmet
        for block in each.blocks
        for rank in block.ranks
    }
    left: list[Unwaited] = [
        each for event in journal.rare(Noted) if event.about == KIND for each in event.what
    ]
    return find_unwaited(
        each for each in left if (each.op.rank, each.op.name, each.op.site) not in told
    )


def find_used_unwaited(touch: Touch) -> Finding:
    """A result is used whose `Work` is gone: it may not be there yet."""
    flying, rank = touch.flying, touch.flying.rank
    place = f" ({flying.site})" if flying.site is not None else ""
    did = "wrote to" if touch.how == "written" else "used"
    result = f"{did} the result of {flying.name}{place}"
    by = Op(rank, touch.by, Group("world", ()), site=touch.site)
    return Finding(
        kind="unwaited-work",
        severity="error",
        ranks=(rank,),
        headline=f"rank {rank} {result}, which it never waited for",
        blocks=(
            CallBlock((rank,), flying, notes=("its Work was dropped: nobody can wait for it",)),
            CallBlock((rank,), by, mark=MARKS.get(touch.how, "")),
        ),
        hint=(
            "the tensor may hold old data, new data or a mixture, and not the same on all "
            "ranks: keep the Work that the call returns and wait() for it first"
        ),
    )


def find_unwaited(left: Iterable[Unwaited]) -> tuple[Finding, ...]:
    lines: dict[object, list[Unwaited]] = {}
    for each in left:
        lines.setdefault((each.op.name, each.op.site, each.functional), []).append(each)
    found = [_finding(sorted(group, key=_order)) for group in lines.values()]
    return tuple(sorted(found, key=lambda each: (each.ranks, each.headline)))


def _order(each: Unwaited) -> tuple[int, int]:
    return each.op.rank, -1 if each.op.number is None else each.op.number


def _finding(group: list[Unwaited]) -> Finding:
    first = group[0].op
    ranks = tuple(sorted({each.op.rank for each in group}))
    place = f" at {first.site}" if first.site is not None else ""
    times = _times({rank: _sum(group, rank) for rank in ranks})
    return Finding(
        kind="unwaited-work",
        severity="warning",
        ranks=ranks,
        headline=f"{name_ranks(ranks)} never waited for {first.name}{place}{times}",
        blocks=_blocks(group),
        hint=_hint(group),
    )


def _blocks(group: list[Unwaited]) -> tuple[CallBlock, ...]:
    """Ranks whose first such call had the same tensors together."""
    firsts: dict[int, Op] = {}
    for each in group:
        firsts.setdefault(each.op.rank, each.op)
    alike: dict[object, list[Op]] = {}
    for op in firsts.values():
        alike.setdefault((op.inputs, op.outputs), []).append(op)
    *others, last = [(tuple(op.rank for op in ops), ops[0]) for ops in alike.values()]
    return (*(CallBlock(*each) for each in others), CallBlock(*last, notes=_notes(group)))


def _sum(group: list[Unwaited], rank: int) -> int:
    return sum(each.count for each in group if each.op.rank == rank)


def _times(counts: dict[int, int]) -> str:
    low, high = min(counts.values()), max(counts.values())
    if high == 1:
        return ""
    each = " each" if len(counts) > 1 else ""
    return f", {high} times{each}" if low == high else f", {low} to {high} times each"


def _notes(group: list[Unwaited]) -> tuple[str, ...]:
    sites = sorted({str(each.read) for each in group if each.read is not None})
    if sites:
        return (
            f"its result was used at {', '.join(sites[:4])}, after another call on the group",
        )
    return ()


def _hint(group: list[Unwaited]) -> str:
    if group[0].functional:
        return "the result was never used; if it is not needed, nor is the call"
    if any(each.read is not None for each in group):
        return (
            "that call makes sure of it on this backend only: keep the Work that the call "
            "returns and wait() for it"
        )
    return (
        "the run was lucky: nothing says that the operation is complete; keep the Work that "
        "the call returns and wait() for it"
    )
