"""What ranks note of calls whose results may be lost, as values. Pure.

Made by `backend/evidence/result_notes.py`, read by the rules of this folder.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from phalanx.callsite import Mark
from phalanx.model import Op

KIND: Literal["lost-result"] = "lost-result"

Places = tuple[Mark, ...]
"""Where a call was made: its own place and those of the functions around it, innermost
first."""


@dataclass(frozen=True)
class Lost:
    """A call that wrote into `text`, made of the tensor that is called `source` there.
    `in_object`: that tensor is an attribute of something. `holders` are frames that have it,
    or what it is found in, under a name."""

    op: Op
    text: str
    source: str
    in_object: bool
    holders: tuple[tuple[Mark, str], ...] = ()
    asynchronous: bool = False


@dataclass(frozen=True)
class OffRoot:
    """A `reduce` by a rank that is not its root, which has the result only there."""

    op: Op
    places: Places


@dataclass(frozen=True)
class Cut:
    """A call while gradients were recorded: its input requires one, its output has none."""

    op: Op
    places: Places


@dataclass(frozen=True)
class Reached:
    """A gradient came to the input of such a call, or to what that was computed of."""

    places: Places
