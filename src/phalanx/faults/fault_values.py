"""The kinds of faults, as frozen values, and the functions that make them."""

from __future__ import annotations

import builtins
import importlib
import re
import sys
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, fields
from typing import Any, ClassVar

from phalanx.errors import UsageError
from phalanx.faults.fault_points import (
    CallPoint,
    MomentPoint,
    Point,
    check_count,
    check_seconds,
    moment,
    value_text,
)

RESULT, CONTRIBUTION = PARTS = ("result", "contribution")
"""Of a call that is corrupted: what the rank gets, or what it gives to the others."""

_DOTTED = re.compile(r"[^\W\d]\w*(\.[^\W\d]\w*)*")


class Fault:
    """Something that goes wrong in a run. Frozen; equal faults are equal values."""

    kind: ClassVar[str] = ""
    example: ClassVar[str] = ""

    @property
    def ranks(self) -> tuple[int, ...]:
        """The ranks that it names."""
        rank = getattr(self, "rank", None)
        return () if rank is None else (rank,)

    @property
    def point(self) -> Point | None:
        """Where it happens; None: it has times of its own."""
        return getattr(self, "at", None)

    def __str__(self) -> str:
        words = (word for each in fields(self) for word in self._word(each))  # type: ignore[arg-type]
        return f"{self.kind}({', '.join(words)})"

    __repr__ = __str__

    def _word(self, each: Any) -> Iterable[str]:
        value = getattr(self, each.name)
        if value != each.default:
            yield f"{each.name}={value_text(value)}"


@dataclass(frozen=True, repr=False, kw_only=True)
class Kill(Fault):
    """The rank's process ends there, as by SIGKILL."""

    rank: int
    at: Point
    kind: ClassVar[str] = "kill"
    example: ClassVar[str] = "kill(rank=2, at=call(17))"

    def __post_init__(self) -> None:
        _check_rank_and_point(self, self.rank, self.at)


@dataclass(frozen=True, repr=False, kw_only=True)
class Delay(Fault):
    """The rank sleeps before it goes on there."""

    rank: int
    seconds: float
    at: Point
    kind: ClassVar[str] = "delay"
    example: ClassVar[str] = 'delay(rank=1, seconds=30, at=line("train.py:40"))'

    def __post_init__(self) -> None:
        _check_rank_and_point(self, self.rank, self.at)
        _set(self, seconds=check_seconds(_given("seconds", self), self.seconds))


@dataclass(frozen=True, repr=False, kw_only=True)
class Stop(Fault):
    """The rank's process makes no progress for a time, as between SIGSTOP and SIGCONT."""

    rank: int
    seconds: float
    at: Point
    kind: ClassVar[str] = "stop"
    example: ClassVar[str] = "stop(rank=1, seconds=900, at=call(3))"

    def __post_init__(self) -> None:
        _check_rank_and_point(self, self.rank, self.at)
        _set(self, seconds=check_seconds(_given("seconds", self), self.seconds))


@dataclass(frozen=True, repr=False, kw_only=True)
class Partition(Fault):
    """Nothing that one side sends arrives at the other, from a moment to another; an end of
    None is never."""

    one: tuple[int, ...]
    other: tuple[int, ...]
    during: tuple[float, float | None]
    kind: ClassVar[str] = "partition"
    example: ClassVar[str] = "partition([0, 1], [2, 3], during=(5, 20))"

    def __post_init__(self) -> None:
        for side in (self.one, self.other):
            given = isinstance(side, (list, tuple)) and side
            if not given or not all(map(_is_rank, side)) or len(set(side)) != len(side):
                raise UsageError(
                    f"partition: {side!r} is no side; give ranks, each once, e.g. "
                    f"{self.example}"
                )
        both = set(self.one) & set(self.other)
        if both:
            raise UsageError(
                f"partition: rank {min(both)} cannot be on both sides; write {self.example}"
            )
        _set(self, one=tuple(self.one), other=tuple(self.other), during=self._times())

    def _times(self) -> tuple[float, float | None]:
        given = f"during={self.during!r}"
        if not isinstance(self.during, (list, tuple)) or len(self.during) != 2:
            raise UsageError(f"{given}: give when it begins and ends, e.g. during=(5, 20)")
        start = check_seconds(given, self.during[0], least=0.0)
        if self.during[1] is None:
            return start, None
        end = check_seconds(given, self.during[1])
        if end <= start:
            raise UsageError(f"{given}: it ends before it begins; write during=({end:g}, ...)")
        return start, end

    @property
    def ranks(self) -> tuple[int, ...]:
        return (*self.one, *self.other)

    def __str__(self) -> str:
        sides = f"{list(self.one)}, {list(self.other)}"
        return f"partition({sides}, during={value_text(self.during)})"

    __repr__ = __str__


@dataclass(frozen=True, repr=False, kw_only=True)
class DropStore(Fault):
    """The server of the store is lost there: for a time, or for good."""

    rank: int | None = None
    at: Point
    seconds: float | None = None
    kind: ClassVar[str] = "drop_store"
    example: ClassVar[str] = "drop_store(rank=1, at=store(3)), or drop_store(at=moment(5))"

    def __post_init__(self) -> None:
        if isinstance(self.at, MomentPoint):
            if self.rank is not None:
                raise UsageError(
                    f"drop_store: {self.at} is the same for all ranks; leave "
                    f"rank={self.rank!r} out"
                )
        else:
            _check_rank_and_point(self, self.rank, self.at)
        if self.seconds is not None:
            _set(self, seconds=check_seconds(_given("seconds", self), self.seconds))


@dataclass(frozen=True, repr=False, kw_only=True)
class Corrupt(Fault):
    """Bits of the rank's n-th call are flipped: of what it gets, or of what it gives."""

    rank: int
    call: int
    bits: int = 1
    part: str = RESULT
    seed: int = 0
    kind: ClassVar[str] = "corrupt"
    example: ClassVar[str] = "corrupt(rank=3, call=9, bits=1)"

    def __post_init__(self) -> None:
        _check_rank(self, self.rank)
        check_count(_given("call", self), self.call, "call=1")
        if isinstance(self.bits, bool) or not isinstance(self.bits, int) or self.bits < 1:
            raise UsageError(f"{_given('bits', self)}: give how many bits to flip, from 1 on")
        if self.part not in PARTS:
            raise UsageError(f"{_given('part', self)}: choose {' or '.join(map(repr, PARTS))}")
        if isinstance(self.seed, bool) or not isinstance(self.seed, int) or self.seed < 0:
            raise UsageError(f"{_given('seed', self)}: a seed is a whole number from 0 on")

    @property
    def point(self) -> Point:
        return CallPoint(self.call)


@dataclass(frozen=True, repr=False, kw_only=True)
class Raise(Fault):
    """An error is raised in the rank there, at the program's line. Its class is kept by name,
    so that the plan travels: a built-in one, or where it can be imported from."""

    error: str
    message: str | None = None
    rank: int
    at: Point
    kind: ClassVar[str] = "raise_"
    example: ClassVar[str] = "raise_(MemoryError, rank=1, at=call(3))"

    def __post_init__(self) -> None:
        _check_rank_and_point(self, self.rank, self.at)
        if not isinstance(self.error, str) or not _DOTTED.fullmatch(self.error):
            raise UsageError(f"raise_({self.error!r}): name a class of errors: {self.example}")
        if self.message is not None and not isinstance(self.message, str):
            raise UsageError(f"raise_: the message {self.message!r} is no text")
        if "." not in self.error:
            _check_error_class(self.error, getattr(builtins, self.error, None))

    def make_error(self) -> BaseException:
        """A new one. May import its module; raises `UsageError` if there is no such class."""
        module, _, name = self.error.rpartition(".")
        found: Any = builtins
        if module:
            try:
                found = sys.modules.get(module) or importlib.import_module(module)
            except ImportError as problem:
                raise UsageError(f"raise_({self.error}): {problem}") from None
        kind: Any = getattr(found, name, None)
        _check_error_class(self.error, kind)
        made: BaseException = kind() if self.message is None else kind(self.message)
        return made

    def __str__(self) -> str:
        what = (
            self.error if self.message is None else f"{self.error}({value_text(self.message)})"
        )
        return f"raise_({what}, rank={self.rank}, at={self.at})"

    __repr__ = __str__


Plan = tuple[Fault, ...]

FAULTS: Mapping[str, type[Fault]] = {
    each.kind: each for each in (Kill, Delay, Partition, DropStore, Corrupt, Raise, Stop)
}
"""The classes of faults, by the word that one writes."""


def kill(*, rank: int, at: Point) -> Kill:
    """The rank's process ends there, as by SIGKILL."""
    return Kill(rank=rank, at=at)


def delay(*, rank: int, seconds: float, at: Point) -> Delay:
    """The rank sleeps for so long before it goes on there."""
    return Delay(rank=rank, seconds=seconds, at=at)


def stop(*, rank: int, seconds: float, at: Point = CallPoint(1)) -> Stop:  # noqa: B008, frozen
    """The rank's process is stopped there for so long: at its first call if not said."""
    return Stop(rank=rank, seconds=seconds, at=at)


def partition(
    one: Iterable[int], other: Iterable[int], *, during: tuple[float, float | None]
) -> Partition:
    """Nothing arrives at the other side between two moments, in seconds of the run."""
    sides = [list(s) if isinstance(s, (tuple, range, set)) else s for s in (one, other)]
    return Partition(one=sides[0], other=sides[1], during=during)  # type: ignore[arg-type]


def drop_store(
    *,
    at: Point | None = None,
    rank: int | None = None,
    seconds: float | None = None,
    during: tuple[float, float | None] | None = None,
) -> DropStore:
    """The store loses its server: at a moment, or where a rank comes to a point; for so many
    seconds, or for good. `during=(5, 20)` is `at=moment(5), seconds=15`."""
    if during is not None:
        if at is not None or seconds is not None:
            raise UsageError("drop_store: give during=(5, 20), or at and seconds, not both")
        start, end = Partition(one=(0,), other=(1,), during=during).during
        return DropStore(
            rank=rank, at=moment(start), seconds=None if end is None else end - start
        )
    return DropStore(rank=rank, at=at, seconds=seconds)  # type: ignore[arg-type]


def corrupt(
    *, rank: int, call: int, bits: int = 1, part: str = RESULT, seed: int = 0
) -> Corrupt:
    """So many bits of the rank's n-th call are flipped; which ones, the seed says."""
    return Corrupt(rank=rank, call=call, bits=bits, part=part, seed=seed)


def raise_(
    error: type[BaseException] | BaseException | str,
    *,
    rank: int,
    at: Point,
    message: str | None = None,
) -> Raise:
    """The error is raised in the rank there: a class, its name, or an object with a text."""
    if isinstance(error, BaseException):
        if len(error.args) > 1 or not all(isinstance(each, str) for each in error.args):
            raise UsageError(f"raise_({error!r}): give the class, or an error with one text")
        message, error = (error.args[0] if error.args else None), type(error)
    if isinstance(error, type):
        error = _name_of(error)
    return Raise(error=error, message=message, rank=rank, at=at)


def _set(fault: Fault, **values: Any) -> None:
    """In `__post_init__`: the same value in its one form."""
    for name, value in values.items():
        object.__setattr__(fault, name, value)


def _given(name: str, fault: Fault) -> str:
    return f"{fault.kind}: {name}={getattr(fault, name)!r}"


def _is_rank(rank: Any) -> bool:
    return isinstance(rank, int) and not isinstance(rank, bool) and rank >= 0


def _check_rank(fault: Fault, rank: Any) -> None:
    if not _is_rank(rank):
        raise UsageError(
            f"{fault.kind}: rank={rank!r}: give a rank, from 0 on, e.g. {fault.example}"
        )


def _check_rank_and_point(fault: Fault, rank: Any, at: Any) -> None:
    if not isinstance(at, Point):
        raise UsageError(
            f'{fault.kind}: at={at!r}: give a point, call(17), line("train.py:40"), store(3) '
            f"or moment(12.5), e.g. {fault.example}"
        )
    _check_rank(fault, rank)


def _check_error_class(name: str, kind: Any) -> None:
    if not (isinstance(kind, type) and issubclass(kind, BaseException)):
        raise UsageError(
            f"raise_({name}): there is no such class of errors; e.g. {Raise.example}"
        )


def _name_of(error: type[BaseException]) -> str:
    name, module = error.__qualname__, error.__module__
    if "." in name:
        raise UsageError(
            f"raise_({name}): define the class at the top of a module, so that ranks find it"
        )
    return name if module == "builtins" else f"{module}.{name}"
