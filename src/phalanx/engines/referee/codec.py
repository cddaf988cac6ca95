"""The referee for ranks that speak in frames: bytes in, bytes out.

Used by the processes engine, which pumps it in its own loop, and by the server for torchrun.
Verdicts become errors here, rendered once, and travel with their text. Must never touch a
socket.
"""

from __future__ import annotations

import pickle
from collections.abc import Iterable

from phalanx.backend.rank_errors import error_for
from phalanx.engines.referee.remote_check_host import RemoteHost, find_at_end
from phalanx.engines.referee.remote_referee import RemoteReferee, Reply
from phalanx.engines.remote import frames
from phalanx.engines.remote.frames import Decoder, Frame, encode
from phalanx.errors import VerdictError
from phalanx.kinds import ALL
from phalanx.model import Verdict

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
    ) -> None:
        self.referee = RemoteReferee(size, kinds)
        self.host = RemoteHost(self.referee, profile)
        self._replay = replay
        self._decoders = [Decoder() for _ in range(size)]
        self._rendered: dict[int, tuple[Verdict, VerdictError, bytes]] = {}

    def begin(self, *, fresh: bool = False, replay: str | None = None) -> None:
        """A new call of the program begins on all ranks."""
        self._replay = replay
        self._rendered.clear()
        if fresh:
            self.referee.reset()
        else:
            self.referee.begin()

    @property
    def error(self) -> VerdictError | None:
        """What the referee found first, as the error that ranks raise."""
        verdict = self.referee.verdict
        return None if verdict is None else self._render(verdict)[1]

    def feed(self, rank: int, data: bytes) -> Outgoing:
        """Take in what a rank wrote; what is to be sent to whom."""
        out: Outgoing = []
        for frame in self._decoders[rank].feed(data):
            out += self._encoded(self._take_in(rank, frame))
        return out

    def look(self) -> Outgoing:
        """Now and then, while ranks wait."""
        return self._encoded(self.referee.look())

    def find_at_end(self) -> list[Verdict]:
        """Once all ranks have returned."""
        return find_at_end(self.host)

    def past(self, rank: int, forms: Iterable[int]) -> Outgoing:
        """Calls of a rank that met on the fast path."""
        return self._encoded(self._past(rank, forms))

    def _past(self, rank: int, forms: Iterable[int]) -> list[Reply]:
        return [reply for form in forms for reply in self.referee.met(rank, form)]

    def finished(self, rank: int) -> Outgoing:
        return self._encoded(self.referee.finished(rank))

    def failed(self, rank: int, error: str) -> Outgoing:
        return self._encoded(self.referee.failed(rank, error))

    def _take_in(self, rank: int, frame: Frame) -> list[Reply]:
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
            referee.define_form(rank, frame.number, pickle.loads(frame.body))
        elif kind == frames.GROUP:
            referee.define_group(rank, frame.number, pickle.loads(frame.body))
        elif kind == frames.PAST:
            return self._past(rank, frames.past_in(frame))
        elif kind == frames.GIVE_UP:
            return referee.give_up(rank, call_id)
        elif kind == frames.RECEIVED:
            return referee.received(rank, call_id, frame.number)
        elif kind == frames.FOUND:
            return referee.found(rank, call_id, pickle.loads(frame.body))
        elif kind == frames.NOTES:
            for name, noted in pickle.loads(frame.body).items():
                referee.journal.note(rank, name, noted)
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

    def _render(self, verdict: Verdict) -> tuple[Verdict, VerdictError, bytes]:
        known = self._rendered.get(id(verdict))
        if known is None or known[0] is not verdict:
            error = error_for(verdict, self._replay)
            body = pickle.dumps((str(error), verdict), pickle.HIGHEST_PROTOCOL)
            known = self._rendered[id(verdict)] = verdict, error, body
        return known
