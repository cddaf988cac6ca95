"""What the ranks of one world share, and what each has of its own.

The running layer makes one `Session` per world; each thread of a rank finds its
`RankContext` through `here.strand.local`. Only the holder of the baton touches shared parts.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Iterable
from typing import Any

from torch.distributed.distributed_c10d import Store

from phalanx.core.baton import Strand, here
from phalanx.core.meeting import Assembly, Call, Step
from phalanx.errors import VerdictError
from phalanx.kinds import ALL, ALWAYS
from phalanx.model import Tally, Verdict, Wait

JOURNAL = 65536
LEAST_JOURNAL = 128
"""How many entries are kept: of all ranks together, under a profile, and of each at least."""
MOST_WATCHED, LEAST_WATCHED = 128, 16


class TorchState:
    """What `torch.distributed` keeps once per process, held here once per rank."""

    def __init__(self) -> None:
        self.default_pg: Any = None
        self.pg_map: dict[Any, Any] = {}
        self.pg_names: dict[Any, str] = {}
        self.pg_group_ranks: dict[Any, dict[int, int]] = {}
        self.pg_backend_config: dict[Any, str] = {}
        self.group_count = 0
        self.tags_to_pg: dict[str, list[Any]] = {}
        self.pg_to_tag: dict[Any, str] = {}
        self.pg_coalesce_state: dict[Any, list[Any]] = {}
        self.comms: list[Any] = []


class RankContext:
    """One rank: its number, its environment, its torch state and what it did last."""

    def __init__(self, session: Session, rank: int, environ: dict[str, str]) -> None:
        self.session = session
        self.rank = rank
        self.environ = environ
        self.torch_state = TorchState()
        self.saved: dict[str, Any] = {}
        self.last_call: Call | None = None
        self.initialised = False
        self.incarnations: dict[str, int] = {}
        self.helpers: list[threading.Thread] = []
        self.joining: threading.Thread | None = None
        """The thread of its own that the rank waits for after it has returned."""
        self.tell_failure: Callable[[BaseException], None] | None = None
        """For a body that fails and has to clean up: the others stop at once."""
        self.journal: deque[Step] = deque(maxlen=session.journal_length)
        """What the rank did, oldest first, as far as kept; for checks that look back."""
        self.stock: tuple[Any, ...] | None = None
        """What `heirloom.py` found when the default group was new."""


class Session:
    """The shared half of a world: where groups meet, and the stores by address."""

    def __init__(
        self,
        size: int,
        *,
        report: Callable[[Verdict], VerdictError],
        environs: Iterable[dict[str, str]],
        checked: bool = True,
        kinds: frozenset[str] = ALL,
        profile: str | None = None,
    ) -> None:
        self.size = size
        self.report = report
        self.checked = checked
        self.kinds = kinds if checked else ALWAYS
        """What is checked: names of `phalanx.kinds`."""
        self.profile = profile
        """The backend by whose rules hazards are errors, if one was asked for."""
        self.journal_length = max(LEAST_JOURNAL, JOURNAL // size)
        self.findings: list[Verdict] = []
        """Warnings that checks found on the way; told when the run has succeeded."""
        self.ranks = [RankContext(self, rank, env) for rank, env in enumerate(environs)]
        self.assemblies: dict[tuple[str, int], Assembly] = {}
        self._ended = [0, 0, 0]
        self.leftovers: list[Wait] = []
        """What was still open in groups when their last member destroyed them."""
        self.stores: dict[str, Store] = {}
        self.store_waiters: list[Strand] = []

    def end_assembly(self, key: tuple[str, int]) -> None:
        """The last member has destroyed its end of the group."""
        met = self.assemblies.pop(key, None)
        if met is not None:
            self._ended = [a + b for a, b in zip(self._ended, _counts(met), strict=True)]

    def tally(self) -> Tally:
        """How many collectives and messages there were, on how many groups."""
        all_counts = [self._ended, *map(_counts, self.assemblies.values())]
        collectives, messages, groups = map(sum, zip(*all_counts, strict=True))
        return Tally(self.size, collectives, messages, groups)

    def assembly(self, key: tuple[str, int], name: str, ranks: tuple[int, ...]) -> Assembly:
        """The meeting place of a group; the first member to come makes it."""
        found = self.assemblies.get(key)
        if found is None:
            shown = "world" if len(ranks) == self.size and name == "0" else f"group {name}"
            found = self.assemblies[key] = Assembly(shown, ranks)
        return found


def _counts(met: Assembly) -> tuple[int, int, int]:
    collectives, messages = max(met.next_number), met.messages
    return collectives, messages, int(collectives > 0 or messages > 0)


def context_here() -> RankContext | None:
    """The rank that the calling thread belongs to, None outside of runs."""
    strand = here.strand
        self.notes: dict[str, Any] = {}
        """What checks remember about the run, by their kind."""
        self.watched = _watched(size) if "crossed-order" in self.kinds else 0
        """Of how many calls in a row `observers/crossed_order.py` takes notes."""
    return strand.local if strand is not None else None
def _watched(size: int) -> int:
    """Fewer if there are many ranks."""
    return min(MOST_WATCHED, max(LEAST_WATCHED, MOST_WATCHED * 16 // size))


