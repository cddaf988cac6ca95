"""What a run with faults has lost so far: ranks, connections, stores.

`Session.losses` holds it, as `RunLosses`. It is None in runs without faults, so that these pay
nothing. The other modules of this folder change it, while the caller holds the baton.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

from phalanx.core.strand import Strand

if TYPE_CHECKING:
    from phalanx.backend.session import Session


class Injuries:
    """Of one run."""

    def __init__(self) -> None:
        self.dead: dict[int, str] = {}
        """Ranks whose processes are gone, and how they say that."""
        self.cuts: set[frozenset[int]] = set()
        """Pairs of ranks between which nothing arrives."""
        self.losses = 0
        """How often all stores have lost their server."""
        self.server_is_away = False
        """Whether nobody serves stores to new connections."""
        self.lost_stores: dict[int, Any] = {}
        """Stores whose server is gone for good, by their identity."""
        self.served_ports: dict[int, set[int]] = {}
        """The ports of the stores that each rank's own process serves."""
        self.lost_ports: set[int] = set()
        self.connected: dict[tuple[int, int], int] = {}
        """Before how many of the `losses` a rank has connected to a store: the rank, and the
        store's identity. Not said: before the first one."""
        self.sent_in_vain: Counter[tuple[int, int]] = Counter()
        """How many operations have used such a connection since it was lost."""
        self.cut_off: list[Strand] = []
        """Strands that wait for a store from which a cut separates them."""

    def is_cut(self, one: int, other: int) -> bool:
        return bool(self.cuts) and frozenset((one, other)) in self.cuts


def injuries_of(session: Session) -> Injuries:
    found: Injuries = session.losses  # the engine has called `begin_losses`
    return found


def pairs(one: Iterable[int], other: Iterable[int]) -> set[frozenset[int]]:
    others = list(other)
    return {frozenset((a, b)) for a in one for b in others}
