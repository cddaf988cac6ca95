"""What the ranks of one world share, and what each has of its own.

The threads engine makes one `Session` per world; each thread of a rank finds its
`RankContext` through `here.strand.local`. Only the holder of the baton touches shared parts.
"""

from __future__ import annotations

import itertools
import sys
import threading
from collections.abc import Callable, Hashable, Iterable, Sequence
from dataclasses import replace
from typing import Any

import torch
from torch.distributed.distributed_c10d import Store

from phalanx import callsite
from phalanx.backend.devices.device_map import DeviceMap
from phalanx.backend.evidence.group_watch import GroupWatch
from phalanx.backend.work.polling import Versions
from phalanx.backend.work.promises import Promise
from phalanx.checks.message_race import KIND, RaceWatch
from phalanx.core.strand import Strand, here, thread_of
from phalanx.errors import VerdictError
from phalanx.journal.events import BufferTouched
from phalanx.journal.writer import JournalWriter
from phalanx.matching.mailboxes import GroupMailbox
from phalanx.matching.referee import Referee
from phalanx.matching.slots import Call
from phalanx.model import Leave, Tally, Verdict, Wait
from phalanx.options import Options
from phalanx.system import monotonic

MEETING_KEY = "phalanx"

MOST_WATCHED, LEAST_WATCHED = 128, 16


Environ = dict[str, str] | Callable[[], dict[str, str]]
"""A rank's environment, or how it is made."""


class Places(dict[Any, dict[int, int]]):
    """For each group of a rank, the places of its members. torch makes such a table for each
    rank and never changes it. Equal ones become one: a thousand ranks would keep a million
    numbers."""

    def __init__(self, known: dict[Any, dict[int, int]]) -> None:
        super().__init__()
        self._known = known

    def __setitem__(self, group: Any, places: dict[int, int]) -> None:
        key = tuple(places)
        found = self._known.setdefault(key, places)
        super().__setitem__(group, found if found == places else places)


class TorchState:
    """What `torch.distributed` keeps once per process, held here once per rank."""

    def __init__(self, places: dict[Any, dict[int, int]]) -> None:
        self.default_pg: Any = None
        self.pg_map: dict[Any, Any] = {}
        self.pg_names: dict[Any, str] = {}
        self.pg_group_ranks = Places(places)
        self.pg_backend_config: dict[Any, str] = {}
        self.group_count = 0
        self.tags_to_pg: dict[str, list[Any]] = {}
        self.pg_to_tag: dict[Any, str] = {}
        self.pg_coalesce_state: dict[Any, list[Any]] = {}
        self.comms: list[Any] = []


class RankContext:
    """One rank: its number, its environment, its torch state and what it did last."""

    def __init__(
        self, session: Session, rank: int, environ: Environ, state: TorchState | None
    ) -> None:
        self.session = session
        self.rank = rank
        self._environ = environ
        self.torch_state = state or TorchState(session.places)
        self.saved: dict[str, Any] = {}
        self.last_call: Call | None = None
        self.initialised = False
        self.incarnations: dict[str, int] = {}
        self.helpers: list[threading.Thread] = []
        self.uses_pools = False  # whether threads of a pool have worked for the rank
        self.makes: list[Any] | None = None
        """What the rank gives to torch's maker of groups, while somebody wants to know."""
        self.held: dict[Strand, Call] = {}
        self.holds: dict[int, int] = {}
        """Calls that are held up for a moment, and how often for which thread; see
        `evidence/thread_holds.py`."""
        self.callback_threads: set[Strand] = set()
        """Threads of ours that run pending callbacks of the rank's."""
        self.joining: threading.Thread | None = None
        """The thread of its own that the rank waits for after it has returned."""
        self.left: Leave | None = None
        """How it left its program, once it has."""
        self.caught: str | None = None
        """The last signal that it has caught."""
        self.tell_failure: Callable[[BaseException], None] | None = None
        """For a body that fails and has to clean up: the others stop at once."""
        self.ring = session.journal.rings[rank]
        """Its part of the journal."""
        self.now = session.now
        """The journal's clock."""
        self.noted: set[Any] = set()
        self.looks: dict[Any, int] = {}
        """What is noted there once, and how often somebody has looked; see
        `journal/writer.py`."""
        self.batches: dict[Strand, list[int]] = {}
        """What `batch_isend_irecv` is at, by thread: how many messages are still to come, and
        the number of the batch."""
        self.in_flight: Any = None
        """The `buffer_guard.Book` of a rank that has made asynchronous calls."""
        self.replicas: Any = None
        """The `ReplicaWatch` of a rank that has stepped an optimizer."""
        self.stock: tuple[Any, ...] | None = None
        """What `group_reuse.py` found when the default group was new."""
        self.untouched = False
        """Whether it found the same at the end."""
        self.strikes: Any = None
        """What a plan of faults has for this rank: is told of each call, of each operation of
        the program on a store, and of each thread. None without one."""
        self.invariants: dict[str, Callable[[Strand], None]] = {}
        """What is to hold at each call of the rank, by its words; see `core/invariants.py`."""

    @property
    def environ(self) -> dict[str, str]:
        """The rank's own. Made when somebody looks, if the engine says how: small tests never
        do, and copying it takes as long as a hand-over for each rank."""
        if not isinstance(self._environ, dict):
            self._environ = self._environ()
        return self._environ

    # -- what `work/buffer_guard.py` asks of a rank -----------------------------------------

    @property
    def guards(self) -> bool:
        return self.session.guards

    @property
    def expects_waits(self) -> bool:
        return "unwaited-work" in self.session.kinds

    def report(self, verdict: Verdict) -> VerdictError:
        return self.session.report(verdict)

    def note_flight(self) -> None:
        self.session.flown = True

    def note_touch(self, call: Call | None, how: str) -> None:
        """The program used a tensor of a call in flight, at the line that is running."""
        ident = None if call is None or call.serial is None else (self.rank, call.serial)
        thread, mark = thread_of(here.strand), callsite.mark(2)
        self.ring.add(BufferTouched(self.now(), self.rank, thread, mark, ident, how))

    def batch_of(self, strand: Strand) -> int | None:
        """The batch that the next message of this thread belongs to. One of a batch may have
        been refused, and then the others never came."""
        found = self.batches.get(strand)
        if found is None:
            return None
        if not _is_batching():
            del self.batches[strand]
            return None
        found[0] -= 1
        if not found[0]:
            del self.batches[strand]
        return found[1]


class Session:
    """The shared half of a world: where groups meet, and the stores by address."""

    def __init__(
        self,
        options: Options,
        *,
        report: Callable[[Verdict], VerdictError],
        environs: Iterable[Environ],
        devices: DeviceMap | None = None,
        states: Iterable[TorchState] = (),
        now: Callable[[], float] = monotonic,
    ) -> None:
        """`states` are those that another session has left to this one; `now` is the clock of
        the journal."""
        size, profile = options.ranks, options.profile
        self.size = size
        self.now = now
        self.devices = devices
        """The GPUs that ranks may name, and what they mean; None: those that are there."""
        self.report = report
        self.checked = options.checked
        self.kinds = options.kinds
        """What is checked: names of `phalanx.kinds`."""
        self.profile = profile
        """The backend by whose rules hazards are errors, if one was asked for."""
        self.has_nccl = False
        """Whether a group asks for NCCL."""
        self.told: set[Verdict] = set()
        """Hazards of former runs of the same world."""
        self.batch_numbers = itertools.count(1)
        self.guards = "in-flight-buffer" in self.kinds
        """Whether the tensors of asynchronous operations are watched."""
        self.completion = options.moment
        """When asynchronous operations complete: one of `kinds.MOMENTS`."""
        self.tracks = (
            self.guards or "unwaited-work" in self.kinds or self.completion != "earliest"
        )
        """Whether it matters who made an asynchronous call."""
        self.flown = False
        """Whether any rank has made an asynchronous call of its own."""
        self.network = options.network
        """What operations cost; None: nothing."""
        self.busy: dict[Hashable, float] = {}
        """Until when groups and links are in use, by the clock of the run, where they cost."""
        self.seed = options.seed
        self.drawn = 0
        self.put_off: list[Any] = []
        """Operations that are to complete later."""
        self.journal = JournalWriter(size, in_full=profile is not None, now=now)
        """What happened in the run that is going on."""
        self._has_run = False
        self.raised: list[Verdict] = []
        """What became an error in ranks, also if the program caught it."""
        self.unheard: list[tuple[Sequence[BaseException], Sequence[Call]]] = []
        """Operations that ended with such errors, which nobody may ever wait for."""
        self.group_watch = GroupWatch()
        """Groups that are alive, by where they were made."""
        self.makes_world = False
        """Whether the engine makes the default group, and ends it, and not the program."""
        self.races: RaceWatch | None = None
        """What happens before what, once there is something that could race."""
        self.watched = _watched(size) if "crossed-order" in self.kinds else 0
        """Of how many calls in a row `evidence/order_notes.py` takes notes."""
        self.compares_roots = "rank-space" in self.kinds
        self.follows_results = "lost-result" in self.kinds
        self.places: dict[Any, dict[int, int]] = {}
        """Where the members of groups are in them, by the members."""
        self.ranks = [
            RankContext(self, rank, environ, state)
            for rank, (environ, state) in enumerate(itertools.zip_longest(environs, states))
        ]
        self.referee = Referee(self.kinds)
        self.mailboxes: dict[tuple[str, int], GroupMailbox] = self.referee.mailboxes
        self._ended = [0, 0, 0]
        self.leftovers: list[Wait] = []
        """What was still open in groups when their last member destroyed them."""
        self.meshes: dict[Any, Any] = {}
        """The groups of each kind of mesh; see `mesh_groups.py`."""
        self.stores: dict[str, Store] = {}
        self.group_class: Any = None
        """What groups are made of in runs with faults; None: the usual class."""
        self.fault_lines: list[tuple[str, str]] = []
        """What faults have happened, for reports: labels and texts."""
        self.happened: list[str] = []
        """The same as one writes them."""
        self.meeting_key = MEETING_KEY
        """Where the members of a group agree in its store who they are."""
        self.store_waiters: list[Strand] = []
        self.store_names: dict[Any, int] = {}
        """The stores that the program uses, in the order of their first use."""
        self.store_versions = Versions()
        """How often keys were changed, in runs that are explored."""
        self.tcp_servers: dict[int, Any] = {}
        """In such runs: the `Server` of each port where a rank serves a `TCPStore`."""
        self.promises: list[Promise] = []
        """What such a run has chosen that is still to come, in the order in which it was."""
        self.losses: Any = None
        """What a run with faults has lost: the `Injuries` of `backend/losses/`."""
        self.renumber: Callable[[RankContext, int], None] | None = None
        """Where ranks tell their numbers only when they make their group: lets one have the
        number that it says."""

    def begin_journal(self) -> None:
        """A new run begins, in which the groups of the one before are still there. The first
        run has the journal that the session was made with."""
        if not self._has_run:
            self._has_run = True
            return
        in_full = self.profile is not None
        self.journal = JournalWriter(
            self.size, in_full=in_full, after=self.journal, now=self.now
        )
        for met in self.mailboxes.values():
            met.record.used = any(met.next_number) or met.messages > 0
            met.dull_places.clear()
            self.journal.keep(met.record)
        self.races = None
        self.group_watch.forget()
        for context in self.ranks:
            context.ring = self.journal.rings[context.rank]
            context.noted.clear()
            context.looks.clear()

    def dissolve(self) -> None:
        """The world is closed, or has left its groups to another one: let go of the ranks,
        which refer to it, so that all of it ends here and not with a garbage collection."""
        for context in self.ranks:
            context.last_call = None
        self.ranks.clear()
        self.mailboxes.clear()
        self.promises.clear()
        self.report = _tell_nobody

    def end_group(self, key: tuple[str, int]) -> None:
        """The last member has destroyed its end of the group."""
        met = self.mailboxes.pop(key, None)
        if met is not None:
            self.journal.end(met.record)
            self._ended = [a + b for a, b in zip(self._ended, _counts(met), strict=True)]

    def watch_races(self) -> None:
        """From now on there is something that could race."""
        if self.races is not None or KIND not in self.kinds:
            return
        journal = self.journal.reader()
        open_calls = (call for met in self.mailboxes.values() for call in met.open_calls())
        sends = [
            journal.call((call.strand.local.rank, call.serial))
            for call in open_calls
            if call.name == "send" and call.serial is not None
        ]
        self.races = RaceWatch(journal, [send for send in sends if send is not None])

    # -- what checks ask, besides the journal (`checks/registry.py`) ------------------------

    def machine_of(self, rank: int) -> int:
        return int(self.ranks[rank].environ.get("GROUP_RANK", 0))

    def must_share_gpus(self) -> bool:
        """Whether there are fewer GPUs than ranks of a machine."""
        if self.devices is not None and self.devices.is_needed:
            return True
        per_machine = int(self.ranks[0].environ.get("LOCAL_WORLD_SIZE", self.size))
        return 0 < torch.cuda.device_count() < per_machine

    @property
    def posted(self) -> int:
        """How many calls ranks have made."""
        return sum(context.ring.posted for context in self.ranks)

    def tally(self) -> Tally:
        """How many collectives and messages there were, on how many groups."""
        all_counts = [self._ended, *map(_counts, self.mailboxes.values())]
        collectives, messages, groups = map(sum, zip(*all_counts, strict=True))
        counted = Tally(self.size, collectives, messages, groups, raised=tuple(self.raised))
        return replace(counted, happened=tuple(self.happened)) if self.happened else counted

    def mailbox(self, key: tuple[str, int], name: str, members: Sequence[int]) -> GroupMailbox:
        """The mailbox of a group; the first member to come makes it."""
        found = self.mailboxes.get(key)
        if found is None:
            ranks = tuple(members)
            shown = "world" if len(ranks) == self.size and name == "0" else f"group {name}"
            found = self.mailboxes[key] = GroupMailbox(shown, ranks)
            self.journal.keep(found.record)
            if self.losses is not None:
                self.losses.join(found)
        return found


def _tell_nobody(verdict: Verdict) -> VerdictError:
    raise AssertionError(f"a check speaks of a world that is closed: {verdict}")


def _watched(size: int) -> int:
    """Fewer if there are many ranks."""
    return min(MOST_WATCHED, max(LEAST_WATCHED, MOST_WATCHED * 16 // size))


def _counts(met: GroupMailbox) -> tuple[int, int, int]:
    collectives, messages = max(met.next_number), met.messages
    return collectives, messages, int(collectives > 0 or messages > 0)


def _is_batching() -> bool:
    """Whether this is called, at whatever depth, by torch's `batch_isend_irecv`."""
    frame = sys._getframe(1)
    while frame.f_back is not None:
        frame = frame.f_back
        if frame.f_code.co_name == "batch_isend_irecv":
            return True
    return False


def context_here() -> RankContext | None:
    """The rank that the calling thread belongs to, None outside of runs."""
    strand = here.strand
    return strand.local if strand is not None else None
