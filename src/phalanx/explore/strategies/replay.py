"""The default order, but for given deviations: how a run is repeated."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from phalanx.explore.trace import Candidate, Choice, Trace


class FollowedChoices:
    """Runs once. `missed` says whether a deviation could not be followed: the program is not
    the same any more, or has a source of chance that nobody controls."""

    name = "replay"

    def __init__(self, deviations: Mapping[int, int]) -> None:
        self._deviations = deviations
        self._is_over = False
        self.missed = False

    def begin(self) -> bool:
        self._is_over, before = True, self._is_over
        return not before

    def pick(self, candidates: Sequence[Candidate], usual: int, trace: Trace) -> int:
        return self._follow(len(trace.choices), usual, len(candidates))

    def pick_value(self, step: Candidate, values: Sequence[str], trace: Trace) -> int:
        return self._follow(len(trace.choices), 0, len(values))

    def made(self, choice: Choice) -> None: ...

    def in_vain(self, index: int) -> None: ...

    def end(self, trace: Trace) -> None:
        self.missed |= any(index >= len(trace.choices) for index in self._deviations)

    def _follow(self, index: int, usual: int, count: int) -> int:
        chosen = self._deviations.get(index, usual)
        if chosen >= count:
            self.missed = True
            return usual
        return chosen
