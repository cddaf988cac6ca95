"""What happens before what, between ranks: who can know of which event of whom.

Used by checks of races, which begin it at the first event that could matter: what came before
needs no order. Knowledge is a mapping from rank to how many of its events are known; it is
never changed in place, so ranks that know the same share it, and most merges end at a glance.
More order than there is may be assumed, never less: a check must not call ordered things
unordered.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

Known = Mapping[int, int]

NOTHING: Known = {}


class Ordering:
    """What each rank knows."""

    def __init__(self, size: int) -> None:
        self._known: list[Known] = [NOTHING] * size

    def known_to(self, rank: int) -> Known:
        return self._known[rank]

    def event(self, rank: int) -> int:
        """Something happens on a rank; its number there, from 1."""
        known = self._known[rank]
        number = known.get(rank, 0) + 1
        self._known[rank] = {**known, rank: number}
        return number

    def learn(self, rank: int, news: Known) -> None:
        """A rank hears of what another one knew."""
        self._known[rank] = merged(self._known[rank], news)

    def meet(self, ranks: Iterable[int]) -> None:
        """All of these ranks know what any of them knew."""
        members = list(ranks)
        first = self._known[members[0]]
        if all(self._known[rank] is first for rank in members):
            return
        for rank in members:
            first = merged(first, self._known[rank])
        for rank in members:
            self._known[rank] = first


def merged(one: Known, other: Known) -> Known:
    """
    >>> merged({0: 1, 1: 2}, {1: 3})
    {0: 1, 1: 3}
    """
    if one is other or not other:
        return one
    if not one:
        return other
    found = dict(one)
    for rank, number in other.items():
        if found.get(rank, 0) < number:
            found[rank] = number
    return found


def knows(known: Known | None, rank: int, number: int) -> bool:
    """Whether event `number` of `rank` is among what is known."""
    return known is not None and known.get(rank, 0) >= number
