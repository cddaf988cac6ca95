"""Find those who can never move again while others still work, by looking now and then.

Used by the referee. Nothing is done on the path of a call: whoever has the same position at two
looks is *steady*, and only a new set of steady ones is judged, over the wait graph. The engine
may let the others run on meanwhile; the result is exact all the same, because whoever is not
steady counts as free, what a wait needs only ever becomes less, and those that need only each
other stay as they are.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass
from typing import Generic, TypeVar

from phalanx.matching.waitgraph import Node, find_stuck

SETTLED = 0.5
"""Seconds that a set must stay the same if it rests on threads that wait out of our sight: a
thread that was given work may take a while until it shows."""

Waiting = TypeVar("Waiting", bound=Hashable)
"""What waits, in the engine's terms: a strand, an announced call."""

WaitPosition = tuple[int, object]
"""Where it stands: two looks see the same one if the numbers are equal and the objects are
one."""


@dataclass(frozen=True)
class Standing(Generic[Waiting]):
    """All that could move, at one instant. The first nodes are those of `everyone`, in order;
    more may follow (callbacks). Only a set with one of `blocked` in it is worth a verdict.
    `unseen` says that some of it rests on threads that wait out of our sight."""

    everyone: Sequence[Waiting]
    nodes: Sequence[Node]
    blocked: frozenset[Waiting]
    unseen: bool = False


Stand = Callable[[Mapping[Waiting, WaitPosition]], Standing[Waiting] | None]
"""Takes the steady ones; None if nothing can be said at this moment."""


class PartialLook(Generic[Waiting]):
    """What was seen at the last look, and whether it is judged."""

    def __init__(self) -> None:
        self._seen: Mapping[Waiting, WaitPosition] = {}
        self._judged: object = None
        self._since: float | None = None

    def look(
        self,
        seen: Mapping[Waiting, WaitPosition],
        ended: Hashable,
        now: float,
        stand: Stand[Waiting],
    ) -> dict[Waiting, WaitPosition]:
        """Those that can never move, with their positions; said once of each set. `seen` are
        the positions of all that wait without counting on a timer, `ended` changes whenever
        somebody begins or ends."""
        before, self._seen = self._seen, seen
        steady = {who: at for who, at in seen.items() if _is_same(before.get(who), at)}
        if not steady:
            return {}
        key = ended, [(id(who), at[0], id(at[1])) for who, at in steady.items()]
        if key != self._judged:
            self._judged, self._since = key, now
        if self._since is None:
            return {}
        standing = stand(steady)
        if standing is None:
            return {}
        everyone = standing.everyone
        stuck = [everyone[at] for at in find_stuck(standing.nodes) if at < len(everyone)]
        if standing.blocked.isdisjoint(stuck):
            self._since = None
            return {}
        if standing.unseen and now - self._since < SETTLED:
            return {}
        self._since = None
        return {who: steady[who] for who in stuck}


def _is_same(before: WaitPosition | None, now: WaitPosition) -> bool:
    return before is not None and before[0] == now[0] and before[1] is now[1]
