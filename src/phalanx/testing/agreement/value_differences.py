"""What ranks disagree on, as data and as text. Used by the assertions between ranks.

Pure: no torch, no communication, so the texts are tested without ranks.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from phalanx.model import rank_list
from phalanx.report.layout import (
    Block,
    ascii_text,
    compose,
    count,
    labelled,
    lay_blocks,
    shorten,
    verb,
)

MOST_SHOWN = 6
"""How many places are shown; the others are counted."""


@dataclass(frozen=True)
class Side:
    """Ranks with the same value at one place: a short text, and the details."""

    ranks: tuple[int, ...]
    text: str
    notes: tuple[str, ...] = ()


@dataclass(frozen=True)
class Difference:
    """One place where ranks disagree. The side with the most ranks comes first. In a tensor
    (`by_elements`) the texts of the other sides say how they differ from that one."""

    path: str
    what: str
    sides: tuple[Side, ...]
    by_elements: bool = False
    note: str = ""


class RanksDisagreeError(AssertionError):
    """An assertion between ranks failed. Every rank of the group raises the same one;
    `differences` is the finding as data."""

    def __init__(self, text: str, differences: Sequence[Difference] = ()) -> None:
        super().__init__(text)
        self.differences = tuple(differences)


RanksDisagreeError.__module__ = "phalanx.testing"  # where users find it


def render_differences(
    subject: str, differences: Sequence[Difference], *, total: int, entries: str = "places"
) -> str:
    """The whole text. `subject` is what was compared, in `total` places."""
    shown = differences[:MOST_SHOWN]
    sections = [_section(difference) for difference in shown]
    left = differences[MOST_SHOWN:]
    if left:
        names = ", ".join(difference.path for difference in left[:3])
        more = ", ..." if len(left) > 3 else ""
        sections.append(labelled("also", f"{len(left)} more {entries}: {names}{more}"))
    headline = _headline(subject, differences, total=total, entries=entries)
    return compose(headline, *sections)


def render_sides(headline: str, sides: Sequence[Side]) -> str:
    """A headline, and the value of each rank."""
    blocks = [Block(side.ranks, (side.text,), notes=side.notes) for side in sides]
    return compose(headline, lay_blocks(shorten(blocks)))


def _headline(
    subject: str, differences: Sequence[Difference], *, total: int, entries: str
) -> str:
    first = differences[0]
    where = first.path if total > 1 else subject
    text = f"{where} {_sides(first)}"
    if len(differences) > 1:
        text += f" ({len(differences)} of {total} {entries} differ)"
    return ascii_text(text)


def _sides(difference: Difference) -> str:
    """`differs: rank 2 has 3, ranks 0, 1 have 4`; the odd ones come first."""
    usual, *odd = difference.sides
    shown = odd[:2]
    more = f", {count(len(odd) - len(shown), 'more kind')}" if len(odd) > len(shown) else ""
    if difference.by_elements:
        parts = [f"{rank_list(side.ranks)} in {side.text}" for side in shown]
        parts[0] = f"{rank_list(odd[0].ranks)} from {rank_list(usual.ranks)} in {odd[0].text}"
        return f"differs: {'; '.join(parts)}{more}"
    parts = [_has(side) for side in shown]
    return f"differs: {', '.join(parts)}{more}, {_has(usual)}"


def _has(side: Side) -> str:
    return f"{rank_list(side.ranks)} {verb(side.ranks, 'has', 'have')} {side.text}"


def _section(difference: Difference) -> list[str]:
    lines = labelled("at", f"{difference.path}  {difference.what}".rstrip())
    lines += ["", *lay_blocks(shorten(_blocks(difference)))]
    if difference.note:
        lines += ["", *labelled("note", difference.note)]
    return lines


def _blocks(difference: Difference) -> list[Block]:
    usual, *odd = difference.sides
    if difference.by_elements:
        unlike = f"unlike {rank_list(usual.ranks)} in"
        return [Block(s.ranks, (f"{unlike} {s.text}",), notes=s.notes) for s in odd]
    return [
        Block(usual.ranks, (usual.text,), notes=usual.notes),
        *(Block(s.ranks, (s.text,), notes=s.notes, mark="<- differs") for s in odd),
    ]
