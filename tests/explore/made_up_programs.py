"""Programs without torch for tests of exploring: threads that make steps, one after the other.

A thread is a generator. It yields `Step`s, and goes on when the choices of the run let it; or a
pair of a step and values, and is sent the value that was chosen. What the program does between
two steps happens when the step before was made.
"""

from __future__ import annotations

from collections.abc import Callable, Generator
from dataclasses import dataclass, field
from typing import Any

from phalanx.callsite import Mark
from phalanx.core.choices import Choices, Step
from phalanx.explore.one_run import RunOutcome, Subject

Thread = Generator[Any, Any, Any]


def add(key: str) -> Step:
    return Step("store.add", ("store", 0, key), writes=True)


def read(key: str) -> Step:
    return Step("store.get", ("store", 0, key), writes=False)


@dataclass
class MadeUpProgram:
    """`make` returns the threads of the ranks and, for the end, a function that returns their
    values or raises."""

    make: Callable[[int], tuple[list[Thread], Callable[[], list[Any]]]]
    ranks: int = 2
    faults: tuple[Any, ...] = ()
    name: str = "program"
    key: str = "program.py:program"
    takes_any_size: bool = True
    runs: list[int] = field(default_factory=list)
    closed: int = 0

    def run(self, choices: Choices) -> RunOutcome:
        self.runs.append(self.ranks)
        threads, end = self.make(self.ranks)
        outcome = RunOutcome()
        try:
            _run(threads, choices)
            outcome.values = end()
        except AssertionError as error:
            outcome.error = error
        return outcome

    def with_changes(
        self, *, ranks: int | None = None, faults: Any = None, quiet: bool = False
    ) -> Subject:
        return MadeUpProgram(
            self.make,
            self.ranks if ranks is None else ranks,
            self.faults if faults is None else tuple(faults),
            takes_any_size=self.takes_any_size,
            runs=self.runs,
        )

    def close(self) -> None:
        self.closed += 1


class _Strand:
    """What choices ask of a thread that the baton knows."""

    number = 0

    def __init__(self, rank: int, thread: Thread) -> None:
        self.rank = rank
        self.thread = thread
        self.step: Step | None = None


def _run(threads: list[Thread], choices: Choices) -> None:
    strands: list[Any] = []
    for rank, thread in enumerate(threads):
        strand = _Strand(rank, thread)
        strands.append(strand)
        _go_on(strand, choices, None)
    while waiting := [strand for strand in strands if strand.step is not None]:
        strand = waiting[choices.pick_strand(waiting)]
        _go_on(strand, choices, None)


def _go_on(strand: Any, choices: Choices, given: Any) -> None:
    """Until it is at its next step."""
    strand.step = None
    try:
        asked = strand.thread.send(given)
        while isinstance(asked, tuple):
            step, values = asked
            step.mark = step.mark or _mark(strand.thread)
            asked = strand.thread.send(values[choices.pick_value(strand, step, values)])
    except StopIteration:
        return
    asked.mark = asked.mark or _mark(strand.thread)
    strand.step = asked


def _mark(thread: Thread) -> Mark:
    return thread.gi_code, thread.gi_frame.f_lasti
