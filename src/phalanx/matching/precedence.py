"""Programs that would stand still if every call waited for its counterpart. Pure and fast.

Used by `hazards`. A *lane* is what one thread of a rank issued, in order: a sequence of units.
A *unit* is what is launched at once: one call, or a batch. It takes part in *joints*, each of
which is what several lanes do together: a collective, or a message. A joint is over when all
lanes that take part have reached it, and a lane leaves a unit when all joints of it are over.

That is the precedence graph over joints, walked instead of built: an edge leads from what a
lane issues first to what it issues next, and lanes that cannot be walked to their end stand on
a cycle. A joint waits only for those that are known to take part, so that a record that was cut
off, or a message that nobody received, hides a cycle but never makes one up.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Hashable, Iterable, Iterator, Sequence
from dataclasses import dataclass

Joint = Hashable
Unit = Sequence[Joint]
Lane = Sequence[Unit]


@dataclass(frozen=True)
class Hop:
    """One lane of a cycle. It stands at unit `at`, where `waits` is not over, and issues
    `owes`, which the lane before it in the cycle waits for, only in unit `later`."""

    lane: int
    at: int
    waits: Joint
    later: int
    owes: Joint


Cycle = tuple[Hop, ...]


def find_cycles(lanes: Sequence[Lane], *, most: int = 1000) -> list[Cycle]:
    """Cycles in the order in which they come up, at most so many; each from its lowest lane.

    >>> find_cycles([[["a"], ["b"]], [["a"], ["b"]]])
    []
    >>> [[(hop.lane, hop.waits) for hop in cycle]
    ...  for cycle in find_cycles([[["a"], ["b"]], [["b"], ["a"]]])]
    [[(0, 'a'), (1, 'b')]]
    """
    walk = _Walk(lanes)
    found: list[Cycle] = []
    while len(found) < most:
        stuck = walk.run()
        if stuck is None:
            break
        cycle = walk.cycle_from(stuck)
        found.append(cycle)
        walk.release(hop.lane for hop in cycle)
    return found


class _Walk:
    """Where each lane stands."""

    def __init__(self, lanes: Sequence[Lane]) -> None:
        self._lanes = lanes
        self._missing = Counter(joint for lane in lanes for unit in lane for joint in unit)
        self._waiting: dict[Joint, list[tuple[int, int]]] = {}
        self._at = [-1] * len(lanes)
        self._open = [0] * len(lanes)
        self._movable = deque(range(len(lanes)))
        self._first_behind = 0
        self._places: dict[Joint, list[tuple[int, int]]] | None = None

    def run(self) -> int | None:
        """Go on until nobody can; the lowest lane that is not at its end."""
        while self._movable:
            self._advance(self._movable.popleft())
        for lane in range(self._first_behind, len(self._lanes)):
            if self._at[lane] < len(self._lanes[lane]):
                self._first_behind = lane
                return lane
        return None

    def cycle_from(self, lane: int) -> Cycle:
        """Follow who keeps whom, from a lane that cannot move, until one comes up again."""
        path: list[int] = []
        kept: dict[int, tuple[Joint, int, int]] = {}
        while lane not in kept:
            joint = self._open_joint(lane)
            other, unit = self._who_owes(joint)
            kept[lane] = (joint, other, unit)
            path.append(lane)
            lane = other
        ring = path[path.index(lane) :]
        start = ring.index(min(ring))
        return tuple(self._hops(ring[start:] + ring[:start], kept))

    def release(self, lanes: Iterable[int]) -> None:
        """Let lanes go past where they stand, as an asynchronous call does, to look on."""
        for lane in lanes:
            self._open[lane] = 0
            self._movable.append(lane)

    def _advance(self, lane: int) -> None:
        units = self._lanes[lane]
        at = self._at[lane] = self._at[lane] + 1
        if at >= len(units):
            return
        for joint in units[at]:
            self._missing[joint] -= 1
        still = 0
        for joint in dict.fromkeys(units[at]):
            if self._missing[joint]:
                self._waiting.setdefault(joint, []).append((lane, at))
                still += 1
            else:
                self._finish(joint)
        self._open[lane] = still
        if not still:
            self._movable.append(lane)

    def _finish(self, joint: Joint) -> None:
        for lane, at in self._waiting.pop(joint, ()):
            if self._at[lane] == at and self._open[lane]:
                self._open[lane] -= 1
                if not self._open[lane]:
                    self._movable.append(lane)

    def _open_joint(self, lane: int) -> Joint:
        return next(j for j in self._lanes[lane][self._at[lane]] if self._missing[j])

    def _who_owes(self, joint: Joint) -> tuple[int, int]:
        """The lowest lane that has not come to the joint yet, and where it will."""
        if self._places is None:
            self._places = {}
            for lane, units in enumerate(self._lanes):
                for at, unit in enumerate(units):
                    for each in unit:
                        self._places.setdefault(each, []).append((lane, at))
        return next(place for place in self._places[joint] if place[1] > self._at[place[0]])

    def _hops(self, ring: list[int], kept: dict[int, tuple[Joint, int, int]]) -> Iterator[Hop]:
        for index, lane in enumerate(ring):
            owed, _, later = kept[ring[index - 1]]
            yield Hop(lane, self._at[lane], kept[lane][0], later, owed)
