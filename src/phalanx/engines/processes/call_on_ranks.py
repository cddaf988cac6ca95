"""One call on all ranks of a world: wait for the answers, and judge what went wrong.

Used by the processes engine. A rank raises, dies, or nothing moves for too long: in each case
the others are asked where they are, and the caller gets the error that threads would give.
Must never start or end a process: the engine does that.
"""

from __future__ import annotations

import contextlib
import os
import pickle
import sys
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

from phalanx.backend.evidence.model_names import names_in
from phalanx.backend.rank_errors import add_names, error_for
from phalanx.checks.error_handlers import with_handled
from phalanx.checks.order.paired_names import with_paired_names
from phalanx.core.launcher import CLEANING_UP
from phalanx.engines.look.look_door import LookDoor
from phalanx.engines.look.remote_watch import LOOK, RemoteWatch, heard_by
from phalanx.engines.outcome import Outcome, Outcomes, find_error
from phalanx.engines.process_table import Work
from phalanx.engines.processes.faults_of_call import FaultsOfCall
from phalanx.engines.processes.rank_messages import (
    CallRequest,
    End,
    Heard,
    Interrupt,
    Note,
    Returned,
    Unsendable,
)
from phalanx.engines.processes.rank_processes import MemberProcess, RankProcesses
from phalanx.engines.referee.remote_check_host import find_reasons
from phalanx.engines.remote.control_messages import (
    DUMP_SIGNAL,
    Asking,
    Position,
    Progress,
    Raised,
    Where,
)
from phalanx.engines.remote.failure_evidence import (
    Failure,
    death,
    is_broken_off,
    is_consequence,
    is_lost_peer,
    precedence,
    restored,
    written_stack,
)
from phalanx.engines.run_settings import IDLE_STALL
from phalanx.engines.serialization.serialization import unpack_value
from phalanx.engines.snapshots import group_views
from phalanx.engines.standstill import LAST_ANSWER, Standstill
from phalanx.errors import RankDied, RankStopped, UsageError
from phalanx.model import (
    Group,
    Op,
    RankView,
    Site,
    Stall,
    Tally,
    Verdict,
    Wait,
)
from phalanx.report.positions import render_positions
from phalanx.system import monotonic

GRACE = 0.5
"""Seconds the other ranks have, when one has failed, to fail or return by themselves."""

PATIENCE = 1.0
"""Seconds a rank has to say where it is."""

HEARING = 0.5
"""Seconds that ranks which wait for others have to hear of Ctrl-C, after one has ended."""

TICK = 0.05

EXITED = "exited"
"""Stands for the value of a rank that has left by `os._exit(0)`."""


class CallInProgress:
    """From sending the call to its values or its error."""

    def __init__(
        self,
        ranks_alive: RankProcesses,
        *,
        timeout: float | None,
        limit: float | None,
        replay: str | None,
        on_tick: Callable[[], Any] | None,
        patient: bool = False,
        may_exit: bool = False,
        faults: FaultsOfCall | None = None,
    ) -> None:
        """`faults` is the plan that is carried out meanwhile; None: there is none."""
        self._ranks_alive = ranks_alive
        self._codec = ranks_alive.codec
        self._timeout = timeout
        self._limit = limit
        self._replay = replay
        self._on_tick = on_tick
        self._patient = patient
        self._may_exit = may_exit
        self._faults = faults
        self._pending = {member.rank: member for member in ranks_alive.members}
        self._values: dict[int, Any] = {}
        self._refused: dict[int, str] = {}
        self._failed: list[tuple[float, int, Failure]] = []
        self._stopped: dict[int, Raised] = {}
        self._positions: dict[int, Position] = {}
        self._asking: set[int] = set()
        self._notes: dict[int, bytes] = {}
        self._late: dict[int, RankView | None] = {}
        self._mute: set[int] = set()
        """Who did not say where it is."""
        self._number = 0
        self._life = _SignsOfLife(self._pending, timeout)
        self._looked = 0.0
        pending, asking, codec = self._pending, self._asking, self._codec
        self.watch = RemoteWatch(
            members=lambda: range(len(ranks_alive.members)),
            living=lambda: pending,
            heard=lambda: None if codec is None else heard_by(codec.referee),
            asking=lambda: bool(asking & pending.keys()),
        )
        self._door = LookDoor(self.watch, engine="processes")
        self.is_whole = False
        """Whether every rank came to the end of its call and can take another."""
        self.findings: tuple[Verdict, ...] = ()
        self.is_worn = faults is not None
        """Whether the ranks should be replaced all the same."""

    @property
    def tally(self) -> Tally:
        """How much was checked."""
        ranks = len(self._ranks_alive.members)
        tally = Tally(ranks) if self._codec is None else self._codec.referee.tally()
        if self._faults is None:
            return tally
        return replace(tally, happened=tuple(map(str, self._faults.happened)))

    def note_stopped(self) -> None:
        """The journal gets an end of each rank, also of those that could not tell theirs."""
        if self._codec is not None:
            for member in self._ranks_alive.members:
                self._codec.referee.journal.end_rank(member.rank, "stopped", "")

    def carry_out(self, call: CallRequest, *, whole_lines: bool = True) -> list[Any]:
        __tracebackhide__ = True
        self._number = call.number
        self._ranks_alive.begin(fresh=call.fresh, replay=self._replay)
        data = pickle.dumps(call, pickle.HIGHEST_PROTOCOL)
        for member in self._ranks_alive.members:
            if member.status is None:
                member.send_bytes(data, call.serialized.memories)
            else:  # it returned from its last call and then died
                self._take_in(member, None)
        try:
            self._gather()
        except KeyboardInterrupt:
            if self._faults is not None:
                self._faults.wake()
            self._tell_positions()
            self._let_clean_up()
            raise
        finally:
            self._door.close()
            if self._faults is not None:
                self._faults.end()
        self._ranks_alive.drain(whole=not whole_lines)
        if self._failed:
            self._find_reasons()
            raise self._with_values(self._with_names(self._failure()))
        if self._stopped and self._codec is not None and self._codec.error is not None:
            raise self._with_values(self._codec.error)  # of a thread that nobody waits for
        self.is_whole = True
        if self._refused:
            rank = min(self._refused)
            raise UsageError(f"rank {rank} {self._refused[rank]}")
        if self._codec is not None and not self._is_anybody_killed():
            self.findings = tuple(self._codec.find_at_end())
        for member in self._ranks_alive.members:
            member.stderr.clear()
        return [self._values[rank] for rank in sorted(self._values)]

    # -- waiting ----------------------------------------------------------------------------

    def _gather(self) -> None:
        """Until every rank has answered, one has failed and the rest had their grace, or
        nothing has moved for too long."""
        self._life = life = _SignsOfLife(self._pending, self._timeout)
        started = monotonic()
        if self._faults is not None:
            self._faults.begin()
        while self._pending:
            if self._failed and not self._waits_for_all():
                self._listen(GRACE / 2, lambda: bool(self._pending))
                self._ask_positions()
                self._listen(GRACE / 2, lambda: bool(self._pending))
                return
            life.look()
            before = monotonic()
            self._hear(TICK)
            if life.is_time_to_ask():
                life.ask(self._pending.values())
            if self._faults is not None and self._faults.is_pending():
                life.renew()
            if self._asking & self._pending.keys():  # somebody thinks, at a prompt
                life.renew()
                started += monotonic() - before
            over_limit = self._limit is not None and monotonic() - started > self._limit
            seconds = self._limit if over_limit else self._standstill()
            if seconds is not None:
                if self._failed and self._patient:
                    self._await_positions()
                    return
                if self._pending and not self._failed:
                    self._note_late()
                    self._await_positions()
                    self._count_calls()
                    # The verdict stands: asking may have woken a rank that slept.
                    raise self._with_values(self._stall(seconds, over_limit=over_limit))

    def _standstill(self) -> float | None:
        """How long nothing has moved, if that is too long. The ranks are asked once more."""
        seconds = self._life.seconds()
        if seconds is None:
            return None
        self._life.ask(self._pending.values())
        self._listen(LAST_ANSWER, lambda: self._life.awaits(self._pending.values()))
        still = self._life.seconds()
        return None if still is None else min(seconds, still)

    def _count_calls(self) -> None:
        """Hear of all that ranks have done; those that do not answer will never tell."""
        for member in self._pending.values():
            self._ranks_alive.attend(member)
            if member.rank in self._mute:
                self._ranks_alive.attend_dead(member)

    def _waits_for_all(self) -> bool:
        """Whether ranks may die; one that raises has failed all the same."""
        return self._patient and not any(isinstance(each, Raised) for *_, each in self._failed)

    def _note_late(self) -> None:
        """Who has not answered in time, and who of them waits, which the referee only knows."""
        self._late = dict.fromkeys(self._pending)
        if self._codec is not None:
            views = self._codec.referee.snapshot().ranks
            waiting = {rank: views[rank] for rank in self._late}
            self._late.update((r, v) for r, v in waiting.items() if v.status == "waiting")

    def _with_values(self, error: BaseException) -> BaseException:
        """What other ranks had returned says, in tests, whether they had skipped; what they
        had noted, how those failed that never came to their end."""
        error.returned = dict(self._values)  # type: ignore[attr-defined]
        error.noted = dict(self._notes)  # type: ignore[attr-defined]
        return error

    def _listen(self, seconds: float, goes_on: Callable[[], bool]) -> None:
        deadline = monotonic() + seconds
        while goes_on() and monotonic() < deadline:
            self._hear(min(deadline - monotonic(), TICK))

    def _hear(self, timeout: float) -> None:
        """Take in what ranks say. What they print, and that one ends its call, says that they
        live."""
        before = len(self._pending), self._ranks_alive.bytes_shown
        if self._faults is not None:
            self._faults.tick()
            timeout = self._faults.seconds_left(timeout)
        for member, message in self._ranks_alive.hear(max(0.0, timeout)):
            self._take_in(member, message)
        if self._on_tick is not None:
            self._on_tick()
        self._door.tick()
        if self._codec is not None and monotonic() - self._looked > TICK:
            self._ranks_alive.answer(self._codec.look())
            self._looked = monotonic()
        if before != (len(self._pending), self._ranks_alive.bytes_shown):
            self._life.renew()

    def _take_in(self, member: MemberProcess, message: Any) -> None:
        rank = member.rank
        if self._faults is not None and self._is_of_fault(self._faults, member, message):
            return
        if isinstance(message, Position):
            if message.number == LOOK:
                self.watch.take_in(message)
            elif message.number == self._number:
                self._positions[rank] = message
            return
        if isinstance(message, Progress):
            self._life.hear(message)
            return
        if isinstance(message, Note):
            self._notes[rank] = message.data
            return
        if isinstance(message, Asking):
            (self._asking.add if message.begins else self._asking.discard)(rank)
            return
        if message is None and self._may_exit and not member.status and rank in self._pending:
            message = self._values[rank] = EXITED
            self.is_worn = True
            self._last_view(member)  # what it had not told any more
        if message is None and rank in self._pending:
            view = self._last_view(member)
            died = self._planned_death(rank) or death(member.status or 0, member.stderr, view)
            self._failed.append((monotonic(), rank, died))
        if rank in self._pending:
            self._tell_desk(member, message)
        if isinstance(message, Raised):
            if message.stopped:
                self._stopped[rank] = message
            else:
                self._failed.append((message.when, rank, message))
        elif isinstance(message, Unsendable):
            self._refused[rank] = message.text
        elif isinstance(message, Returned):
            self._take_value(rank, message)
        self._pending.pop(rank, None)
        if self._faults is not None:
            self._faults.end_program(rank)

    def _is_of_fault(self, faults: FaultsOfCall, member: MemberProcess, message: Any) -> bool:
        """Whether the message is about a fault, or the end of a rank that the plan has killed:
        that is no failure."""
        rank = member.rank
        if message is not None:
            return faults.take_in(message)
        faults.lose(rank)
        if rank not in self._pending or not faults.is_survived(rank):
            return False
        self._values[rank] = None
        self._last_view(member)  # what it had not told any more
        faults.tell_killed(rank)
        del self._pending[rank]
        return True

    def _planned_death(self, rank: int) -> RankDied | None:
        return None if self._faults is None else self._faults.death_of(rank)

    def _is_anybody_killed(self) -> bool:
        """Then calls that are open are no finding."""
        return self._faults is not None and bool(self._faults.killed)

    def _last_view(self, member: MemberProcess) -> RankView | None:
        if self._codec is None:
            return None
        self._ranks_alive.attend(member)
        self._ranks_alive.attend_dead(member)
        return self._codec.referee.snapshot().ranks[member.rank]

    def _tell_desk(self, member: MemberProcess, message: Any) -> None:
        """A rank has ended its call. What it announced before comes first."""
        if self._codec is None:
            return
        self._ranks_alive.attend(member)
        if message is None:
            replies = self._codec.failed(member.rank, "died")
        elif isinstance(message, Raised):
            replies = self._codec.failed(member.rank, f"{message.kind}: {message.message}")
        else:
            replies = self._codec.finished(member.rank)
        self._ranks_alive.answer(replies)

    def _take_value(self, rank: int, message: Returned) -> None:
        self.is_worn = self.is_worn or message.worn
        self._ranks_alive.fork_server.preload(message.loaded)
        try:
            self._values[rank] = unpack_value(message.serialized)
        except Exception as error:
            self._refused[rank] = (
                "returned what this process cannot read: "
                f"{type(error).__name__}: {error}; return numbers, strings, tensors or "
                "containers of these"
            )

    def _ask_positions(self) -> None:
        for member in self._pending.values():
            member.send(Where(self._number))

    def _await_positions(self) -> None:
        self._ask_positions()
        self._listen(PATIENCE, lambda: bool(self._silent()))
        silent = self._silent()
        self._mute = {member.rank for member in silent}
        before = {member.rank: written_stack(member.stderr) for member in silent}
        for member in silent:
            with contextlib.suppress(OSError):
                os.kill(member.pid, DUMP_SIGNAL)
        self._listen(PATIENCE / 2, lambda: bool(silent))
        for member in silent:
            # The signal may have woken it: what it says now came after what it wrote then.
            stack = written_stack(member.stderr)
            if stack != before[member.rank] or member.rank not in self._positions:
                self._positions[member.rank] = Position(member.rank, self._number, stack)

    def _silent(self) -> list[MemberProcess]:
        """Who has not said where it is: one that never lets its other thread run."""
        return [m for rank, m in self._pending.items() if rank not in self._positions]

    def _let_clean_up(self) -> None:
        """Ctrl-C is for the program in the ranks as well: it may save something. A rank that is
        done with that ends, so that one which waits for it hears of it, too. Those that hear
        nothing, and those that take too long, are killed by the engine."""
        heard: set[int] = set()
        deaf: set[int] = set()
        for member in self._pending.values():
            member.send(Interrupt())
        began = last = monotonic()
        while self._pending and monotonic() - began < CLEANING_UP:
            for member, message in self._ranks_alive.hear(TICK):
                last = monotonic()
                if isinstance(message, Heard):
                    (heard if message.hears else deaf).add(member.rank)
                elif message is None or isinstance(message, (Raised, Returned, Unsendable)):
                    self._pending.pop(member.rank, None)
                    if message is not None:
                        member.send(End())
            if self._on_tick is not None:
                self._on_tick()
            patience = HEARING if deaf >= set(self._pending) else PATIENCE
            if monotonic() - last > patience and not heard & set(self._pending):
                return
        deadline = monotonic() + HEARING  # for what is still to be done at exit
        while any(each.status is None for each in self._ranks_alive.members):
            if self._pending or monotonic() > deadline:
                return
            for _ in self._ranks_alive.hear(TICK):
                pass

    # -- judging ----------------------------------------------------------------------------

    def _failure(self) -> BaseException:
        """The first failure is the cause, and a death comes before what others raised at
        that moment: they notice it before we do. A rank that only lost its connection to
        another one, which failed for a reason of its own, is a consequence."""
        found = self._codec.error if self._codec is not None else None
        ranked = sorted(self._failed, key=lambda each: precedence(each, found))
        first = ranked[0][2]
        if found is not None and is_consequence(first):
            return found
        if isinstance(first, Raised) and first.loading and first.kind == UsageError.__name__:
            return UsageError(first.message)
        outcomes = Outcomes([Outcome(rank) for rank in range(len(self._ranks_alive.members))])
        for _, rank, failure in ranked:
            if is_lost_peer(failure) and not is_lost_peer(first):
                continue
            error, site = restored(failure)
            outcomes.ranks[rank].site = site
            outcomes.record(rank, error, stopping=False)
        for rank, stopped in self._stopped.items():
            error, _ = restored(stopped)
            error.__context__ = RankStopped()
            outcomes.record(rank, error, stopping=True)
        gone = {*outcomes.order, *(() if self._faults is None else self._faults.killed)}
        others = [m.rank for m in self._ranks_alive.members if m.rank not in gone]
        outcomes.stopped_at = group_views([self._view(rank) for rank in others])
        outcomes.names = () if self._faults is None else self._faults.lines
        error_found = find_error(outcomes, self._replay)
        assert error_found is not None
        return error_found

    def _find_reasons(self) -> None:
        """Findings that are told though the ranks failed: only where the backend did."""
        *_, first = min(self._failed, key=lambda each: each[0])
        if self._codec is not None and is_broken_off(first):
            self.findings = tuple(find_reasons(self._codec.host))

    def _with_names(self, error: BaseException) -> BaseException:
        """The same, with what the ranks know of the parts of their models, and of what they
        passed."""
        verdict = getattr(error, "verdict", None)
        raised = [each for _, _, each in self._failed if isinstance(each, Raised)]
        facts = {each.rank: each.facts for each in raised if each.facts is not None}
        names = names_in(dict(sorted(facts.items())))
        if self._codec is not None and verdict is not None:
            verdict = with_paired_names(self._codec.referee.read_journal(), verdict)
        return add_names(error, verdict, names, self._replay)

    def _view(self, rank: int) -> RankView:
        """Where the rank was: as the referee knows, as it said, or where it lost the connection
        to a failed one."""
        at_referee = None if self._codec is None else self._codec.referee.stopped.get(rank)
        return at_referee or self._view_from_outside(rank)

    def _view_from_outside(self, rank: int) -> RankView:
        stack, call = self._place(rank)
        failed = {each for _, each, _ in self._failed}
        if rank not in {*self._pending, *self._late, *failed}:
            left = None if self._faults is None else self._faults.leave_of(rank)
            return RankView(rank, "finished", traced=False, left=left)
        everyone = Group("world", tuple(member.rank for member in self._ranks_alive.members))
        return RankView(
            rank,
            "outside" if call is None else "waiting",
            None if call is None else Wait(Op(rank, call, everyone), ()),
            site=stack[-1] if stack else None,
            traced=False,
        )

    def _place(self, rank: int) -> tuple[tuple[Site, ...], str | None]:
        for _, failed, failure in () if rank in self._late else self._failed:
            if failed == rank and isinstance(failure, Raised):
                return (() if failure.site is None else (failure.site,)), failure.call
        position = self._positions.get(rank)
        return ((), None) if position is None else (position.stack, position.call)

    def _stall(self, seconds: float, *, over_limit: bool) -> BaseException:
        views = [self._stalled(member.rank) for member in self._ranks_alive.members]
        verdict = Stall(
            kind="stall",
            severity="error",
            ranks=tuple(view.rank for view in views if view.status == "outside"),
            seconds=round(seconds, 1),
            blocks=group_views(views),
            stacks={rank: each.stack for rank, each in self._positions.items() if each.stack},
            over_limit=over_limit,
        )
        handling = {r: each.handling for r, each in self._positions.items() if each.handling}
        verdict = with_handled(verdict, handling)
        if self._codec is not None:
            verdict = self._codec.with_tests(verdict)
        if self._faults is not None:
            verdict = replace(verdict, names=self._faults.lines)
        return error_for(verdict, self._replay)

    def _stalled(self, rank: int) -> RankView:
        """Who waits is known from the referee only; the others are somewhere."""
        waiting = self._late.get(rank)
        if waiting is not None:
            return waiting
        view = self._view_from_outside(rank)
        return view if view.status == "finished" else replace(view, status="outside")

    def _tell_positions(self) -> None:
        self._await_positions()
        blocks = group_views([self._view(member.rank) for member in self._ranks_alive.members])
        text = render_positions("interrupted; each rank was at", blocks)
        print(text, file=sys.stderr, flush=True)


class _SignsOfLife(Standstill):
    """How long nothing has happened. Without a timeout ranks that compute live as well, and
    the limit is a long one."""

    def __init__(self, members: Mapping[int, MemberProcess], timeout: float | None) -> None:
        super().__init__(IDLE_STALL if timeout is None else timeout)
        pids = Work(lambda: [member.pid for member in members.values()])
        self._work = pids if timeout is None else None

    def look(self) -> None:
        if self._work is not None and self._work.is_time_to_look() and self._work.goes_on():
            self.renew()
