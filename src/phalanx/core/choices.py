"""Choices: the points of a run at which two executions of one program may differ.

Without choices a run has one order, by its schedule. A run that is explored has a `Choices`
object: each strand says what it is about to do (a `Step`) and the object picks who goes on, and
where an operation may end in several ways, which. The baton and the backend ask; the strategies
of `phalanx.explore` answer. What no rank can tell apart is never asked.

An answer must be a pure function of what was asked so far: no clock, no address, no thread id.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    from phalanx.core.strand import Strand


class Step:
    """What a strand is about to do that others may notice. Two steps that have a place in
    common, of which one writes, may give another run in the other order; others commute."""

    __slots__ = ("asks", "is_possible", "kind", "mark", "offer", "parks", "places", "writes")

    def __init__(
        self,
        kind: str,
        *places: Hashable,
        writes: bool,
        mark: Any = None,
        is_possible: Callable[[], bool] | None = None,
    ) -> None:
        self.kind = kind
        """What it is, as a reader of the story knows it: "store.set", "send", "poll", ..."""
        self.places = places
        """What it touches, by names that are equal in all runs of the program."""
        self.writes = writes
        self.mark = mark
        """The program's line, as `callsite.mark` gives it."""
        self.is_possible = is_possible
        """Whether the strand could go on now; None: it can. Asked again before each pick."""
        self.asks: Hashable = None
        """What it asks of its places, where that varies: who asks for something else does not
        look at the same thing again."""
        self.parks = False
        """Whether the strand, let go on although it could not make the step, parks until it
        can; else it looks in vain."""
        self.offer: Any = None
        """What the choices of the run make of it, so that they need not do so again."""

    def __repr__(self) -> str:
        words = ", ".join(map(repr, (self.kind, *self.places)))
        return f"Step({words}, writes={self.writes})"


class Choices(Protocol):
    """Answers what may differ. The caller holds the baton or its mutex: never block."""

    def pick_strand(self, candidates: Sequence[Strand]) -> int:
        """The index of the one that makes its step (`strand.step`) now. Also asked if there is
        only one, so that all steps are known. They are in order of rank, a rank's own thread
        before those that it started; the order is the same in each run."""
        ...

    def pick_value(self, strand: Strand, step: Step, values: Sequence[str]) -> int:
        """In which of these ways the step ends; 0 is the usual one. Also asked if there is only
        one, where there might be more in another order."""
        ...

    def wait(self, strand: Strand, step: Step) -> None:
        """The strand would make this step and cannot; it waits until it can."""
        ...

    def latest_value(self, strand: Strand) -> Any:
        """Names the value that was picked last for this strand, for `in_vain`."""
        ...

    def in_vain(self, value: Any, instead: str) -> None:
        """What this value promises cannot come: it is as if `instead`, which was offered too,
        had been picked."""
        ...

    def stamp(self, strand: Strand) -> Any:
        """All that the strand has done or heard of so far; to be given to `learn` later."""
        ...

    def learn(self, strand: Strand, stamps: Sequence[Any]) -> None:
        """What these stamps tell happened before what the strand does from now on."""
        ...
