"""What a rank that is a process sees alone: its tensors in flight, its works, its own frames.

Used by `watcher.py`, which tells it of calls and waits on real process groups. The guard and
the evidence is that of the threads engine; this gives them a `Call` for what they look at.
A real backend writes whenever it likes, so of what an operation may write to neither contents
nor versions are compared: only what the program does to it is seen. Must never know the
referee.
"""

from __future__ import annotations

import threading
import weakref
from collections.abc import Callable, Iterable
from typing import Any

from torch import Tensor

from phalanx import callsite
from phalanx.backend.evidence import order_notes, result_notes, root_notes
from phalanx.backend.evidence.call_description import describe_call
from phalanx.backend.work import buffer_guard, buffer_modes, call_origin
from phalanx.callsite import Mark
from phalanx.checks.in_flight_buffer import How
from phalanx.checks.thread_race import ThreadCall, find_thread_race
from phalanx.checks.unwaited_work import KIND as UNWAITED
from phalanx.checks.unwaited_work import Unwaited
from phalanx.engines.remote.c10d_arguments import Parts
from phalanx.engines.remote.rank_notes import RankNotes
from phalanx.engines.remote.watched_groups import WatchedGroup
from phalanx.errors import VerdictError
from phalanx.journal.events import Noted
from phalanx.matching.mailboxes import GroupMailbox
from phalanx.matching.slots import Call
from phalanx.model import Verdict
from phalanx.system import monotonic

_ONLY_READ = frozenset(
    {
        "send",
        "broadcast",
        "all_gather",
        "all_gather_coalesced",
        "all_gather_into_tensor",
        "all_gather_into_tensor_coalesced",
        "gather",
        "scatter",
        "all_to_all",
        "all_to_all_single",
    }
)
"""Operations whose inputs no backend writes to. Gloo reduces in place, also elsewhere than at
the root."""

NOTED = 64
"""Of every `crossed_order.PERIOD` calls on a group so many are noted, the first ones."""

_MESSAGES = "messages"
"""Under which they are counted."""

_NO_STRAND: Any = None

Use = tuple[GroupMailbox, int, Parts, Mark | None, int | None]
"""A call: its group, the rank's place there, what was called where, its number."""


class Alone:
    """One per watched process; the guard's `FlightHost`."""

    def __init__(
        self,
        kinds: frozenset[str],
        notes: RankNotes,
        report: Callable[[Verdict], VerdictError],
        let_go: Callable[[], None],
        fail: Callable[[BaseException], None],
        tell: Callable[..., None],
    ) -> None:
        """`let_go`: give up works that are only kept until the program has them; `fail`: the
        rank has failed, though its own thread does not know; `tell`: what the journal is to
        have. The serial of a call is its id here."""
        self.notes = notes
        self.tell = tell
        self.report = report
        self.guards = "in-flight-buffer" in kinds
        self.expects_waits = UNWAITED in kinds
        self.tracks = self.guards or self.expects_waits
        self.watched = NOTED if "crossed-order" in kinds else 0
        self.let_go = let_go
        self.fail = fail
        self.compares_threads = "thread-race" in kinds
        self.compares_roots = "rank-space" in kinds
        self.follows_results = "lost-result" in kinds
        self.inside: dict[int, Use] = {}
        """By thread: the call that it waits in."""
        self.in_flight: buffer_guard.Book | None = None
        self.flying: weakref.WeakKeyDictionary[Any, Call] = weakref.WeakKeyDictionary()

    def note_flight(self) -> None:
        """It is in the book; nobody else asks."""

    def note_touch(self, call: Call | None, how: str) -> None:
        """The program used a tensor of a call in flight, at the line that is running."""
        self.tell(
            "buffer-touched", callsite.mark(2), None if call is None else call.serial, how
        )

    # -- calls ----------------------------------------------------------------------------

    def before_call(
        self, met: GroupMailbox, member: int, parts: Parts, mark: Mark | None
    ) -> None:
        """Any call: its tensors must not be in flight."""
        book = self.in_flight
        if book is not None and book.lows:
            buffer_guard.check_departure(book, _call_of(met, member, parts, mark))

    def note_call(
        self, met: GroupMailbox, member: int, parts: Parts, mark: Mark | None, number: int
    ) -> None:
        """One of those that are compared with the other ranks' by what the frames say."""
        call = _call_of(met, member, parts, mark)
        call.number = number
        order_notes.note(self.notes, call)

    def note_message(self, known: WatchedGroup, parts: Parts, mark: Mark | None) -> None:
        """One of the first messages. Its serial is known to the referee only, so it is noted
        by its number among the messages of this rank."""
        looks = self.notes.looks
        number = looks[_MESSAGES] = looks.get(_MESSAGES, -1) + 1
        if number < order_notes.MESSAGES and not parts.batched:
            call = _call_of(known.met, known.member, parts, mark)
            call.serial = number
            order_notes.note_message(self.notes, call, is_on=True, with_place=True)

    def note_root(
        self, met: GroupMailbox, member: int, parts: Parts, mark: Mark | None
    ) -> None:
        """A call whose root is another rank of the world than of the group."""
        root_notes.note(self.notes, _call_of(met, member, parts, mark))

    def note_result(
        self, known: WatchedGroup, parts: Parts, mark: Mark | None, *, waits: bool
    ) -> None:
        """A call that may write into a copy which nobody keeps."""
        if mark is None or not self.follows_results:
            return
        if result_notes.places.get((id(mark[0]), mark[1]), mark) is not None:
            call = _call_of(known.met, known.member, parts, mark)
            call.number = known.calls if parts.tag is None else None
            call.asynchronous = not waits
            result_notes.note(self.notes, call)

    def check_threads(self, me: int, use: Use) -> None:
        """While a thread is in a call that makes it wait, no other may make one there."""
        if not self.compares_threads or me in self.inside:
            return
        for other, its in list(self.inside.items()):
            if its[0] is not use[0]:
                continue
            call = _call_of(*its[:4])
            call.number = its[4]
            found = find_thread_race(
                ThreadCall(describe_call(_call_of(*use[:4])), main=_is_main(me)),
                ThreadCall(describe_call(call), main=_is_main(other)),
            )
            if found is not None:
                error = self.report(found)
                if not _is_main(me):  # an exception there would be printed and forgotten
                    self.fail(error)
                raise error

    def begin(
        self,
        met: GroupMailbox,
        member: int,
        parts: Parts,
        mark: Mark | None,
        *,
        number: int | None,
        work: Any,
        call_id: int,
    ) -> None:
        """An asynchronous call has been made; `work` is what the program gets."""
        origin = call_origin.origin_here(1)
        if origin != call_origin.OWN:
            return
        call = _call_of(met, member, parts, mark)
        call.number, call.origin, call.serial = number, origin, call_id
        if self.in_flight is None:
            self.in_flight = _Book(self)
        call.done = True  # or the guard would put something into the outputs
        buffer_guard.depart(self, call)
        flight = call.flight
        for region in flight.regions:
            if region.writes or parts.name not in _ONLY_READ:
                region.compare_nothing()
        self.flying[work] = call
        weakref.finalize(work, flight.drop).atexit = False

    # -- waits ----------------------------------------------------------------------------

    def arrive(self, work: Any) -> None:
        """The program knows that the operation is complete."""
        call = self.flying.pop(work, None)
        error = None if call is None else buffer_guard.arrive(call)
        if error is not None:
            raise error

    def give_up(self, work: Any) -> None:
        call = self.flying.pop(work, None)
        if call is not None:
            buffer_guard.give_up(call)

    def end_group(self, met: GroupMailbox) -> None:
        """The program has destroyed a group, which ends what was called on it first."""
        if self.in_flight is not None:
            self.in_flight.order(met)

    # -- the end --------------------------------------------------------------------------

    def note_dropped(self) -> None:
        """Works that the program cannot wait for any more, after it has failed."""
        book = self.in_flight
        if book is not None:
            self.let_go()
            book.fold()
            self._note(book.left.values())

    def end_run(self) -> None:
        """Write what nobody waited for."""
        book, self.in_flight = self.in_flight, None
        self.flying.clear()
        if book is not None:
            self._note(book.unwaited())
            buffer_modes.leave_thread()

    def _note(self, left: Iterable[Unwaited]) -> None:
        if found := list(left):
            event = Noted(monotonic(), self.notes.rank, 0, None, UNWAITED, found)
            self.notes.ring.add(event)


def _is_main(thread: int) -> bool:
    return thread == threading.main_thread().ident


class _Book(buffer_guard.Book):
    """Asks first whether the program has dropped its works."""

    def __init__(self, alone: Alone) -> None:
        super().__init__(alone)
        self._let_go = alone.let_go

    def judge_touch(self, tensor: Tensor, how: How, by: str) -> None:
        self._let_go()
        super().judge_touch(tensor, how, by)


def _call_of(met: GroupMailbox, member: int, parts: Parts, mark: Mark | None) -> Call:
    call = Call(met, member, _NO_STRAND, parts.name, mark)
    call.inputs, call.outputs = parts.inputs, parts.outputs
    call.root, call.peer, call.tag = parts.root, parts.peer, parts.tag
    call.op = None if parts.code is None else (parts.code,)
    call.facts = parts.splits
    return call
