"""What happens before what, between ranks: who can know of which event of whom.

Used by checks of races, which begin it at the first event that could matter: what came before
needs no order. Knowledge is a mapping from rank to how many of its events are known; it is
never changed in place, so ranks that know the same share it, and most merges end at a glance.
More order than there is may be assumed, never less: a check must not call ordered things
unordered.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import NamedTuple

Known = Mapping[int, int]

NOTHING: Known = {}

MOST_ADDED = 128
"""How much of a count is remembered one by one."""


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


class Addition(NamedTuple):
    """A rank added to a count: event `number` of the rank, and what it knew then."""

    rank: int
    number: int
    amount: int
    known: Known


class Count:
    """A number that ranks add to. Whoever finds that it is so large knows of those without whom
    it could not be, and of no others: they may have come later just as well."""

    def __init__(self) -> None:
        self._added: list[Addition] = []
        self._all: Known = NOTHING
        self.is_plain = True
        """Whether it is but the sum of what is remembered."""

    def add(self, added: Addition) -> None:
        self._all = merged(self._all, added.known)
        self._added.append(added)
        if added.amount < 0 or len(self._added) > MOST_ADDED:
            self.is_plain = False

    def times(self, rank: int) -> int:
        """How often a rank has added."""
        return sum(each.rank == rank for each in self._added)

    def needed(self, least: int) -> Known:
        """What is known to whoever finds the count at `least` or more.

        >>> count = Count()
        >>> for rank in (0, 1, 0):
        ...     count.add(Addition(rank, 1, 1, {rank: 1}))
        >>> count.needed(3), count.needed(2)
        ({0: 1, 1: 1}, {0: 1})
        """
        if not self.is_plain or least >= sum(each.amount for each in self._added):
            return self._all
        found = NOTHING
        for each in self._added:
            others = (
                other.amount
                for other in self._added
                if other is not each and not knows(other.known, each.rank, each.number)
            )
            if sum(others) < least:
                found = merged(found, each.known)
        return found
