"""The layout that all reports share: rank lists, labels, blocks, 88 columns, ASCII.

Used by every other module of this package. Must never know what kind of verdict it lays out.
"""

from __future__ import annotations

import re
import textwrap
from collections.abc import Sequence
from dataclasses import dataclass

from phalanx.model import Site, rank_list

WIDTH = 88
_INDENT = "  "
_LABEL_COLUMN = 12
_MARK_COLUMN = 66
_BLOCK_LABEL_WIDTH = 32


@dataclass(frozen=True)
class Block:
    """Ranks in one situation: its pieces (a call with its values), the user's line, notes."""

    ranks: tuple[int, ...]
    pieces: tuple[str, ...]
    site: Site | None = None
    notes: tuple[str, ...] = ()
    mark: str = ""


def verb(ranks: Sequence[int], one: str, several: str) -> str:
    """The form of a verb that goes with a rank list."""
    return one if len(ranks) == 1 else several


def count(number: int, noun: str) -> str:
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"


_OBEYED = re.compile(
    "[\x00-\x08\x0b-\x1f\x7f-\x9f\u200b-\u200f\u2028-\u202e\u2060-\u2069\ufeff]"
)
"""What terminals and editors obey instead of showing it, but for tabs and ends of lines."""


def visible(text: str) -> str:
    """The text with its control characters shown: programs name groups and raise errors as
    they like, and a report moves no cursor and hides no line.

    >>> print(visible("all_reduce\\x1b[2J"))
    all_reduce\\x1b[2J
    """
    return _OBEYED.sub(_shown, text)


def _shown(found: re.Match[str]) -> str:
    number = ord(found[0])
    return f"\\x{number:02x}" if number < 0x100 else f"\\u{number:04x}"


def visible_line(text: str) -> str:
    """The same in one line."""
    return visible(text).replace("\n", "\\n").replace("\t", " ")


def ascii_text(text: str) -> str:
    return visible(text).encode("ascii", "backslashreplace").decode("ascii")


def cut(text: str, width: int) -> str:
    """One line of at most `width` columns; what was cut off shows as dots."""
    line = ascii_text(text).splitlines()[0] if text else ""
    if len(line) > width or "\n" in text.rstrip("\n"):
        kept = line[: max(0, width - 4)]
        if len(line) > len(kept) and " " in kept[len(kept) // 2 :]:
            kept = kept.rpartition(" ")[0]  # not in the middle of a word
        return kept.rstrip(" ,;:") + " ..."
    return line


def wrap(text: str, width: int) -> list[str]:
    """Break at clauses (after `;` or `:`) where the text does not fit on one line.

    >>> wrap("none has sent: one must send first", 24)
    ['none has sent:', 'one must send first']
    """
    lines = [""]
    for clause in re.split(r"(?<=[;:]) ", ascii_text(text)):
        joined = f"{lines[-1]} {clause}".strip()
        if len(joined) <= width:
            lines[-1] = joined
        else:
            lines += _fill(clause, width)
    return lines if lines[0] else lines[1:] or [""]


def labelled(label: str, text: str, *, whole: bool = False) -> list[str]:
    """`label     text`, following lines under the text. `whole` text is never broken."""
    lines = [ascii_text(text)] if whole else wrap(text, WIDTH - _LABEL_COLUMN)
    return _hang(f"{_INDENT}{ascii_text(label)}", lines, _LABEL_COLUMN)


def lay_blocks(blocks: Sequence[Block]) -> list[str]:
    """Blocks under each other, their text in one column, with an empty line between them."""
    labels = [rank_list(block.ranks, width=_BLOCK_LABEL_WIDTH) for block in blocks]
    column = len(_INDENT) + max(map(len, labels), default=0) + 3
    lines: list[str] = []
    for label, block in zip(labels, blocks, strict=True):
        body = _marked(_join_pieces(block.pieces, WIDTH - column), block.mark, column)
        body += site_lines(block.site, WIDTH - column)
        for note in block.notes:
            body += wrap(note, WIDTH - column)
        lines += [*_hang(f"{_INDENT}{label}", body, column), ""]
    return lines[:-1]


SHOWN_BLOCKS = 8


def shorten(blocks: Sequence[Block], limit: int = SHOWN_BLOCKS) -> list[Block]:
    """At most `limit` blocks: the last one then stands for all ranks that are left."""
    if len(blocks) <= limit:
        return list(blocks)
    shown, rest = blocks[: limit - 1], blocks[limit - 1 :]
    ranks = tuple(sorted(rank for block in rest for rank in block.ranks))
    return [*shown, Block(ranks, (f"({len(rest)} more blocks, each unlike the others)",))]


def site_lines(site: Site | None, width: int) -> list[str]:
    """The user's line and its source. A path is never cut: it is there to be opened."""
    if site is None:
        return []
    lines = [ascii_text(f"{site} in {site.function}")]
    if site.source:
        lines.append(cut(f">  {site.source}", width))
    return lines


def compose(headline: str, *sections: Sequence[str]) -> str:
    """The headline, then the sections that have something to say, an empty line before each."""
    lines = [ascii_text(headline)]
    for section in sections:
        if section:
            lines += ["", *section]
    return "\n".join(line.rstrip() for line in lines)


def _fill(text: str, width: int) -> list[str]:
    return textwrap.wrap(text, width, break_long_words=False, break_on_hyphens=False)


def _hang(label: str, lines: Sequence[str], column: int) -> list[str]:
    first = f"{label.ljust(column - 1)} {lines[0]}" if lines else label
    return [first, *(" " * column + line for line in lines[1:])]


def _join_pieces(pieces: Sequence[str], width: int) -> list[str]:
    """Pieces two columns apart, on as many lines as they need."""
    lines: list[str] = []
    for piece in map(ascii_text, pieces):
        if lines and len(lines[-1]) + 2 + len(piece) <= width:
            lines[-1] += f"  {piece}"
        else:
            lines += _fill_call(piece, width)
    return lines


def _fill_call(text: str, width: int) -> list[str]:
    """Like `_fill`, but a list in brackets stays in one piece."""
    held = re.sub(r"\[[^]]*\]", lambda found: found[0].replace(" ", "\0"), text)
    return [line.replace("\0", " ") for line in _fill(held, width)]


def _marked(lines: list[str], mark: str, column: int) -> list[str]:
    """Put the mark on the first line: in its own column, or behind a line that is longer."""
    if not mark or not lines:
        return lines
    line = lines[0].ljust(_MARK_COLUMN - column) if lines[0] else ""
    if len(lines[0]) + column + 2 > _MARK_COLUMN:
        line = f"{lines[0]}  "
    if column + len(line) + len(mark) > WIDTH:
        return [*lines, mark]
    return [line + mark, *lines[1:]]
