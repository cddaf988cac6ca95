"""Looks in vain, in a run that is explored: when a rank that looks again must let others go on.

A rank that polls can look any number of times before the others come, and each number would be
another order. A look in a `while` loop that found nothing is made again only when what it looks
at has changed, when time has passed, or when nobody else can go on: that it looked in vain, or
did not, is all that can differ. A loop of another kind may count its looks, and so they count.
Used by stores and by works.
"""

from __future__ import annotations

import ast
import functools
from collections.abc import Hashable, Sequence
from types import FrameType
from typing import Any, NamedTuple

from phalanx import callsite
from phalanx.core.choices import Step
from phalanx.core.strand import Strand
from phalanx.source_text import function_around, parsed

IN_WHILE, ELSEWHERE = 1, 20
"""Looks in vain in a row that may be made before the others: enough for loops that give up."""
MOST_FRAMES = 6
"""Functions that are gone back to find the loop."""
ENDLESS = 500
"""Looks in vain of a `while` loop, while nobody else can go on, after which it waits."""


class VainLook(NamedTuple):
    """What a strand has looked at in vain, and how things stood."""

    what: tuple[Any, ...]
    """Kind, places, line, and what was asked."""
    stood: tuple[Any, ...]
    """The versions of the places, the time, and the calls of the rank until then."""
    times: int
    most: int

    def is_endless(self) -> bool:
        return self.most == IN_WHILE and self.times >= ENDLESS


class Versions:
    """How often the places of a run were changed."""

    def __init__(self) -> None:
        self._of: dict[Hashable, int] = {}

    def change(self, places: Sequence[Hashable]) -> None:
        for place in places:
            self._of[place] = self._of.get(place, 0) + 1

    def of(self, places: Sequence[Hashable]) -> tuple[int, ...]:
        return tuple([self._of.get(place, 0) for place in places])


def before_look(strand: Strand, step: Step, versions: Versions) -> None:
    """The strand is about to make this step. If it is once more what it did in vain, it has to
    wait for news."""
    look: VainLook | None = strand.look
    if look is None:
        return
    if look.what != _what(step) or look.stood != _stands(strand, step, versions):
        strand.look = None
    elif look.times >= look.most:
        step.is_possible = lambda: look.stood != _stands(strand, step, versions)


def after_look(strand: Strand, step: Step, versions: Versions, frame: FrameType) -> None:
    """It has made the step, in this frame, and found nothing."""
    look: VainLook | None = strand.look
    what, stands = _what(step), _stands(strand, step, versions)
    if look is not None and look.what == what and look.stood == stands:
        strand.look = look._replace(times=look.times + 1)
    else:
        strand.look = VainLook(what, stands, 1, most_in_vain(frame))


def _what(step: Step) -> tuple[Any, ...]:
    """Python compiles the condition of a loop twice: the line counts, not the instruction."""
    mark = step.mark
    line = None if mark is None else (mark[0].co_filename, callsite.line_at(*mark))
    return step.kind, step.places, line, step.asks


def _stands(strand: Strand, step: Step, versions: Versions) -> tuple[Any, ...]:
    posted = strand.local.ring.posted
    return (*versions.of(step.places), strand.baton.clock.now(), posted)


def most_in_vain(frame: FrameType | None) -> int:
    """For a look that is made in this frame of the program."""
    for _ in range(MOST_FRAMES):
        if frame is None:
            break
        file = frame.f_code.co_filename
        if not callsite.is_library(file) and _is_in_while(file, frame.f_lineno or 0):
            return IN_WHILE
        frame = frame.f_back
    return ELSEWHERE


@functools.lru_cache(maxsize=512)
def _is_in_while(file: str, line: int) -> bool:
    tree = parsed(file)
    if tree is None:
        return False
    return any(
        isinstance(node, ast.While) and node.lineno <= line <= (node.end_lineno or line)
        for node in ast.walk(function_around(tree, line))
    )
