"""The referee for ranks that speak in frames: bytes in, bytes out.

Used by the processes engine, which pumps it in its own loop, and by the server for torchrun.
Verdicts become errors here, rendered once, and travel with their text. Must never touch a
socket.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import replace
from typing import Any

from phalanx.backend.rank_errors import error_for
from phalanx.engines.referee.announced_ranks import Reply
from phalanx.engines.referee.faulty_referee import FaultyReferee
from phalanx.engines.referee.loose_groups import LooseGroups
from phalanx.engines.referee.remote_check_host import RemoteHost, find_at_end
from phalanx.engines.referee.remote_journal import STORE_EVENTS
from phalanx.engines.referee.remote_referee import RemoteReferee
from phalanx.engines.remote import frames
from phalanx.engines.remote.frames import Decoder, Frame, Record, encode
from phalanx.engines.remote.rank_notes import read_notes
from phalanx.engines.serialization.plain_messages import dump_plain, load_plain
from phalanx.engines.tests_of_ranks import (
    VerdictType,
    last_tests,
    with_tests,
    with_tests_of_calls,
)
from phalanx.errors import VerdictError
from phalanx.journal.reader import ClockOffset
from phalanx.journal.writer import JournalWriter
from phalanx.kinds import ALL
from phalanx.model import Site, Verdict
from phalanx.system import monotonic

Outgoing = list[tuple[int, bytes]]
"""(rank, bytes) to be sent."""


class RefereeCodec:
    """One world's referee."""

    def __init__(
        self,
        size: int,
        replay: str | None = None,
        *,
        kinds: frozenset[str] = ALL,
        profile: str | None = None,
        on_journal: Callable[[JournalWriter], Any] | None = None,
        faulty: bool = False,
    ) -> None:
        """`on_journal` is called with the journal of each call of the program. With `faulty` a
        plan of faults is carried out, and this is one of those who hear of it."""
        self._faulty = FaultyReferee(size, kinds) if faulty else None
        self.referee = self._faulty or RemoteReferee(size, kinds)
        self._on_journal = on_journal
        self.host = RemoteHost(self.referee, profile)
        self._replay = replay
        self.fault_lines: list[tuple[str, str]] = []
        """What faults have done until now, for reports."""
        self._decoders = [Decoder() for _ in range(size)]
        self._rendered: dict[int, tuple[Verdict, VerdictError, bytes]] = {}

    def begin(self, *, fresh: bool = False, replay: str | None = None) -> None:
        """A new call of the program begins on all ranks."""
        self._replay = replay
        self.fault_lines.clear()
        self._rendered.clear()
        if fresh:
            self.referee.reset()
        else:
            self.referee.begin()
        if self._on_journal is not None:
            self._on_journal(self.referee.journal)

    @property
    def error(self) -> VerdictError | None:
        """What the referee found first, as the error that ranks raise."""
        verdict = self.referee.verdict
        return None if verdict is None else self._render(verdict)[1]

    def feed(self, rank: int, data: bytes) -> Outgoing:
        """Take in what a rank wrote; what is to be sent to whom."""
        out: Outgoing = []
        for frame in self._decoders[rank].feed(data):
            if frame.kind == frames.PING:
                out.append((rank, encode(frames.PONG, frame.call_id, time=monotonic())))
            else:
                out += self._encoded(self._take_in(rank, frame))
        return out

    def look(self) -> Outgoing:
        """Now and then, while ranks wait."""
        return self._encoded(self.referee.look())

    def find_at_end(self) -> list[Verdict]:
        """Once all ranks have returned."""
        return with_tests_of_calls(find_at_end(self.host), self.referee.read_journal())

    def past(self, rank: int, records: Iterable[Record]) -> Outgoing:
        """Calls of a rank that met on the fast path, and that it could not tell of."""
        return self._encoded(self._hear_log(rank, records))

    def _hear_log(self, rank: int, records: Iterable[Record]) -> list[Reply]:
        referee, journal = self.referee, self.referee.journal
        offset = self._offset(rank)
        journal.thread = 0
        replies: list[Reply] = []
        for kind, call_id, form, time in records:
            when = time + offset
            if kind <= frames.MET_AS_LAST:
                journal.time = when
                last = kind == frames.MET_AS_LAST
                replies += referee.met(rank, form, call_id, came_last=last)
            elif kind == frames.WAITS:
                journal.waits(rank, call_id, when)
            else:
                broken = kind == frames.BROKEN
                if broken and self._faulty is not None:
                    replies += self._faulty.broken_off(rank, call_id)
                journal.over(rank, call_id, when, failed=broken)
        journal.time = None
        return replies

    def _hear_events(self, rank: int, events: Iterable[Any]) -> None:
        """What only the rank could see, for the journal."""
        referee, journal = self.referee, self.referee.journal
        offset = self._offset(rank)
        for what, time, thread, site, fields in events:
            journal.time, journal.thread = time + offset, thread
            if what == "group-made":
                form, by_program = fields
                mailbox = referee.mailbox_of(form)
                journal.made(rank, mailbox, form, site, by_program=by_program)
            elif what == "group-destroyed":
                key, of_world, calls = fields
                known, world = referee.find_mailbox(key), referee.find_mailbox(of_world)
                if known is not None:
                    journal.destroyed(rank, known, site, world, calls)
                    referee.leave_group(rank, known)
            elif what == "buffer-touched":
                journal.touched(rank, site, *fields)
            elif what == "rank-ended":
                how, error, left = fields
                journal.end_rank(rank, how, error)
                referee.note_departure(rank, left)
            else:
                journal.use_store(rank, STORE_EVENTS[what], site, fields)
        journal.time = None

    def _offset(self, rank: int) -> float:
        clock = self.referee.clocks.get(rank)
        return 0.0 if clock is None else clock.seconds

    def finished(self, rank: int) -> Outgoing:
        return self._encoded(self.referee.finished(rank))

    def failed(self, rank: int, error: str) -> Outgoing:
        return self._encoded(self.referee.failed(rank, error))

    # -- faults -----------------------------------------------------------------------------

    def change_loose(self, change: Callable[[LooseGroups], None]) -> Outgoing:
        """Ranks are kept from their calls, or no longer."""
        if self._faulty is None:
            return []
        change(self._faulty.loose)
        return self._encoded(self._faulty.let_go())

    def killed(self, rank: int, site: Site | None) -> Outgoing:
        """The plan has killed this rank."""
        return [] if self._faulty is None else self._encoded(self._faulty.killed(rank, site))

    def _take_in(self, rank: int, frame: Frame) -> list[Reply]:
        journal = self.referee.journal
        if frame.time:
            journal.time, journal.thread = frame.time + self._offset(rank), frame.thread
        try:
            return self._take_in_frame(rank, frame)
        finally:
            journal.time = None

    def _take_in_frame(self, rank: int, frame: Frame) -> list[Reply]:
        referee, kind, call_id = self.referee, frame.kind, frame.call_id
        if kind in (frames.ANNOUNCE, frames.WAIT):
            timed = bool(frame.flags & frames.TIMED)
            threads = frame.flags & frames.MOST_THREADS
            if kind == frames.WAIT:
                return referee.wait(rank, call_id, timed=timed, threads=threads)
            blocking = bool(frame.flags & frames.BLOCKING)
            return referee.announce(
                rank, call_id, frame.number, blocking=blocking, timed=timed, threads=threads
            )
        if kind == frames.FORM:
            referee.define_form(rank, frame.number, load_plain(frame.body))
        elif kind == frames.GROUP:
            referee.define_group(rank, frame.number, load_plain(frame.body))
        elif kind == frames.CLOCK:
            referee.clocks[rank] = ClockOffset(*frames.clock_in(frame))
        elif kind == frames.LOG:
            return self._hear_log(rank, frames.log_in(frame))
        elif kind == frames.EVENTS:
            self._hear_events(rank, load_plain(frame.body))
        elif kind == frames.THREADS:
            return referee.tell_threads(rank, frame.flags & frames.MOST_THREADS)
        elif kind == frames.GIVE_UP:
            return referee.give_up(rank, call_id)
        elif kind == frames.RECEIVED:
            return referee.received(rank, call_id, frame.number)
        elif kind == frames.FOUND:
            return referee.found(rank, call_id, load_plain(frame.body))
        elif kind == frames.NOTES:
            for lane, events in read_notes(frame.body, referee.records()).items():
                referee.journal.note(rank, lane, events, self._offset(rank))
        elif kind == frames.FORGET:
            referee.forget(rank)
        elif kind == frames.FINISHED:
            return referee.finished(rank)
        elif kind == frames.FAILED:
            return referee.failed(rank, frame.body.decode("utf-8", errors="replace"))
        return []

    def _encoded(self, replies: Iterable[Reply]) -> Outgoing:
        return [
            (
                reply.rank,
                encode(frames.ANSWERS[reply.answer], reply.call_id, body=self._body(reply)),
            )
            for reply in replies
        ]

    def _body(self, reply: Reply) -> bytes:
        if reply.answer == "verdict" and reply.verdict is not None:
            return self._render(reply.verdict)[2]
        return reply.text.encode()

    def with_tests(self, verdict: VerdictType) -> VerdictType:
        """The verdict with the tests of pytest that ranks have said they are in."""
        return with_tests(verdict, last_tests(self.referee.read_journal()))

    def _render(self, verdict: Verdict) -> tuple[Verdict, VerdictError, bytes]:
        known = self._rendered.get(id(verdict))
        if known is None or known[0] is not verdict:
            named = replace(verdict, names=(*self.fault_lines, *verdict.names))
            error = error_for(self.with_tests(named), self._replay)
            body = dump_plain((str(error), verdict))
            known = self._rendered[id(verdict)] = verdict, error, body
        return known
