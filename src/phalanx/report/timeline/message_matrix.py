"""The table of messages on the screen of a recorded run. Needs no torch."""

from __future__ import annotations

from collections.abc import Sequence

from phalanx.report.timeline.message_counts import MOST_PAIRS, MessageCount, one_sided
from phalanx.report.timeline.screen_layout import Column, TextTable, short_ranks, size_text

MATRIX = 8
"""Rows and columns of the messages; more ranks are ranges of ranks."""
CELL = 7
"""Columns of a number of messages."""


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
