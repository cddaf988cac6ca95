"""Stacks of any depth in a page of text: what repeats is said once, with how often.

Used by everything that shows tracebacks and stacks. Python folds a line that repeats; two
functions that call each other fill 2,000 lines. Here cycles of a few lines are folded as well,
and of what is left the outermost and the innermost lines are shown. Must never look at more of
a stack than once.
"""

from __future__ import annotations

import traceback
from collections.abc import Hashable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from types import TracebackType
from typing import Any, Generic, TypeVar

T = TypeVar("T", bound=Hashable)

LONGEST_CYCLE = 8
SHOWN = 3
"""How often what repeats is shown, as in Python's own tracebacks."""
ENDS = 50
"""So many lines from outside and from inside are shown of what does not repeat."""


@dataclass(frozen=True)
class Repeated:
    """The last `lines` lines follow `times` more times."""

    lines: int
    times: int

    def __str__(self) -> str:
        what = "Previous line" if self.lines == 1 else f"Previous {self.lines} lines"
        return f"[{what} repeated {self.times} more time{'s' if self.times > 1 else ''}]"


@dataclass(frozen=True)
class LeftOut:
    """`lines` lines are not shown."""

    lines: int

    def __str__(self) -> str:
        return f"[{self.lines} more line{'s' if self.lines > 1 else ''}]"


def fold(lines: Iterable[T], ends: int = ENDS) -> list[T | Repeated | LeftOut]:
    """The lines, with marks for what is not shown.

    >>> [str(each) for each in fold("ab" + "c" * 9 + "d")]
    ['a', 'b', 'c', 'c', 'c', '[Previous line repeated 6 more times]', 'd']
    >>> [str(each) for each in fold("xy" * 500 + "z")]
    ['x', 'y', 'x', 'y', 'x', 'y', '[Previous 2 lines repeated 497 more times]', 'z']
    >>> [str(each) for each in fold(range(9), ends=2)]
    ['0', '1', '[5 more lines]', '7', '8']
    """
    folder: _Folder[T] = _Folder(ends)
    for line in lines:
        folder.add(line)
    return folder.end()


class _Folder(Generic[T]):
    def __init__(self, ends: int) -> None:
        self._ends = ends
        self._out: list[T | Repeated | LeftOut] = []
        self._recent: list[T] = []
        """The last lines since something else than a line."""
        self._cycle: list[T] = []
        """What is expected to go on, if something repeats."""
        self._at = 0
        self._times = 0

    def add(self, line: T) -> None:
        if self._cycle:
            if line == self._cycle[self._at]:
                self._at += 1
                if self._at == len(self._cycle):
                    self._at = 0
                    self._times += 1
                return
            self._end_cycle()
        self._put(line)

    def _put(self, line: T) -> None:
        self._out.append(line)
        recent = self._recent
        recent.append(line)
        for size in range(1, LONGEST_CYCLE + 1):
            if len(recent) < SHOWN * size:
                break
            if recent[-1] == recent[-1 - size] and _repeats(recent, size):
                self._cycle, self._at, self._times = recent[-size:], 0, 0
                return
        if len(recent) > 2 * SHOWN * LONGEST_CYCLE:
            del recent[: -SHOWN * LONGEST_CYCLE]
        self._cut()

    def _end_cycle(self) -> None:
        cycle, at = self._cycle, self._at
        if self._times:
            self._out.append(Repeated(len(cycle), self._times))
            self._recent.clear()
        self._cycle = []
        for line in cycle[:at]:
            self._out.append(line)
            self._recent.append(line)

    def _cut(self, most: int = 2) -> None:
        """Keep the list short while lines come, and exact at the end."""
        out, ends = self._out, self._ends
        if len(out) > most * 2 * ends:
            left = out[ends:-ends]
            out[ends:-ends] = [LeftOut(sum(map(_size, left)))]

    def end(self) -> list[T | Repeated | LeftOut]:
        if self._cycle:
            self._end_cycle()
        if len(self._out) > 2 * self._ends + 1:
            self._cut(most=1)
        return self._out


def _repeats(recent: Sequence[Any], size: int) -> bool:
    last = recent[-size:]
    return all(
        last == recent[-size * (n + 1) : len(recent) - size * n] for n in range(1, SHOWN)
    )


def _size(each: object) -> int:
    if isinstance(each, Repeated):
        return each.lines * each.times
    return each.lines if isinstance(each, LeftOut) else 1


# -- tracebacks -------------------------------------------------------------------------------


def error_text(error: BaseException) -> str:
    """What Python prints of an error, with its causes and contexts, folded."""
    # With the limit nothing of any stack is read, which would be looked up line by line.
    shown = traceback.TracebackException(type(error), error, None, limit=0, compact=True)
    _attach(shown, error)
    return "".join(shown.format())


def _attach(shown: Any, error: BaseException) -> None:
    seen: set[int] = set()
    pairs: list[tuple[Any, BaseException | None]] = [(shown, error)]
    while pairs:
        shown, each = pairs.pop()
        if shown is None or each is None or id(shown) in seen:
            continue
        seen.add(id(shown))
        shown.stack = _FoldedTraceback(each.__traceback__)
        pairs += [(shown.__cause__, each.__cause__), (shown.__context__, each.__context__)]
        inner = getattr(shown, "exceptions", None)
        pairs += zip(inner or (), getattr(each, "exceptions", ()), strict=False)


class _FoldedTraceback(list[Any]):
    """In place of the stack that `traceback` formats."""

    def __init__(self, trace: TracebackType | None) -> None:
        super().__init__(fold(map(_Step, _steps(trace))))

    def format(self, **how: Any) -> list[str]:
        lines: list[str] = []
        for part in self:
            if isinstance(part, _Step):
                one = TracebackType(None, part.frame, part.lasti, part.trace.tb_lineno)
                lines += traceback.extract_tb(one).format(**how)
            else:
                lines.append(f"  {part}\n")
        return lines


def _steps(trace: TracebackType | None) -> Iterator[TracebackType]:
    while trace is not None:
        yield trace
        trace = trace.tb_next


class _Step:
    """An entry of a traceback; equal to others of the same instruction."""

    __slots__ = ("code", "frame", "lasti", "trace")

    def __init__(self, trace: TracebackType) -> None:
        self.trace = trace
        self.frame = trace.tb_frame
        self.code = self.frame.f_code
        self.lasti = trace.tb_lasti

    def __eq__(self, other: object) -> bool:
        same = isinstance(other, _Step) and self.lasti == other.lasti
        return same and self.code is other.code  # type: ignore[attr-defined]

    def __hash__(self) -> int:
        return hash((id(self.code), self.lasti))
