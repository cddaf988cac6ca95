"""Where a fault happens: a point of a rank's program, or a moment of the run."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable
from dataclasses import dataclass, fields
from pathlib import PurePath
from typing import Any, ClassVar

from phalanx.errors import UsageError

_PLACE = re.compile(r".*[^:/]:[1-9]\d*", re.DOTALL)


def check_count(given: str, value: Any, example: str) -> None:
    if isinstance(value, bool) or not isinstance(value, int) or value < 1:
        raise UsageError(f"{given}: they are counted from 1, e.g. {example}")


def check_seconds(given: str, value: Any, *, least: float | None = None) -> float:
    """As a float; with a `least`, that is allowed too."""
    number = isinstance(value, (int, float)) and not isinstance(value, bool)
    if not number or not math.isfinite(value) or not (value > 0 or value == least):
        what = "above 0" if least is None else f"from {least:g} on"
        raise UsageError(f"{given}: give seconds {what}")
    return float(value)


def value_text(value: Any) -> str:
    """As it is written in Python; whole seconds without a point."""
    if isinstance(value, float) and value.is_integer() and abs(value) < 1e15:
        return str(int(value))
    if isinstance(value, tuple):
        return f"({', '.join(map(value_text, value))})"
    if isinstance(value, str):
        shown = repr(value)  # with double quotes, as programs mostly are
        return f'"{shown[1:-1]}"' if shown[0] == "'" and '"' not in value else shown
    return str(value) if isinstance(value, Point) else repr(value)


class Point:
    """A point of a rank's program, or of time."""

    word: ClassVar[str] = ""

    def __str__(self) -> str:
        return f"{self.word}({', '.join(value_text(each) for each in self._said())})"

    __repr__ = __str__

    def _said(self) -> Iterable[Any]:
        return (getattr(self, each.name) for each in fields(self))  # type: ignore[arg-type]


@dataclass(frozen=True, repr=False)
class CallPoint(Point):
    """When the rank is about to make its n-th call of its groups, from 1: collectives and
    messages, in the order in which it makes them, whatever the group."""

    n: int
    word: ClassVar[str] = "call"

    def __post_init__(self) -> None:
        check_count(f"call({self.n!r})", self.n, "call(1)")


@dataclass(frozen=True, repr=False)
class LinePoint(Point):
    """When the rank is about to execute a line of the program for the n-th time."""

    place: str
    n: int = 1
    word: ClassVar[str] = "line"

    def __post_init__(self) -> None:
        given = f"line({self.place!r})"
        if not isinstance(self.place, str) or not _PLACE.fullmatch(self.place):
            raise UsageError(f'{given}: give a file and a line, e.g. line("train.py:40")')
        check_count(f"line({self.place!r}, {self.n!r})", self.n, 'line("train.py:40", 3)')

    @property
    def file(self) -> str:
        return self.place.rpartition(":")[0]

    @property
    def number(self) -> int:
        return int(self.place.rpartition(":")[2])

    def is_in(self, path: str) -> bool:
        """Whether a file is the one that is meant: `train.py` is any of that name."""
        wanted = PurePath(self.file).parts
        return PurePath(path).parts[-len(wanted) :] == wanted

    def _said(self) -> Iterable[Any]:
        return (self.place,) if self.n == 1 else (self.place, self.n)


@dataclass(frozen=True, repr=False)
class StorePoint(Point):
    """When the rank is about to make its n-th operation on a store, from 1."""

    n: int
    word: ClassVar[str] = "store"

    def __post_init__(self) -> None:
        check_count(f"store({self.n!r})", self.n, "store(1)")


@dataclass(frozen=True, repr=False)
class MomentPoint(Point):
    """So many seconds after the run began, by its clock."""

    seconds: float
    word: ClassVar[str] = "moment"

    def __post_init__(self) -> None:
        object.__setattr__(
            self, "seconds", check_seconds(f"moment({self.seconds!r})", self.seconds, least=0.0)
        )


def call(n: int) -> CallPoint:
    """The rank's n-th call of its groups, from 1."""
    return CallPoint(n)


def line(place: str, n: int = 1) -> LinePoint:
    """A line of the program, `"train.py:40"`, when the rank comes there for the n-th time."""
    return LinePoint(place, n)


def store(n: int) -> StorePoint:
    """The rank's n-th operation on a store, from 1."""
    return StorePoint(n)


def moment(seconds: float) -> MomentPoint:
    """So many seconds after the run began, by its clock."""
    return MomentPoint(seconds)
