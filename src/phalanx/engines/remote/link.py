"""A rank's end of the line to the referee: announce, wait for the answer, raise what it says.

Used by ranks that are processes, over the socket that the program gave them, and by ranks
that torchrun started, over TCP. Several threads of a rank may ask at once: one of them reads
for all. When the referee is gone the program goes on unchecked. Must never hook anything
itself: `engines/remote/watcher.py` does.
"""

from __future__ import annotations

import functools
import os
import select
import socket
import threading
from itertools import count
from typing import TYPE_CHECKING, Any

from phalanx.backend.evidence.model_names import Facts, facts_of
from phalanx.backend.rank_errors import OpTimeoutError, error_for, error_of
from phalanx.backend.stores.store_keys import is_news
from phalanx.callsite import Mark, resolve
from phalanx.engines.remote import frames
from phalanx.engines.remote.frames import Decoder, Frame, Record, encode
from phalanx.engines.remote.idle_threads import is_mute, leave_executors, watch_executors
from phalanx.engines.remote.rank_notes import RankNotes
from phalanx.engines.remote.shared_memory_path import (
    MOST_PAST,
    PATIENCE,
    FastPath,
    Row,
    digest_of,
)
from phalanx.engines.remote.watched_groups import Limit
from phalanx.engines.remote.watcher import Watcher
from phalanx.engines.serialization.plain_messages import dump_plain, load_plain
from phalanx.engines.tests_of_ranks import note_of
from phalanx.errors import PhalanxError, RankStopped, VerdictError, text_of
from phalanx.kinds import ALL
from phalanx.matching.announcement import Form, GroupForm, message_signature_of, signature_of
from phalanx.model import Finding, Leave, Verdict
from phalanx.system import current_frames, monotonic

if TYPE_CHECKING:
    from phalanx.engines.real_faults.call_faults import CallFaults

READ_SIZE = 1 << 16

OWN_THREADS = "phalanx-"
"""How the names of our own threads begin."""

SOON = 0.25
"""Most answers come within so many seconds."""

BATCH = 0.25
"""Seconds after which a rank that makes calls tells the referee what need not be answered, if
it has not sent anything else meanwhile."""

MOST_TOLD = 256
"""Events that wait for that."""

PINGS = 8
"""Round trips by which a rank on another machine compares its clock with the referee's."""

CONNECT = 60.0
"""Seconds that the referee of a cluster has to accept."""


Told = tuple[str, float, int, Mark | None, tuple[Any, ...]]
"""What an event is, its time, its thread and its line, and the rest of its fields."""


class Link:
    """The connection of one rank. Everything is allowed from any thread."""

    def __init__(
        self,
        connection: socket.socket,
        rank: int,
        fast_path: FastPath | None = None,
        kinds: frozenset[str] = ALL,
        faults: CallFaults | None = None,
    ) -> None:
        self.rank = rank
        self.moved_at = 0.0
        """When the program last began or ended a call, or used a store."""
        self._fast_path = fast_path
        self._members: dict[int, GroupForm] = {}
        self._rows: dict[str, Row | None] = {}
        self._digests: dict[int, tuple[Row, int | None, bool]] = {}
        self._log: list[Record] = []
        """What the referee has not heard of yet and need not answer."""
        self._told: list[Told] = []
        """The same, of what takes more than four numbers to tell."""
        self._past = 0
        """How many calls that met on the fast path are in the log."""
        self._sent = 0.0
        self._socket = connection
        self._poll = select.poll()
        self._poll.register(connection, select.POLLIN)
        self._sending = threading.Lock()
        self._changed = threading.Condition()
        self._replies: dict[int, Frame] = {}
        self._reading = False
        self._decoder = Decoder()
        self._call_ids = count(1)
        self._groups = count()
        self._forms = count()
        self._off = False
        self._watcher = Watcher(self, rank, kinds, faults)

    # -- life -------------------------------------------------------------------------------

    def start(self) -> None:
        """Announce what this process does from now on."""
        self._watcher.start()
        os.register_at_fork(after_in_child=self._forget)

    def reset(self) -> None:
        """Forget all groups and calls, as the referee has."""
        self._watcher.reset()
        self._groups, self._forms = count(), count()
        self._members.clear()
        self._rows.clear()
        self._digests.clear()
        self._log.clear()
        self._told.clear()
        self._past = 0

    @property
    def is_sending(self) -> bool:
        """Whether a thread sends now: a handler of signals that interrupts it must not."""
        return self._sending.locked()

    def flush(self) -> None:
        """Tell the referee of all that it has not heard of."""
        self._send(b"")

    def tell_notes(self) -> None:
        """The program of this rank has ended well: what only this process has seen."""
        notes = self._watcher.take_notes()
        if notes is not None:
            self._send(encode(frames.NOTES, body=notes))

    def tell_test(self, test: str) -> None:
        """The rank is pytest, and begins this test."""
        notes = RankNotes(self.rank)
        notes.ring.note(note_of(self.rank, test, monotonic()))
        data = notes.take({})
        if data is not None:
            self._send(encode(frames.NOTES, body=data))

    def tell_dropped(self) -> None:
        """The program of this rank has failed: what it had dropped may be the reason."""
        dropped = self._watcher.take_dropped()
        if dropped is not None:
            self._send(encode(frames.NOTES, body=dropped))

    def judge_error(self, error: BaseException) -> Finding | None:
        """What was wrong with the rank's own call, if that is what this error is about. It is
        told without that where looking at it fails: the error itself must arrive."""
        try:
            return self._watcher.judge_error(error)
        except Exception:
            return None

    def facts_of(self, error: BaseException) -> Facts | None:
        """What this rank knows of its models and where it was among them."""
        return facts_of(self._watcher.lives.saved, error)

    def tell_end(self, how: str, error: str = "", left: Leave | None = None) -> None:
        """The program of this rank is over; `error` is the name of what it raised."""
        self.tell("rank-ended", None, how, error, left)

    def finished(self) -> None:
        """The program of this rank has ended well, and the rank is not asked any more."""
        self._send(encode(frames.FINISHED))

    def failed(self, error: BaseException) -> None:
        """The program of this rank has raised."""
        text = f"{type(error).__name__}: {text_of(error)}"
        self._send(encode(frames.FAILED, body=text.encode("utf-8", errors="replace")))

    def detach(self) -> None:
        """Watch no longer."""
        global _current
        _current = None
        self._off = True
        leave_executors()
        self._watcher.stop()
        self._socket.close()

    def _forget(self) -> None:
        """In a forked child: it is no rank, and must not write on the fast path, whose lock
        another thread of the rank may have held."""
        self._off = True
        self._fast_path = None
        self._rows.clear()
        self._digests.clear()
        self._socket.close()

    # -- what the watcher needs -------------------------------------------------------------

    def define_group(self, form: GroupForm) -> int:
        number = self._define(frames.GROUP, next(self._groups), form)
        self._members[number] = form
        return number

    def define(self, form: Form) -> int:
        number = self._define(frames.FORM, next(self._forms), form)
        group = self._members[form.group]
        if form.made is not None:
            return number
        if form.is_message:
            row, signature = self._channel(group, form), message_signature_of(form)
        else:
            row = self._row(group.key, group.member, len(group.ranks))
            signature = signature_of(form)
        if row is not None:
            digest = None if signature is None else digest_of(signature)
            self._digests[number] = row, digest, form.is_message
        return number

    def _row(self, key: str, member: int, members: int) -> Row | None:
        if self._fast_path is None:
            return None
        if key not in self._rows:
            self._rows[key] = self._fast_path.row(key, member, members)
        return self._rows[key]

    def _channel(self, group: GroupForm, form: Form) -> Row | None:
        """Where messages from one rank to another meet. A receive from any source may take
        what others wait for, so from then on they ask the referee."""
        mine = group.member
        if form.name == "send":
            return self._row(f"{group.key} {mine}>{form.peer}", 0, 2)
        if form.peer is not None:
            return self._row(f"{group.key} {form.peer}>{mine}", 1, 2)
        for source in range(len(group.ranks)):
            row = None if source == mine else self._row(f"{group.key} {source}>{mine}", 1, 2)
            if row is not None:
                row.close()
        return None

    def _define(self, kind: int, number: int, form: object) -> int:
        self._send(encode(kind, number=number, body=dump_plain(form)))
        return number

    def forget_forms(self) -> None:
        self._send(encode(frames.FORGET))
        for number in list(self._digests)[: -frames.FORMS_KEPT]:
            self._digests.pop(number, None)

    def next_call_id(self) -> int:
        return next(self._call_ids)

    def announce(
        self, call_id: int, form: int, *, name: str, blocking: bool, limit: Limit
    ) -> bool:
        posted = self.moved_at = monotonic()
        if self._off:
            return True
        row = self._digests.get(form)
        if row is not None and self._meet_on_fast_path(row, blocking, limit):
            self._note_past(call_id, form, row[0], posted)
            return True
        flags = frames.BLOCKING if blocking else 0
        return self._ask(frames.ANNOUNCE, call_id, form, flags, posted, name=name, limit=limit)

    def _meet_on_fast_path(
        self, known: tuple[Row, int | None, bool], blocking: bool, limit: Limit
    ) -> bool:
        """Whether the call has met all others there. Only one that waits as long as need be,
        in a rank of one thread."""
        row, digest, is_message = known
        patient = blocking and not limit.explicit and limit.at_first(PATIENCE) >= PATIENCE
        if digest is None or not patient or _thread_count() > 1:
            if is_message:  # those that need not wait may be met in another order
                row.close()
            else:
                row.pass_by()
            return False
        return row.meet(digest)

    def _note_past(self, call_id: int, form: int, row: Row, posted: float) -> None:
        kind = frames.MET_AS_LAST if row.came_last else frames.MET_AFTER_WAIT
        record = kind, call_id, form, posted
        with self._sending:
            if self._fast_path is not None:
                self._fast_path.note_past(self.rank, self._past, record)
            self._past += 1
            self._log.append(record)
        if self._past >= MOST_PAST:
            self.flush()

    def wait(self, call_id: int, *, name: str, limit: Limit) -> bool:
        began = self.moved_at = monotonic()
        return self._ask(frames.WAIT, call_id, 0, 0, began, name=name, limit=limit)

    def note_wait(self, call_id: int) -> None:
        if not self._off:
            self._log.append((frames.WAITS, call_id, 0, monotonic()))

    def note_over(self, call_id: int, *, failed: bool = False) -> None:
        now = self.moved_at = monotonic()
        if self._off:
            return
        self._log.append((frames.BROKEN if failed else frames.OVER, call_id, 0, now))
        if failed or now - self._sent > BATCH:
            self.flush()

    def tell(self, what: str, mark: Mark | None, *fields: Any) -> None:
        now = monotonic()
        if is_news(what, fields):
            self.moved_at = now
        if self._off:
            return
        self._told.append((what, now, _thread(), mark, fields))
        if len(self._told) >= MOST_TOLD or now - self._sent > BATCH:
            self.flush()

    def report(self, verdict: Verdict) -> VerdictError:
        """Tell the referee what this rank has found out by itself; the error to raise."""
        call_id = self.next_call_id()
        self._send(encode(frames.FOUND, call_id, body=dump_plain(verdict)))
        reply = None if self._off else self._await(call_id, None)
        if reply is None or reply.kind != frames.VERDICT:
            return error_for(verdict, None)
        return _error_in(reply)

    def received(self, call_id: int, source: int) -> None:
        self._send(encode(frames.RECEIVED, call_id, source, time=monotonic()))

    # -- asking -----------------------------------------------------------------------------

    def _ask(
        self,
        kind: int,
        call_id: int,
        number: int,
        flags: int,
        when: float,
        *,
        name: str,
        limit: Limit,
    ) -> bool:
        """Whether the call is met; raises if it is not to go on."""
        if self._off:
            return True
        threads = _thread_count()
        flags |= (frames.TIMED if limit.explicit else 0) | threads
        self._send(encode(kind, call_id, number, flags, time=when, thread=_thread()))
        first = limit.at_first(SOON)
        reply = self._await(call_id, first)
        if reply is None and not self._off:
            reply = self._await_among(threads, call_id, limit.seconds() - first)
        if reply is None and not self._off:
            self._send(encode(frames.GIVE_UP, call_id, time=monotonic()))
            reply = self._await(call_id, None)
        if reply is None or reply.kind == frames.MET:
            return True
        if reply.kind != frames.GO:
            for row in self._rows.values():
                if row is not None:
                    row.close()
            _refuse(reply, name, limit)
        return False

    def _await_among(self, threads: int, call_id: int, seconds: float) -> Frame | None:
        """The answer about a call of a rank of which the referee knows so many threads. It is
        told when there are others: those that have ended do not communicate any more."""
        deadline = monotonic() + seconds
        while threads > 1 and not self._off and (left := deadline - monotonic()) > SOON:
            before, threads = threads, _thread_count()
            if threads != before:
                self._send(encode(frames.THREADS, flags=threads))
            reply = self._await(call_id, min(SOON, left))
            if reply is not None:
                return reply
        return None if self._off else self._await(call_id, deadline - monotonic())

    def _send(self, data: bytes) -> None:
        if self._off:
            return
        try:
            with self._sending:
                data = self._take_log() + data
                if data:
                    self._socket.sendall(data)
        except OSError:
            self._lose()

    def _take_log(self) -> bytes:
        """What is to be told beside. Other threads may add to it meanwhile."""
        data = b""
        if records := self._log[:]:
            del self._log[: len(records)]
            data = frames.encode_log(records)
        if self._past:
            self._past = 0
            if self._fast_path is not None:
                self._fast_path.forget_past(self.rank)
        if told := self._told[:]:
            del self._told[: len(told)]
            resolved = [(*head, resolve(mark), fields) for *head, mark, fields in told]
            data += encode(frames.EVENTS, body=dump_plain(resolved))
        self._sent = monotonic()
        return data

    def _await(self, call_id: int, seconds: float | None) -> Frame | None:
        """The answer about a call, or None if the time ran out or the referee is gone."""
        deadline = None if seconds is None else monotonic() + seconds
        with self._changed:
            while self._reading and call_id not in self._replies and not self._off:
                if not self._changed.wait(_left(deadline)):
                    return None
            if call_id in self._replies:
                return self._replies.pop(call_id)
            if self._off:
                return None
            self._reading = True
        try:
            return self._read_until(call_id, deadline)
        finally:
            with self._changed:
                self._reading = False
                self._changed.notify_all()

    def _read_until(self, call_id: int, deadline: float | None) -> Frame | None:
        """Read for all threads, until this one's answer is there."""
        while not self._off:
            left = _left(deadline)
            if not self._poll.poll(None if left is None else left * 1000 + 1):
                if left == 0:
                    return None
                continue
            self._read()
            found = self._replies.pop(call_id, None)
            if found is not None:
                return found
        return None

    def _read(self) -> None:
        try:
            data = self._socket.recv(READ_SIZE)
        except OSError:
            data = b""
        if not data:
            self._lose()
            return
        with self._changed:
            for frame in self._decoder.feed(data):
                self._replies[frame.call_id] = frame
            self._changed.notify_all()

    def _lose(self) -> None:
        self._off = True
        with self._changed:
            self._changed.notify_all()


def attach(
    connection: socket.socket,
    *,
    rank: int,
    fast_path: FastPath | None = None,
    kinds: frozenset[str] = ALL,
    faults: CallFaults | None = None,
) -> Link:
    """Announce what this process does to the referee at the other end."""
    connection.setblocking(True)
    global _current
    link = Link(connection, rank, fast_path, kinds, faults)
    link.start()
    watch_executors()
    _current = link
    return link


_current: Link | None = None


def current() -> Link | None:
    """The link of this process, for whoever has to tell of a failure before the call ends."""
    return _current


def attach_tcp(
    host: str,
    port: int,
    *,
    token: str,
    rank: int,
    kinds: frozenset[str] = ALL,
) -> Link:
    """The same over a network. Raises `SentAway` if
    the referee does not know this rank by that token, `OSError` if there is nobody."""
    connection = socket.create_connection((host, port), timeout=CONNECT)
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    hello = encode(frames.HELLO, rank, body=token.encode())
    connection.sendall(hello + encode(frames.PING))
    if not _is_answered(connection):
        connection.close()
        raise SentAway("the referee does not know this rank")
    offset = measure_clock(connection)
    if offset is not None:
        connection.sendall(frames.encode_clock(*offset))
    return attach(connection, rank=rank, kinds=kinds)


class SentAway(ConnectionError):
    """The referee has closed the connection instead of answering."""


def _is_answered(connection: socket.socket) -> bool:
    decoder = Decoder()
    try:
        while data := connection.recv(READ_SIZE):
            if any(True for _ in decoder.feed(data)):
                return True
    except ConnectionError:
        pass
    return False


def measure_clock(connection: socket.socket) -> tuple[float, float] | None:
    """Seconds to be added to times of this process to get those of the referee's, and how wrong
    that may be; None if the clocks may be one and the same, or if nobody answers. Of some round
    trips the shortest tells most: the referee read its clock at some time during it."""
    decoder, best = Decoder(), None
    try:
        for number in range(PINGS):
            began = monotonic()
            connection.sendall(encode(frames.PING, number))
            answers: list[Frame] = []
            while not answers:
                data = connection.recv(READ_SIZE)
                if not data:
                    return None
                answers += decoder.feed(data)
            ended = monotonic()
            error = (ended - began) / 2
            if best is None or error < best[1]:
                best = answers[0].time - (began + error), error
    except OSError:
        return None
    return None if best is None or abs(best[0]) <= best[1] else best


def _left(deadline: float | None) -> float | None:
    return None if deadline is None else max(0.0, deadline - monotonic())


def _thread() -> int:
    """As the journal numbers it."""
    thread = threading.get_ident()
    return 0 if thread == threading.main_thread().ident else thread


def _thread_count() -> int:
    """How many threads of this rank may communicate: all that Python runs in, also those that
    `threading` has not heard of (of `_thread`, or of C++ that calls back)."""
    threads = set(current_frames())
    if len(threads) <= 1 + _own_threads():
        return 1
    threads.difference_update(t.ident for t in threading.enumerate() if not _may_communicate(t))
    return max(1, min(len(threads), frames.MOST_THREADS))


@functools.cache
def _own_threads() -> int:
    """They live as long as the process."""
    return sum(thread.name.startswith(OWN_THREADS) for thread in threading.enumerate())


def _may_communicate(thread: threading.Thread) -> bool:
    return not thread.name.startswith(OWN_THREADS) and not is_mute(thread)


def _error_in(reply: Frame) -> VerdictError:
    text, verdict = load_plain(reply.body)
    return error_of(verdict, text)


def _refuse(reply: Frame, name: str, limit: Limit) -> None:
    """Raise what the referee answered."""
    if reply.kind == frames.STOP:
        raise RankStopped
    if reply.kind == frames.VERDICT:
        raise _error_in(reply)
    if reply.kind == frames.LOST:
        raise OpTimeoutError(reply.body.decode())
    if reply.kind == frames.WITHDRAWN:
        raise OpTimeoutError(
            f"{name}: Timed out waiting {limit.seconds() * 1000:.0f}ms for the other ranks"
        )
    raise PhalanxError(f"the referee answered with {reply!r}")
