"""Messages of a recorded run from rank to rank, counted: for the page, and as the table of the
screen.

Needs no torch.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from phalanx.report.timeline.calls_table import NEVER, NONE, CallsTable, RankCalls
from phalanx.report.timeline.screen_layout import (
    Column,
    TextTable,
    entry_list,
    many,
    short_ranks,
    size_text,
)

SENDS = frozenset({"send", "isend"})
MOST_PAIRS = 4
"""Pairs of ranks that a line names."""
MATRIX = 8
"""Rows and columns of the messages; more ranks are ranges of ranks."""
CELL = 7
"""Columns of a number of messages."""


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


class MessageMatrix:
    """Messages from ranks to ranks; where ranks are many, from ranges to ranges."""

    def __init__(self, messages: Sequence[MessageCount], width: int, *, whole: bool) -> None:
        self._messages = messages
        sent = [m for m in messages if m.messages]
        self._ranks = sorted({rank for m in sent for rank in (m.source, m.target)})
        self.largest = min(len(self._ranks), max(2, (width - 20) // (CELL + 2)))
        self.wanted = min(self.largest, MATRIX)
        self._notes = one_sided(messages, len(messages) if whole else MOST_PAIRS)

    @property
    def height(self) -> int:
        return 2 + len(self._notes) if self._messages else 0

    def table(self, most: int) -> TextTable:
        if not self._ranks:
            return TextTable([Column("messages")], [["none"]], notes=self._notes)
        size = -(-len(self._ranks) // max(1, most))
        ranges = [self._ranks[at : at + size] for at in range(0, len(self._ranks), size)]
        place = {rank: number for number, ranks in enumerate(ranges) for rank in ranks}
        cells = [[0] * len(ranges) for _ in ranges]
        sizes = [0] * len(ranges)
        for each in self._messages:
            if not each.messages:
                continue
            cells[place[each.source]][place[each.target]] += each.messages
            sizes[place[each.source]] += each.bytes
        names = [short_ranks(ranks, width=CELL + 8) for ranks in ranges]
        columns = [Column("messages"), *(Column(f"to {name}", right=True) for name in names)]
        rows = [
            [f"from {name}", *(f"{n:,}" if n else "." for n in row), size_text(size)]
            for name, row, size in zip(names, cells, sizes, strict=True)
        ]
        return TextTable([*columns, Column("bytes", right=True)], rows, notes=self._notes)
