"""Groups whose calls the referee lets go to the backend at once, in a run with faults.

Else a call that blocks is held until all members have announced it. A member that a fault has
killed, stopped, delayed or cut off does not, and the others are to see what the backend tells
them of it: a lost connection, a timeout of its own. Held again when the member is back, unless
the backend has broken a call of the group off: then its members may be at different calls.
"""

from __future__ import annotations

from collections.abc import Sequence

Cut = tuple[frozenset[int], frozenset[int]]


class LooseGroups:
    """For one call of the program. Empty and without cost in a run without faults."""

    def __init__(self) -> None:
        self.is_faulty = False
        """Whether any fault has struck that keeps ranks from calls."""
        self._absent: list[int] = []
        self._cuts: list[Cut] = []
        self._broken: set[str] = set()

    def leave(self, rank: int) -> None:
        self.is_faulty = True
        self._absent.append(rank)

    def come_back(self, rank: int) -> None:
        if rank in self._absent:
            self._absent.remove(rank)

    def cut(self, one: Sequence[int], other: Sequence[int]) -> None:
        self.is_faulty = True
        self._cuts.append((frozenset(one), frozenset(other)))

    def join(self, one: Sequence[int], other: Sequence[int]) -> None:
        self._cuts.remove((frozenset(one), frozenset(other)))

    def break_off(self, key: str) -> None:
        """The backend has ended a call of this group with an error."""
        if self.is_faulty:
            self._broken.add(key)

    def has(self, key: str, ranks: Sequence[int]) -> bool:
        """Whether calls of this group are not held."""
        if not self.is_faulty:
            return False
        members = frozenset(ranks)
        return (
            key in self._broken
            or not members.isdisjoint(self._absent)
            or any(members & one and members & other for one, other in self._cuts)
        )
