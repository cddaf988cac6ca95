"""Where a run leaves the default order, said so that it still means something in another run.

A token counts choices from the beginning. That repeats a run exactly, but one choice less moves
all that follow. A `Deviation` names the moment by the thread whose turn it was and by how many
choices that thread had made, and who went first by its thread. So some of the deviations of a
run can be taken out, and the others stay what they were. No torch.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Sequence
from typing import NamedTuple

from phalanx.explore.trace import Candidate, Choice, Thread, Trace


class Deviation(NamedTuple):
    """`thread`, which has made `number` choices, would have gone on; `chosen` did. Of a value:
    it became `chosen`, by its text, and not the usual one."""

    thread: Thread
    number: int
    chosen: Thread | str


def deviations_in(trace: Trace) -> tuple[Deviation, ...]:
    """All of them, in order. Several may be at one moment: then several others went first, one
    after the other."""
    made: dict[Thread, int] = {}
    found = []
    for choice in trace.choices:
        if not choice.is_usual:
            found.append(_deviation(choice, made))
        made[choice.thread] = made.get(choice.thread, 0) + 1
    return tuple(found)


def _deviation(choice: Choice, made: dict[Thread, int]) -> Deviation:
    if choice.values:
        return Deviation(choice.thread, made.get(choice.thread, 0), choice.value)
    thread = choice.candidates[choice.usual].thread
    return Deviation(thread, made.get(thread, 0), choice.thread)


class FollowedDeviations:
    """The default order, but for these deviations. One whose moment does not come, or that
    wants a thread to go first which cannot, is left out."""

    name = "deviations"

    def __init__(self, deviations: Iterable[Deviation]) -> None:
        self._waiting: dict[tuple[Thread, int], deque[Thread | str]] = {}
        for thread, number, chosen in deviations:
            self._waiting.setdefault((thread, number), deque()).append(chosen)
        self._made: dict[Thread, int] = {}
        self._is_over = False

    def begin(self) -> bool:
        self._is_over, before = True, self._is_over
        return not before

    def pick(self, candidates: Sequence[Candidate], usual: int, trace: Trace) -> int:
        threads = [candidate.thread for candidate in candidates]
        return self._follow(threads[usual], threads, usual)

    def pick_value(self, step: Candidate, values: Sequence[str], trace: Trace) -> int:
        return self._follow(step.thread, values, 0)

    def made(self, choice: Choice) -> None:
        self._made[choice.thread] = self._made.get(choice.thread, 0) + 1

    def in_vain(self, index: int) -> None: ...

    def end(self, trace: Trace) -> None: ...

    def _follow(self, thread: Thread, offered: Sequence[Thread | str], usual: int) -> int:
        wanted = self._waiting.get((thread, self._made.get(thread, 0)))
        while wanted:
            chosen = wanted.popleft()
            if chosen in offered:
                return offered.index(chosen)
        return usual
