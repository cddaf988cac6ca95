"""Messages of a recorded run from rank to rank, counted: for the screen and for the page.

Needs no torch.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from phalanx.report.timeline.calls_table import NEVER, NONE, CallsTable, RankCalls
from phalanx.report.timeline.screen_layout import entry_list, many

SENDS = frozenset({"send", "isend"})
MOST_PAIRS = 4
"""Pairs of ranks that a line names."""


@dataclass
class MessageCount:
    """Messages from a rank to another; `lost` were sent and not received, `missed` are receives
    that no message came for."""

    source: int
    target: int
    messages: int = 0
    bytes: int = 0
    lost: int = 0
    missed: int = 0


def count_messages(table: CallsTable) -> list[MessageCount]:
    """Messages by sender and receiver. Receives from any source that are still open belong to
    no pair."""
    pairs: dict[tuple[int, int], MessageCount] = {}
    sends = {n for n, name in enumerate(table.ops) if name in SENDS}
    for calls in table.ranks:
        if NONE in calls.number:
            _count_rank(table, calls, sends, pairs)
    return [pairs[pair] for pair in sorted(pairs)]


def _count_rank(
    table: CallsTable,
    calls: RankCalls,
    sends: set[int],
    pairs: dict[tuple[int, int], MessageCount],
) -> None:
    columns = zip(calls.number, calls.peer, calls.op, calls.met, strict=True)
    for place, (number, peer, op, met) in enumerate(columns):
        if number != NONE or peer == NONE:
            continue
        is_send = op in sends
        pair = (calls.rank, peer) if is_send else (peer, calls.rank)
        if is_send or met == NEVER:
            count = pairs.setdefault(pair, MessageCount(*pair))
            count.messages += is_send
            count.bytes += table.bytes_of(calls.rank, place) if is_send else 0
            count.lost += is_send and met == NEVER
            count.missed += not is_send


def one_sided(messages: Sequence[MessageCount], most: int) -> list[str]:
    """A line for messages that nobody received, and one for those that nobody sent; each names
    at most so many pairs of ranks."""
    lines = []
    for word, what in (("lost", "sent and never received"), ("missed", "never sent")):
        pairs = [(m, getattr(m, word)) for m in messages if getattr(m, word)]
        told = [f"{n} from {m.source} to {m.target}" for m, n in pairs]
        if pairs:
            total = many(sum(n for _, n in pairs), "message")
            lines.append(f"{total} {what}: {entry_list(told, most)}")
    return lines
