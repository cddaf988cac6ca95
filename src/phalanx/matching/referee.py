"""The referee: says of the calls of all ranks whether they met, disagree or can never meet.

One state machine for every engine, without torch, I/O, threads or a clock. It owns the
mailboxes of all groups and the calls of `new_group`, and decides

- when the last member has come to a slot, or a message has found its receive: do they agree?
- when nobody can move, or some can never move while others do: why?

The threads engine asks it in its own process, when the baton says that nobody can move or the
monitor looks; for ranks in processes `engines/referee/` does, which keeps account of what each
rank asks. What only the engine can see it asks of its `Host`. What is found is returned as a
verdict; whom to tell, and how, is for the engine.
"""

from __future__ import annotations

from collections.abc import (
    Callable,
    Collection,
    Hashable,
    Iterable,
    Iterator,
    Mapping,
    Sequence,
)
from dataclasses import replace
from typing import Any, Protocol, TypeVar

from phalanx.journal.events import Posted, site_of
from phalanx.journal.reader import Journal
from phalanx.matching.agreement import find_mismatch, find_pair_mismatch, find_reshaped
from phalanx.matching.descriptions import (
    CallReader,
    describe_call,
    describe_earlier,
    describe_pending_sends,
)
from phalanx.matching.divergence import Pace, Parting, find_parting, tell_parting
from phalanx.matching.groups import GroupCreations
from phalanx.matching.mailboxes import GroupMailbox
from phalanx.matching.other_group import find_other_group
from phalanx.matching.partial_look import PartialLook, Standing, WaitPosition
from phalanx.matching.slots import Call, Slot
from phalanx.matching.uneven.absent_member import with_absence
from phalanx.matching.uneven.uneven_messages import with_uneven_messages
from phalanx.matching.uneven.uneven_ranks import is_shared, with_uneven, with_uneven_wait
from phalanx.matching.waitgraph import find_deadlock
from phalanx.model import Deadlock, Finding, Meeting, Mismatch, Op, Snapshot, Verdict

HISTORY = 64
MOST_PAST = 4096
LEAST_PAST = 4
"""How many earlier calls on a group are described: of each rank, of all together, and of each
at least."""

MOST_RESHAPED = 64
"""How many sets of lines are told whose calls met in different shapes."""

MOST_TRAIL = 8000
LEAST_TRAIL = 8
"""How many calls of a rank's trail are looked at: of all ranks together, and of each at
least."""

_Judged = TypeVar("_Judged", Mismatch, Deadlock)


class Evidence(Protocol):
    """What the referee may ask about calls that have been made."""

    def reader(self) -> CallReader:
        """Describes calls, for one look."""

    def read_journal(self) -> Journal:
        """What the ranks have done so far."""

    def refine(self, verdict: _Judged) -> _Judged:
        """The verdict with those at fault whom only the engine can tell: it may know more of
        groups, or of the branches of the program."""


class Host(Evidence, Protocol):
    """What the referee may ask about ranks that do not move. In what terms the host speaks of
    whoever waits (strands, announced calls) is for the host to say."""

    def positions(self) -> Mapping[Any, WaitPosition]:
        """Where everybody stands that waits and does not count on a time of its own."""

    def ended_so_far(self) -> Hashable:
        """Another value whenever somebody that could move begins or ends."""

    def stand(self, steady: Mapping[Any, WaitPosition]) -> Standing[Any] | None:
        """Everybody as a node of the wait graph; those that are not in `steady` are free. None
        if nothing can be said at this moment."""

    def calls_of(self, stuck: Sequence[Any]) -> Iterable[Call]:
        """The calls in which these wait."""

    def ended(self) -> Collection[int]:
        """The ranks that have returned or failed."""

    def take_snapshot(self, stuck: Sequence[Any] | None) -> Snapshot | None:
        """All ranks at this instant, None where that would not tell all. With `stuck`, the
        others are only said to move."""


class Referee:
    """All groups of one world."""

    def __init__(self, kinds: Collection[str]) -> None:
        self.compares = "mismatch" in kinds
        self.mailboxes: dict[Any, GroupMailbox] = {}
        """By whatever names a group in the engine."""
        self.creations: dict[Any, GroupCreations] = {}
        """The calls of `new_group`, by default group."""
        self._is_renumbered = False
        self.begin()

    def begin(self) -> None:
        """A new run on the same groups."""
        self._partial: PartialLook[Any] = PartialLook()
        self._reshaped: dict[Hashable, Finding] = {}

    def claim(
        self, mailbox: GroupMailbox, member: int, rank: int, end: Any = None
    ) -> int | None:
        """A rank takes its place in a group; the rank that has it already, if any. Once one
        rank has another number than the program gives it, the program's numbers say nothing
        about places that nobody has taken, in any group."""
        holder = mailbox.claim(member, rank, end)
        if mailbox.is_renumbered and not self._is_renumbered:
            self._is_renumbered = True
            for each in self.mailboxes.values():
                each.is_renumbered = True
        mailbox.is_renumbered = self._is_renumbered
        return holder

    def creations_in(
        self, key: Any, world: GroupMailbox, has_begun: Callable[[int], bool] | None = None
    ) -> GroupCreations:
        """Where the ranks of a default group make their groups."""
        found = self.creations.get(key)
        if found is None:
            found = self.creations[key] = GroupCreations(world, has_begun)
        return found

    def find_missing_groups(self) -> list[Verdict]:
        """Once all ranks have returned: groups that some did not make; said once."""
        found = [creations.find_missing() for creations in self.creations.values()]
        self.creations.clear()
        return [each for each in found if each is not None]

    # -- calls that meet ----------------------------------------------------------------------

    def find_slot_mismatch(self, slot: Slot, evidence: Evidence) -> Mismatch | None:
        """What the calls in a slot, complete or not, disagree in. Earlier calls are described
        only if they do: calls that differ and still agree are common (uneven lists)."""
        if not slot.clash or not self.compares:
            return None
        calls = [call for call in slot.calls if call is not None]
        mailbox, reader = calls[0].mailbox, evidence.reader()
        ops = tuple(describe_call(call, reader) for call in calls)
        meeting = Meeting(reader.group(mailbox), slot.number, ops)
        if find_mismatch(meeting) is None:
            self._note_shapes(meeting)
            return None
        history = _history(evidence.read_journal(), mailbox, slot.number, reader)
        verdict = find_mismatch(replace(meeting, history=history))
        assert verdict is not None
        journal = evidence.read_journal()
        verdict = with_uneven(verdict, journal, mailbox.record)
        if not is_shared(verdict.uneven):
            verdict = evidence.refine(verdict)
        return _with_parting(verdict, journal, verdict.group.ranks)

    def _note_shapes(self, meeting: Meeting) -> None:
        found = find_reshaped(meeting) if len(self._reshaped) < MOST_RESHAPED else None
        if found is not None:
            lines = frozenset((op.name, op.site) for op in meeting.ops)
            self._reshaped.setdefault(lines, found)

    def take_reshaped(self) -> list[Finding]:
        """Calls that met in different shapes of one size, once for each set of lines."""
        found, self._reshaped = list(self._reshaped.values()), {}
        return found

    def find_message_mismatch(
        self, send: Call, receive: Call, evidence: Evidence
    ) -> Mismatch | None:
        """What a send and the receive that takes it disagree in. Whoever moves the data asks
        even if mismatches are not looked for: a message must fit."""
        reader = evidence.reader()
        return find_pair_mismatch(describe_call(send, reader), describe_call(receive, reader))

    def abandon(self, error: BaseException) -> None:
        """Nobody can move: what is open ends with `error`, and all members of a group go on
        with the same number."""
        for mailbox in self.mailboxes.values():
            mailbox.abandon(error)

    # -- ranks that cannot move ---------------------------------------------------------------

    def find_stuck(self, host: Host, now: float) -> dict[Any, WaitPosition]:
        """Called now and then while ranks move: those that can never move again, said once."""
        ended = host.ended_so_far()
        return self._partial.look(host.positions(), ended, now, host.stand)

    def find_verdict(self, host: Host, stuck: Sequence[Any] | None = None) -> Verdict | None:
        """Why no rank can ever move, or why those in `stuck` cannot while others do. Calls
        that disagree explain it better than who waits for whom."""
        if self.compares:
            found = self._find_disagreement(host, stuck)
            if found is not None:
                return found
        snapshot = host.take_snapshot(stuck)
        if snapshot is None:
            return None
        ended = [view.rank for view in snapshot.ranks if view.status == "finished"]
        if self.compares:
            views = (*snapshot.ranks, *snapshot.threads)
            waits = [view.wait for view in views if view.wait and view.status == "waiting"]
            sends = describe_pending_sends(self.mailboxes.values(), host.reader())
            other = find_other_group(waits, sends, ended)
            if other is not None:
                return other
        deadlock = find_deadlock(snapshot, partial=stuck is not None)
        if deadlock is None:
            return None
        journal = host.read_journal()
        deadlock = self._with_uneven(host.refine(deadlock), host, journal)
        return _with_parting(deadlock, journal, _concerned(deadlock), ended)

    def _with_uneven(self, deadlock: Deadlock, host: Host, journal: Journal) -> Deadlock:
        """The deadlock, with how the members of a group parted in which ranks wait."""
        reader = host.reader()
        records = {reader.group(each): each.record for each in self.mailboxes.values()}
        for find in (with_absence, with_uneven_wait, with_uneven_messages):
            deadlock = find(deadlock, journal, records)
        return deadlock

    def _find_disagreement(self, host: Host, stuck: Sequence[Any] | None) -> Verdict | None:
        verdict: Verdict | None
        for slot in self._open_slots(host, stuck):
            verdict = self.find_slot_mismatch(slot, host)
            if verdict is not None:
                return verdict
        for creations in list(self.creations.values()):
            verdict = creations.find_mismatch() or self._find_missing(creations, host, stuck)
            if verdict is not None:
                if stuck is None:
                    creations.forget()
                return verdict
        return None

    def _find_missing(
        self, creations: GroupCreations, host: Host, stuck: Sequence[Any] | None
    ) -> Verdict | None:
        """Groups that ranks have not made and will not. If nobody can move and ranks wait in
        `new_group`, nobody else will come there; that explains it unless those who are missing
        wait for something else. Those that have ended will not come either; that explains
        something if others wait for them in a group that these never took part in."""
        if stuck is None and creations.waiting:
            found = creations.find_missing()
            if found is not None and _is_caused(found.ranks, host.take_snapshot(None)):
                return found
        absent = {
            mailbox.ranks[member]
            for mailbox, slot in self._open_slots_of_groups(host, stuck)
            for member, there in enumerate(slot.calls)
            if there is None and mailbox.is_known(member) and not mailbox.has_member(member)
        }
        gone = absent.intersection(host.ended()) if absent else absent
        return creations.find_missing(gone) if gone else None

    def _open_slots(self, host: Host, stuck: Sequence[Any] | None) -> Iterator[Slot]:
        return (slot for _, slot in self._open_slots_of_groups(host, stuck))

    def _open_slots_of_groups(
        self, host: Host, stuck: Sequence[Any] | None
    ) -> Iterator[tuple[GroupMailbox, Slot]]:
        """Slots in which somebody is, and of those in `stuck` if that is given."""
        if stuck is None:
            for mailbox in list(self.mailboxes.values()):
                yield from ((mailbox, slot) for slot in list(mailbox.slots.values()))
            return
        seen: set[int] = set()
        for call in host.calls_of(stuck):
            slot = call.mailbox.slots.get(call.number) if call.number is not None else None
            if slot is not None and id(slot) not in seen:
                seen.add(id(slot))
                yield call.mailbox, slot


def _is_caused(absent: Iterable[int], snapshot: Snapshot | None) -> bool:
    """Whether these ranks are not in `new_group` because they have ended, or wait, directly or
    not, for those that are. Without a snapshot nothing else is known."""
    if snapshot is None:
        return True
    views = (*snapshot.ranks, *snapshot.threads)
    waits = [(view.rank, view.wait) for view in views if view.wait is not None]
    held = {rank for rank, wait in waits if wait.op.name == "new_group"}
    while more := {r for r, wait in waits if not held.isdisjoint(wait.needs)} - held:
        held |= more
    ended = {view.rank for view in snapshot.ranks if view.status in ("finished", "failed")}
    return (held | ended).issuperset(absent)


def _history(
    journal: Journal, mailbox: GroupMailbox, number: int, reader: CallReader
) -> dict[int, tuple[Op, ...]]:
    most = min(HISTORY, max(LEAST_PAST, MOST_PAST // mailbox.size))
    return {
        rank: tuple(
            describe_earlier(call, mailbox, reader)
            for call in journal.earlier(rank, mailbox.record, number, most)
        )
        for rank in mailbox.ranks
    }


def _concerned(deadlock: Deadlock) -> list[int]:
    """Whose ways are compared: those who wait, and those who have returned."""
    blocks = [b for b in deadlock.blocks if b.view.status in ("waiting", "finished")]
    return sorted({rank for block in blocks for rank in block.ranks})


def _with_parting(
    verdict: _Judged, journal: Journal, ranks: Iterable[int], ended: Iterable[int] = ()
) -> _Judged:
    """The verdict, with the place where the ways of these ranks parted if that is clear."""
    if not _asks_for_it(verdict):
        return verdict
    among = list(ranks)
    length = max(LEAST_TRAIL, MOST_TRAIL // max(1, len(among)))
    trails = {rank: _trail(journal.last_calls(rank, length)) for rank in among}
    parting = find_parting(trails, frozenset(ended))
    if parting is None or _is_told(verdict, parting):
        return verdict
    return replace(verdict, parted=tell_parting(parting, name_place))


def _trail(calls: Iterable[Posted]) -> list[Pace]:
    return [
        Pace(
            None if call.number is None else (id(call.group), call.number),
            call.group.ranks,
            call.mark,
            call.name,
            call.number,
        )
        for call in calls
    ]


def name_place(place: Any) -> str:
    """The line of the program that a call of the journal came from."""
    site = site_of(place)
    return str(site) if site is not None else "a call without a line"


def _asks_for_it(verdict: Mismatch | Deadlock) -> bool:
    """Where other arguments than the operation differ, the way was the same."""
    return not isinstance(verdict, Mismatch) or "operation" in verdict.differs


def _is_told(verdict: Mismatch | Deadlock, parting: Parting) -> bool:
    """A hint about the very call that does not fit, or about ranks that made fewer calls, says
    the same in other words; so do counts of calls."""
    if verdict.hint is None and verdict.uneven is None:
        return False
    if isinstance(verdict, Mismatch):
        return parting.number == verdict.number
    return any(place is None for _, place in parting.ways)
