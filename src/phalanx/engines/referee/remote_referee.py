"""The referee's host for ranks in processes of their own: every rank announces here what it is
about to do, and is told to go on or why not.

A state machine without I/O, threads or torch, as the referee itself (`matching/referee.py`):
each event returns the answers that ranks are to get. The codec feeds it; the engines ask it
what the ranks were doing. A rank whose last question is not answered yet is blocked, exactly;
when all ranks are blocked, finished or failed, nobody can move any more. Must never decide by a
clock.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Literal, TypeVar

from phalanx.engines.referee.announced_calls import (
    AnnouncedCall,
    AnnouncedMailbox,
    AnnouncedReader,
    last_op,
    missing_in,
    node_of,
    wait_in,
    waiting_view,
    with_evidence,
)
from phalanx.engines.referee.announced_ranks import AnnouncedRank, Answer, Reply, refined
from phalanx.engines.referee.remote_journal import RemoteJournal, fields_of
from phalanx.engines.remote.frames import FORMS_KEPT
from phalanx.journal.events import GroupRecord
from phalanx.journal.reader import ClockOffset, Journal
from phalanx.kinds import ALL
from phalanx.matching.announcement import Form, GroupForm, signature_of
from phalanx.matching.descriptions import CallReader
from phalanx.matching.partial_look import Standing, WaitPosition
from phalanx.matching.referee import Referee
from phalanx.matching.slots import Slot
from phalanx.matching.waitgraph import Node
from phalanx.model import (
    Deadlock,
    Finding,
    Leave,
    Mismatch,
    RankView,
    Snapshot,
    Status,
    Tally,
    Verdict,
    Wait,
)

_Judged = TypeVar("_Judged", Mismatch, Deadlock)


class RemoteReferee:
    """All ranks of one world, from call to call."""

    def __init__(self, size: int, kinds: frozenset[str] = ALL) -> None:
        self.size = size
        self.kinds = kinds
        self.clocks: dict[int, ClockOffset] = {}
        """How the clocks of ranks differ from this one, where they do."""
        self.reset()

    def reset(self) -> None:
        """Forget everything: groups, calls, ranks."""
        self._ranks = [AnnouncedRank() for _ in range(self.size)]
        self._referee = Referee(self.kinds)
        self._mailboxes: dict[str, AnnouncedMailbox] = {}
        self._ended = [0, 0, 0]
        """What is counted of groups that are gone."""
        self.journal = RemoteJournal(self.size)
        self.journal.clocks = self.clocks
        self.begin()

    def begin(self) -> None:
        """A new call of the program on all ranks; groups stay."""
        self._free = set(range(self.size))
        self.stopping = False
        self.verdict: Verdict | None = None
        """The first that was found."""
        self._halted: dict[int, AnnouncedCall] = {}
        self._referee.begin()
        self._forget_groups()
        former = self._mailboxes.values()
        self.journal = RemoteJournal(self.size, former, after=self.journal)
        for rank in self._ranks:
            rank.asking.clear()
            rank.calls = {t: c for t, c in rank.calls.items() if not (c.verdict or c.lost)}
            rank.gone = rank.error = rank.left = None
            rank.threads = 1

    def _forget_groups(self) -> None:
        """Those of which all members have destroyed their ends. Not before the run is over:
        until then ranks may have something to say about them."""
        for key, mailbox in list(self._mailboxes.items()):
            if mailbox.is_deserted():
                del self._mailboxes[key], self._referee.mailboxes[key]
                self._ended = [a + b for a, b in zip(self._ended, _count(mailbox), strict=True)]
        for rank in self._ranks:
            rank.forget_groups()

    # -- what ranks say ---------------------------------------------------------------------

    def define_group(self, rank: int, number: int, form: GroupForm) -> None:
        mailbox = self.mailbox_of(form)
        fits = mailbox.size == len(form.ranks)
        taken = not fits or self._referee.claim(mailbox, form.member, rank) is not None
        if not taken:
            self.journal.made(rank, mailbox, form, by_program=False)
        # Two groups that cannot be told apart: neither is judged.
        self._ranks[rank].groups[number] = None if taken else (mailbox, form.member)

    def mailbox_of(self, form: GroupForm) -> AnnouncedMailbox:
        """That of a group, made when the first of its members is heard of."""
        mailbox = self._mailboxes.get(form.key)
        if mailbox is None:
            mailbox = self._mailboxes[form.key] = AnnouncedMailbox(form, self.size)
            self._referee.mailboxes[form.key] = mailbox
            self.journal.keep(mailbox.record)
        return mailbox

    def leave_group(self, rank: int, mailbox: AnnouncedMailbox) -> None:
        """A rank has destroyed its end of a group."""
        if mailbox.leave(rank):
            self.journal.end(mailbox.record)

    def find_mailbox(self, key: str) -> AnnouncedMailbox | None:
        return self._mailboxes.get(key)

    def define_form(self, rank: int, number: int, form: Form) -> None:
        self._ranks[rank].forms[number] = form, signature_of(form), fields_of(form)

    def forget(self, rank: int) -> None:
        """The rank will define its forms again, under other numbers."""
        forms = self._ranks[rank].forms
        for number in list(forms)[:-FORMS_KEPT]:
            del forms[number]

    def announce(
        self,
        rank: int,
        call_id: int,
        form: int,
        *,
        blocking: bool,
        timed: bool = False,
        threads: int = 1,
    ) -> list[Reply]:
        """A rank is about to call this. Unless `blocking`, it only needs to know whether
        something is wrong already."""
        here = self._ranks[rank]
        what, signature, fields = here.forms[form]
        at = here.groups.get(what.group)
        if at is None:
            return [Reply(rank, call_id, "met")]
        mailbox, member = at
        if what.made is not None:
            return self._make(mailbox, rank, call_id, what, timed=timed, threads=threads)
        call = AnnouncedCall(mailbox, rank, call_id, what, member)
        call.signature = call if signature is None else signature
        call.entered = not blocking
        call.waited = call.entered and what.name == "monitored_barrier"  # it waits by itself
        here.last = call
        here.calls[call_id] = call
        self.journal.post(call, fields, asynchronous=not blocking)
        if self.stopping:
            if not what.is_message:
                mailbox.join(call)
            return [self._stop(call) if blocking else Reply(rank, call_id, "go")]
        self._ask(call, timed=timed, threads=threads)
        if what.is_message:
            return self._exchange(call, blocking=blocking)
        slot = mailbox.join(call)
        if slot is not None:
            call.came_last = True
            return self._complete(mailbox, slot)
        if blocking:
            self.journal.wait(call)
        elif not self._is_clashing(mailbox, call):
            return [self._answer(call, "go")]
        return self._prove()

    def met(
        self, rank: int, form: int, call_id: int = 0, *, came_last: bool = False
    ) -> list[Reply]:
        """A call of the rank that met all its counterparts elsewhere, on the fast path, after
        it had waited for them, or as the last one."""
        here = self._ranks[rank]
        what, signature, fields = here.forms[form]
        at = here.groups.get(what.group)
        if at is None:
            return []
        mailbox, member = at
        call = here.last = AnnouncedCall(mailbox, rank, call_id, what, member)
        call.signature = signature
        call.came_last = came_last
        self.journal.post(call, fields)
        if not came_last:
            self.journal.wait(call)
        if what.is_message:
            sent = what.name == "send"
            other = mailbox.post_send(call) if sent else mailbox.post_receive(call)
            if not isinstance(other, AnnouncedCall):
                return []
            self.journal.meet([call, other])
            return list(self._settle([call, other]))
        slot = mailbox.join(call)
        return self._complete(mailbox, slot) if slot is not None else []

    def wait(
        self, rank: int, call_id: int, *, timed: bool = False, threads: int = 1
    ) -> list[Reply]:
        """A rank is about to wait for what it announced before."""
        call = self._ranks[rank].calls.get(call_id)
        if call is None:
            return [Reply(rank, call_id, "met")]
        if call.verdict is not None:
            return [Reply(rank, call_id, "verdict", call.verdict)]
        if call.lost:
            return [Reply(rank, call_id, "lost", text=call.lost)]
        if call.mailbox.is_undecided(call) or call in call.mailbox.deciding:
            return [Reply(rank, call_id, "go")]
        self.journal.wait(call)
        if self.stopping:
            return [self._stop(call)]
        self._ask(call, timed=timed, threads=threads)
        return self._prove()

    def tell_threads(self, rank: int, threads: int) -> list[Reply]:
        """A rank that waits has other threads than when it began to."""
        self._ranks[rank].threads = threads
        self._update(rank)
        return self._prove()

    def give_up(self, rank: int, call_id: int) -> list[Reply]:
        """A rank's time ran out. If it has been answered meanwhile, that counts."""
        call = self._ranks[rank].asking.get(call_id)
        if call is None:
            return []
        taken_back = call.mailbox.withdraw(call)
        if taken_back:
            self.journal.withdraw(call)
        if taken_back or not call.entered:
            self._ranks[rank].calls.pop(call_id, None)
        if not call.entered and call.number is not None:
            call.gave_up = "timed out in this call"
        call.waited = True
        self.journal.give_up(call)
        return [self._answer(call, "withdrawn")]

    def received(self, rank: int, call_id: int, source: int) -> list[Reply]:
        """What a receive from any source took."""
        receive = self._ranks[rank].calls.pop(call_id, None)
        send = None if receive is None else receive.mailbox.take_message(receive, source)
        self.journal.receive(rank, call_id, source, send)
        if receive is None:
            return []
        mailbox = receive.mailbox
        mailbox.taken.append((receive, source))
        met, waiting = mailbox.settle_after(receive)
        self.journal.meet(met)
        replies = list(self._settle([*([] if send is None else [send]), *met]))
        return replies + (self._decide(waiting) if waiting else [])

    def note_departure(self, rank: int, left: Leave | None) -> None:
        """How a rank has left its program, before it is said to have finished."""
        self._ranks[rank].left = left

    def finished(self, rank: int) -> list[Reply]:
        return self._leave(rank, "finished")

    def failed(self, rank: int, error: str) -> list[Reply]:
        """A rank's program raised, or its process died. The first failure stops the others."""
        self._ranks[rank].error = self._ranks[rank].error or error.partition("\n")[0]
        others = list(self._ranks[rank].asking.values())  # of its other threads
        replies = self._leave(rank, "failed")
        if self.stopping:
            return replies + [self._stop(call) for call in others]
        self.stopping = True
        waiting = others + self._waiting_calls()
        for call in waiting:
            self._answer(call, "stop")
        return replies + [self._stop(call) for call in waiting]

    def leftovers(self) -> list[Wait]:
        """What was begun and is not met although all ranks have returned; told once. A call
        in which a thread waits may still be met: the thread lives on."""
        found = []
        for here in self._ranks:
            for call in here.calls.values():
                if self._is_left_over(call):
                    call.waited = True
                    found.append(wait_in(call))
        return found

    def _is_left_over(self, call: AnnouncedCall) -> bool:
        unclear = call in call.mailbox.deciding or call.mailbox.is_undecided(call)
        return not (call.waited or call.asked or call.verdict or call.lost or unclear)

    @property
    def stopped(self) -> dict[int, RankView]:
        """Where each rank was that was told to stop, or that had returned."""
        found = {}
        for rank, here in enumerate(self._ranks):
            if rank in self._halted:
                found[rank] = waiting_view(self._halted[rank])
            elif here.gone == "finished":
                found[rank] = self._view(rank)
        return found

    def status_of(self, rank: int) -> Status | None:
        """`finished` or `failed`, if the rank said so."""
        return self._ranks[rank].gone

    def error_of(self, rank: int) -> str | None:
        return self._ranks[rank].error

    def snapshot(self) -> Snapshot:
        in_flight = sum(mailbox.in_flight() for mailbox in self._mailboxes.values())
        ranks = range(self.size)
        threads = tuple(view for rank in ranks for view in self._thread_views(rank))
        return Snapshot(tuple(map(self._view, ranks)), threads=threads, in_flight=in_flight)

    def tally(self) -> Tally:
        """How many collectives and messages there were, on how many groups."""
        counts = [self._ended, *map(_count, self._mailboxes.values())]
        collectives, messages, groups = map(sum, zip(*counts, strict=True))
        raised = () if self.verdict is None else (self.verdict,)
        return Tally(self.size, collectives, messages, groups, raised=raised)

    def found(self, rank: int, call_id: int, verdict: Verdict) -> list[Reply]:
        """What a rank found out by itself; it is to raise it."""
        self.verdict = self.verdict or verdict
        self.journal.found(verdict)
        return [Reply(rank, call_id, "verdict", verdict)]

    def look(self) -> list[Reply]:
        """Now and then: are there ranks that can never move, though others do? Only of ranks
        that have stood still since the last look. The others go on."""
        if not self._free or self.stopping:
            return []
        stuck = self._referee.find_stuck(self, now=0.0)
        found = self._referee.find_verdict(self, list(stuck)) if stuck else None
        verdict = with_evidence(found, stuck)
        if verdict is None:
            return []
        for call in stuck:
            call.mailbox.withdraw(call)
            if call.number is not None:
                call.gave_up = f"raised a {verdict.kind} in this call"
        return list(self._settle(stuck, verdict))

    # -- making groups ----------------------------------------------------------------------

    def _make(
        self,
        world: AnnouncedMailbox,
        rank: int,
        call_id: int,
        form: Form,
        *,
        timed: bool,
        threads: int,
    ) -> list[Reply]:
        """A rank is about to make a group."""
        assert form.made is not None
        creations = self._referee.creations_in(world.form.key, world)
        call = AnnouncedCall(world, rank, call_id, form, world.ranks.index(rank))
        call.creations = creations
        call.creation = creations.add(rank, form.made, form.site, holds=form.holds)
        if self.stopping:
            return [self._stop(call)]
        creations.waiting.append(call)
        self._ask(call, timed=timed, threads=threads)
        waiting: list[AnnouncedCall] = list(creations.waiting)
        if creations.disagree_at is None:
            ready = [each for each in waiting if not missing_in(each)]
            return [*self._settle(ready), *(self._prove() if call not in ready else ())]
        if missing_in(call):
            return self._prove()
        return list(self._settle(waiting, with_evidence(creations.find_mismatch(), waiting)))

    def find_missing_groups(self) -> list[Verdict]:
        """Once all ranks have returned: groups that some did not make."""
        return self._referee.find_missing_groups()

    def take_reshaped(self) -> list[Finding]:
        return self._referee.take_reshaped()

    # -- meeting ----------------------------------------------------------------------------

    def _complete(self, mailbox: AnnouncedMailbox, slot: Slot) -> list[Reply]:
        calls = [call for call in slot.calls if isinstance(call, AnnouncedCall)]
        late = [call for call in calls if call.gave_up]
        if late:
            return list(self._lose(calls, late))
        verdict = with_evidence(self._referee.find_slot_mismatch(slot, self), calls)
        self.journal.meet(calls, failed=verdict is not None)
        return list(self._settle(calls, verdict))

    def _exchange(self, call: AnnouncedCall, *, blocking: bool) -> list[Reply]:
        """A message or a receive has come."""
        found = call.mailbox.exchange(call)
        if found.met is not None:
            send, receive = found.met
            mismatch = self._referee.find_message_mismatch(send, receive, self)
            verdict = with_evidence(mismatch, found.met) if self._referee.compares else None
            call.came_last = True
            self.journal.meet(found.met, failed=verdict is not None)
            return list(self._settle((send, receive), verdict))
        if blocking:
            self.journal.wait(call)
        if found.undecided:
            return [self._answer(call, "go"), *self._decide(found.receives)]
        if found.receives:
            return self._decide(found.receives)
        return self._prove() if blocking else [self._answer(call, "go")]

    def _decide(self, receives: Sequence[AnnouncedCall]) -> list[Reply]:
        """There is a message for these receives from any source. Which, the backend decides,
        so whoever may be concerned goes on and waits there."""
        replies = []
        for receive in receives:
            receive.mailbox.deciding.append(receive)
            replies += [self._answer(receive, "go")] if receive.asked else []
        for call in self._waiting_calls() if receives else ():
            mailbox = call.mailbox
            if mailbox is receives[0].mailbox and mailbox.is_undecided(call):
                replies.append(self._answer(call, "go"))
        return replies

    def _is_clashing(self, mailbox: AnnouncedMailbox, call: AnnouncedCall) -> bool:
        """Whether the backend must not get a call that need not wait: members that have it
        already gave it other arguments, which some backends do not survive."""
        slot = mailbox.slots[call.number or 0]
        return self._referee.find_slot_mismatch(slot, self) is not None

    def _settle(
        self, calls: Iterable[AnnouncedCall], verdict: Verdict | None = None
    ) -> Iterator[Reply]:
        """These calls are met, or disagree."""
        if verdict is not None:
            self.journal.found(verdict)
        self.verdict = self.verdict or verdict
        for call in calls:
            call.done, call.verdict = True, verdict
            if verdict is None or (call.asked and not call.entered):
                self._ranks[call.rank].calls.pop(call.call_id, None)
            if call.asked:
                yield self._answer(call, "met" if verdict is None else "verdict")

    def _lose(
        self, calls: Iterable[AnnouncedCall], late: Sequence[AnnouncedCall]
    ) -> Iterator[Reply]:
        """These calls are never met. Whoever waits is told so, and whoever will."""
        text = f"rank {late[0].rank} {late[0].gave_up} and no longer takes part"
        for call in calls:
            if call.asked:
                self._ranks[call.rank].calls.pop(call.call_id, None)
                yield replace(self._answer(call, "lost"), text=f"{call.name}: {text}")
            else:
                call.lost = f"{call.name}: {text}"

    def _waiting_calls(self) -> list[AnnouncedCall]:
        return [call for each in self._ranks for call in each.asking.values()]

    # -- asking and answering ---------------------------------------------------------------

    def _ask(self, call: AnnouncedCall, *, timed: bool, threads: int) -> None:
        here = self._ranks[call.rank]
        call.asked, call.timed = True, timed
        here.asking[call.call_id] = call
        here.threads = threads
        self._update(call.rank)

    def _answer(self, call: AnnouncedCall, answer: Answer) -> Reply:
        call.asked = call.timed = False
        self._ranks[call.rank].asking.pop(call.call_id, None)
        if call.creation is not None and call in call.creations.waiting:
            call.creations.waiting.remove(call)
        self._update(call.rank)
        return Reply(call.rank, call.call_id, answer, call.verdict)

    def _update(self, rank: int) -> None:
        if self._ranks[rank].is_free:
            self._free.add(rank)
        else:
            self._free.discard(rank)

    def _stop(self, call: AnnouncedCall) -> Reply:
        """A rank that waits, or would, although another has failed."""
        self._halted.setdefault(call.rank, call)
        return Reply(call.rank, call.call_id, "stop")

    def _leave(self, rank: int, how: Literal["finished", "failed"]) -> list[Reply]:
        here = self._ranks[rank]
        if here.gone is not None:
            return []
        here.gone = how
        name = (here.error or "").partition(":")[0] if how == "failed" else ""
        self.journal.end_rank(rank, how, name)
        here.asking.clear()
        self._update(rank)
        return self._prove() if how == "finished" else []

    # -- the proof --------------------------------------------------------------------------

    def _prove(self) -> list[Reply]:
        """If nobody can move any more, find out why and tell everyone who waits."""
        if self._free or self.stopping:
            return []
        waiting = self._waiting_calls()
        verdict = self._referee.find_verdict(self) if waiting else None
        verdict = with_evidence(verdict, waiting)
        if verdict is None:
            return []
        self._abandon(verdict)
        return list(self._settle(waiting, verdict))

    def _abandon(self, verdict: Verdict) -> None:
        """What is open will never be met; all members go on with the same number."""
        self._referee.abandon(_ABANDONED)
        for mailbox in self._mailboxes.values():
            mailbox.deciding.clear()
        for each in self._ranks:
            for call in each.calls.values():
                call.verdict = call.verdict or verdict

    def _view(self, rank: int) -> RankView:
        here = self._ranks[rank]
        last = None if here.last is None else last_op(here.last)
        if here.gone is not None:
            return RankView(rank, here.gone, last=last, error=here.error, left=here.left)
        if here.is_free:
            return RankView(rank, "computing", last=last)
        return waiting_view(here.main_call)

    def _thread_views(self, rank: int) -> Iterator[RankView]:
        """The other threads of a rank that waits in several."""
        here = self._ranks[rank]
        if here.gone is None and not here.is_free:
            others = [call for call in here.asking.values() if call is not here.main_call]
            for number, call in enumerate(others, 1):
                yield replace(waiting_view(call), thread=str(number))

    # -- what the referee asks --------------------------------------------------------------

    def positions(self) -> dict[AnnouncedCall, WaitPosition]:
        return {call: (call.call_id, None) for call in self._waiting_calls() if not call.timed}

    def ended_so_far(self) -> int:
        return len(self.ended())

    def stand(self, steady: Mapping[AnnouncedCall, WaitPosition]) -> Standing[AnnouncedCall]:
        """A node for each call in which a rank waits, and one for each rank that does more."""
        calls = self._waiting_calls()
        nodes = [node_of(call, free=call not in steady) for call in calls]
        nodes += [Node(rank, free=True) for rank in self._free]
        return Standing(calls, nodes, frozenset(calls))

    def calls_of(self, stuck: Sequence[AnnouncedCall]) -> Sequence[AnnouncedCall]:
        return stuck

    def ended(self) -> list[int]:
        return [rank for rank, each in enumerate(self._ranks) if each.gone is not None]

    def take_snapshot(self, stuck: Sequence[AnnouncedCall] | None) -> Snapshot:
        return self.snapshot()

    def reader(self) -> CallReader:
        return AnnouncedReader()

    def records(self) -> dict[str, GroupRecord]:
        """The groups in the journal, by key."""
        return {key: place.record for key, place in self._mailboxes.items()}

    def read_journal(self) -> Journal:
        return self.journal.reader()

    def refine(self, verdict: _Judged) -> _Judged:
        return refined(verdict, self._ranks)


def _count(mailbox: AnnouncedMailbox) -> tuple[int, int, int]:
    """Its collectives and messages, and whether there were any."""
    collectives, messages = max(mailbox.next_number), mailbox.messages
    return collectives, messages, int(collectives > 0 or messages > 0)


_ABANDONED = RuntimeError("abandoned")
