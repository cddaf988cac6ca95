"""Tables as lines of text with styles: what a screen of a recorded run is put together from.

A `Line` is pieces of text, each with the name of a style. `plain_lines` forgets the styles;
`summary_screen.py` gives them colours. Texts of a recording are not trusted:
`printable` takes out what a terminal would obey. Needs no torch.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from functools import partial

from phalanx.model import rank_list
from phalanx.report.layout import ascii_text

Line = list[tuple[str, str]]

GAP = "  "
NARROWEST = 60
"""Columns below which a table is cut at the right."""


@dataclass(frozen=True)
class Column:
    """A column of a table. Where the table is too wide, columns that are `elastic` give way
    down to `least` columns, those with the highest number first. Texts are cut in front where
    their `end` matters. Where that is not enough, columns that are `optional` are left out,
    again those with the highest number first. Of a text that is a list of `entries`, whole
    ones are cut off; of one that is `named`, what comes after its name and a colon."""

    title: str
    right: bool = False
    elastic: int = 0
    least: int = 12
    end: bool = False
    optional: int = 0
    entries: bool = False
    named: bool = False


@dataclass
class TextTable:
    """Rows of texts. `marked` has a style for a row that is to be seen; `most` is how many
    rows are shown, `what` what one of the others is called; `notes` come below."""

    columns: list[Column]
    rows: list[list[str]]
    marked: dict[int, str] = field(default_factory=dict)
    what: str = "row"
    most: int | None = None
    notes: list[str] = field(default_factory=list)

    @property
    def height(self) -> int:
        """Lines besides the rows."""
        return 1 + len(self.notes)

    def lines(self, width: int) -> list[Line]:
        rows = self.rows if self.most is None else self.rows[: self.most]
        rows = [[printable(cell).replace("\n", " ") for cell in row] for row in rows]
        widths = self._widths(rows, max(width, NARROWEST))
        lines: list[Line] = [[(self._row([c.title for c in self.columns], widths), "title")]]
        for number, row in enumerate(rows):
            lines.append([(self._row(row, widths), self.marked.get(number, ""))])
        if hidden := len(self.rows) - len(rows):
            more = many(hidden, f"more {self.what}")
            lines.append([(f"... {more}; --all shows them", "dim")])
        lines += [[(cut(printable(note), width), "warning")] for note in self.notes]
        return lines

    def without(self, hidden: Iterable[str]) -> TextTable:
        """The same without the columns of these titles."""
        kept = [place for place, c in enumerate(self.columns) if c.title not in set(hidden)]
        self.columns = [self.columns[place] for place in kept]
        self.rows = [[row[place] for place in kept] for row in self.rows]
        return self

    def _widths(self, rows: list[list[str]], width: int) -> list[int]:
        """The width of each column; 0 for one that is left out."""
        widths = [
            max([len(column.title), *(len(row[place]) for row in rows)])
            for place, column in enumerate(self.columns)
        ]
        over = sum(widths) + len(GAP) * (len(widths) - 1) - width
        gives = [
            max(0, wide - column.least) if column.elastic else 0
            for wide, column in zip(widths, self.columns, strict=True)
        ]
        for place in self._by("optional"):
            if over > sum(gives):
                over -= widths[place] + len(GAP)
                widths[place] = gives[place] = 0
        for place in self._by("elastic"):
            given = max(0, min(over, gives[place]))
            widths[place] -= given
            over -= given
        return widths

    def _by(self, name: str) -> list[int]:
        numbers = [getattr(column, name) for column in self.columns]
        return sorted((p for p, n in enumerate(numbers) if n), key=lambda p: -numbers[p])

    def _row(self, cells: Sequence[str], widths: Sequence[int]) -> str:
        placed = []
        for cell, column, width in zip(cells, self.columns, widths, strict=True):
            if width:
                text = _shortener(column)(cell, width)
                placed.append(text.rjust(width) if column.right else text.ljust(width))
        return GAP.join(placed).rstrip()


def _shortener(column: Column) -> Callable[[str, int], str]:
    if column.entries:
        return cut_entries
    return cut_name if column.named else partial(cut, end=column.end)


def plain_lines(lines: Iterable[Line]) -> str:
    """The lines without styles."""
    return "".join("".join(text for text, _ in line) + "\n" for line in lines)


def share(wanted: Sequence[int], room: int, *, least: int = 2) -> list[int]:
    """How many of `room` rows each table gets. All get the `least`, whether there is room or
    not; then one after the other gets one more.

    >>> share([1, 9, 5], 9)
    [1, 4, 4]
    """
    given = [min(want, least) for want in wanted]
    room -= sum(given)
    while room > 0 and given != list(wanted):
        for place, want in enumerate(wanted):
            if given[place] < want and room > 0:
                given[place] += 1
                room -= 1
    return given


def without_few_hidden(
    wanted: Sequence[int], given: Sequence[int], *, few: int = 2
) -> list[int]:
    """`given`, but all rows of a table where only a few would be hidden: the line that says so
    takes nearly their room.

    >>> without_few_hidden([5, 9], [3, 4])
    [5, 4]
    """
    both = zip(wanted, given, strict=True)
    return [want if want - rows <= few else rows for want, rows in both]


def cut(text: str, width: int, *, end: bool = False) -> str:
    """At most `width` columns of a text, from its front or its `end`.

    >>> cut("/home/me/train.py:12", 14, end=True)
    '...train.py:12'
    """
    if len(text) <= width:
        return text
    kept = max(0, width - 3)
    return "..." + text[len(text) - kept :] if end else text[:kept].rstrip() + "..."


def cut_name(text: str, width: int) -> str:
    """
    >>> cut_name("group 1: pipeline", 9), cut_name("group 1: pipeline", 5)
    ('group 1', 'gr...')
    """
    return text if len(text) <= width else cut(text.partition(": ")[0], width)


def entry_list(entries: Sequence[str], most: int) -> str:
    """At most so many entries, and how many are not there.

    >>> entry_list(["3 (2x, 4.23 ms)", "0 (1x, 2 us)", "1 (1x, 1 us)"], 1)
    '3 (2x, 4.23 ms), +2'
    """
    more = [f"+{len(entries) - most}"] if len(entries) > most else []
    return ", ".join([*entries[:most], *more])


def cut_entries(text: str, width: int) -> str:
    """What `entry_list` made of entries in parentheses, with as many as fit; of the first at
    least what is before its parenthesis.

    >>> cut_entries("3 (2x, 4.23 ms), 0 (1x, 2 us), +1", 20)
    '3 (2x, 4.23 ms), +2'
    """
    if len(text) <= width:
        return text
    whole, _, more = text.partition(", +")
    entries = whole.replace("), ", ")\n").split("\n")
    unseen = [""] * int(more or 0)
    for most in range(len(entries), 0, -1):
        if (
            len(shorter := entry_list([*entries[:most], *entries[most:], *unseen], most))
            <= width
        ):
            return shorter
    return cut(entry_list([entries[0].partition(" (")[0], *entries[1:], *unseen], 1), width)


def many(number: int, noun: str) -> str:
    """A number of things.

    >>> many(1, "kind of ranks"), many(1200, "kind of ranks")
    ('1 kind of ranks', '1,200 kinds of ranks')
    """
    head, of, rest = noun.partition(" of ")
    return f"{number:,} {head}{'' if number == 1 else 's'}{of}{rest}"


def printable(text: str) -> str:
    """Without characters that a terminal would obey, and without tabs: columns are counted."""
    return ascii_text(text).replace("\t", " ")


def short_ranks(ranks: Iterable[int], *, width: int = 24) -> str:
    """Ranks without the word, which the title of a column has.

    >>> short_ranks([0, 1, 2, 5])
    '0-2, 5'
    """
    return rank_list(ranks, width=width + 6).partition(" ")[2]


def time_text(seconds: float) -> str:
    """
    >>> [time_text(seconds) for seconds in (0, 0.0000123, 0.0451, 1.5, 4000)]
    ['0', '12.3 us', '45.1 ms', '1.50 s', '4000 s']
    >>> time_text(0.009999), time_text(0.0009999)
    ('10.0 ms', '1.00 ms')
    """
    for size, word in ((1.0, "s"), (1e-3, "ms"), (1e-6, "us")):
        number = seconds / size
        if number >= 0.9995 or (word == "us" and seconds > 0):
            return f"{_three_digits(number)} {word}"
    return "0"


def _three_digits(number: float) -> str:
    digits = 2 if number < 9.995 else 1 if number < 99.95 else 0
    return f"{number:.{digits}f}"


def size_text(size: float) -> str:
    """
    >>> [size_text(size) for size in (0, 40, 4096, 3 << 20)]
    ['0', '40 B', '4.00 KiB', '3.00 MiB']
    """
    for power, word in ((40, "TiB"), (30, "GiB"), (20, "MiB"), (10, "KiB")):
        if size >= 1 << power:
            number = size / (1 << power)
            return f"{_three_digits(number)} {word}"
    return f"{size} B" if size else "0"
