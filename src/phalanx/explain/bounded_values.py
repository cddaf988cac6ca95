"""Values of files that nobody vouches for: each is of the type that was asked for and within
its limit, or a `FieldError` names the field.

Used by the readers, which put the name of the file in front. `str()` and `int()` are no way to
read such a value: the text of a list whose parts are shared is exponentially long, and a number
of any size is an index somewhere.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from typing import Any

from phalanx.explain.rank_dump import MOST_RANKS

LONGEST_TEXT = 1000
"""Characters of a name; an error's text may have more."""
MOST_DIMENSIONS = 64
"""torch's own limit for a tensor."""
MOST_TENSORS = 4096
"""Tensors of one call."""
MOST_CALLS = 1 << 20
"""Calls of one rank: rings have some thousands."""
MOST_GROUPS = 1 << 14
"""Groups of one rank: real ones are in some dozens."""
MOST_MEMBERS = 1 << 21
"""Members of all groups of one rank."""
_WHOLE = 1 << 62
"""No time in nanoseconds and no size is larger."""


class FieldError(ValueError):
    """A field that has another type than it should, or is out of bounds."""


def text(value: Any, field: str, longest: int = LONGEST_TEXT) -> str:
    """Text, cut where it is longer than any name; a whole number counts as its digits.

    >>> text("all_reduce", "name"), text(3, "name")
    ('all_reduce', '3')
    """
    if isinstance(value, str):
        return value[:longest]
    if isinstance(value, int) and not isinstance(value, bool) and abs(value) < _WHOLE:
        return str(value)
    raise FieldError(f"{field!r} is {kind_of(value)} where text is allowed")


def whole(value: Any, field: str, least: int = -_WHOLE, most: int = _WHOLE) -> int:
    """A whole number from `least` to `most`; neither a bool nor text counts as one."""
    if isinstance(value, bool) or not isinstance(value, int):
        raise FieldError(f"{field!r} is {kind_of(value)} where a whole number is allowed")
    if not least <= value <= most:
        found = str(value) if abs(value) < _WHOLE else "a huge number"
        raise FieldError(f"{field!r} is {found}; from {least} to {most} is allowed")
    return value


def optional(value: Any, field: str, least: int = -_WHOLE, most: int = _WHOLE) -> int | None:
    """The same, or None."""
    return None if value is None else whole(value, field, least, most)


def finite(value: Any, field: str) -> float:
    """A number that is neither infinite nor undefined."""
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        raise FieldError(f"{field!r} is {kind_of(value)} where a number is allowed")
    if not (abs(value) < _WHOLE and math.isfinite(value)):
        raise FieldError(f"{field!r} is no number that is a time")
    return float(value)


def items(value: Any, field: str, most: int) -> Sequence[Any]:
    """A list of at most so many."""
    if not isinstance(value, (list, tuple)):
        raise FieldError(f"{field!r} is {kind_of(value)} where a list is allowed")
    if len(value) > most:
        raise FieldError(f"{field!r} has {len(value)} parts; {most} are allowed")
    return value


def shape(value: Any, field: str) -> tuple[int, ...]:
    """The sizes or strides of a tensor."""
    given = items(value, field, MOST_DIMENSIONS)
    return tuple(whole(each, field, 0) for each in given)


def members(value: Any, field: str) -> tuple[int, ...]:
    """The ranks of a group: each once."""
    given = items(value, field, MOST_RANKS)
    ranks = tuple(whole(each, field, 0, MOST_RANKS - 1) for each in given)
    if len(set(ranks)) != len(ranks):
        twice = Counter(ranks).most_common(1)[0][0]
        raise FieldError(f"{field!r} has rank {twice} twice; each member is allowed once")
    return ranks


def kind_of(value: Any) -> str:
    """
    >>> kind_of(None), kind_of([]), kind_of(1 << 80)
    ('null', 'a list', 'a huge number')
    """
    if value is None:
        return "null"
    if isinstance(value, int) and not isinstance(value, bool):
        return "a number" if abs(value) < _WHOLE else "a huge number"
    return f"a {type(value).__name__}"
