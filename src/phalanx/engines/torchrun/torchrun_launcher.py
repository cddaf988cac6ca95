"""Stay between torch's launcher and the user.

`torchrun_start.py` makes one per machine. Passes on what the ranks print, serves the referee if
rank 0 is here, and turns what happened into the errors of the other engines. Must never start
ranks itself.
"""

from __future__ import annotations

import os
import selectors
import signal
import socket
import sys
from collections import deque
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import replace
from math import inf
from multiprocessing.connection import Connection
from typing import Any

from phalanx.backend.rank_errors import add_names, error_for
from phalanx.checks.error_handlers import with_handled
from phalanx.checks.order.paired_names import with_paired_names
from phalanx.engines.look.look_door import LookDoor
from phalanx.engines.look.remote_watch import LOOK, RemoteWatch
from phalanx.engines.process_table import (
    Work,
    family_of,
    held,
    is_resource_tracker,
    is_stopped,
    kill_all,
    named,
)
from phalanx.engines.referee.referee_server import RefereeServer
from phalanx.engines.remote.control_messages import (
    Asking,
    Position,
    Progress,
    Raised,
    Where,
)
from phalanx.engines.run_settings import Settings, choose_findings, tell_findings
from phalanx.engines.snapshots import group_views
from phalanx.engines.standstill import LAST_ANSWER, Standstill, stall_outside
from phalanx.engines.torchrun.addresses import network_trouble
from phalanx.engines.torchrun.connections import Greeting, Lines, Member
from phalanx.engines.torchrun.launch_outcome import (
    Incarnation,
    find_error,
    is_ended_from_outside,
)
from phalanx.engines.torchrun.launcher_messages import (
    Done,
    Exits,
    Found,
    Hello,
    OpenReferee,
    RefereeIsOpen,
    Stopped,
    Unchecked,
)
from phalanx.engines.torchrun.torchrun_start import PATIENCE, Started, TorchrunSettings
from phalanx.errors import PhalanxError, RankFailedError
from phalanx.journal.reader import Journal
from phalanx.model import RankView, Silenced, Stall
from phalanx.report.positions import render_positions
from phalanx.system import monotonic

TICK = 0.05

MEETING = 10.0
"""Seconds until it is said that other machines are waited for."""

LAST_OUTPUT = 1.0
"""Seconds for what is still under way when the agent has ended."""

BRIEFLY = 1.0
"""The same, where no rank lives that may have to clean up."""

STDERR_KEPT = 40
"""Lines of standard error kept of each rank, for the report if it dies."""


class Launch:
    """One agent, from its start to its end."""

    def __init__(self, settings: TorchrunSettings, started: Started) -> None:
        self._settings = settings
        self._now = Incarnation(-1, 0)
        self._standstill = Standstill(settings.timeout)
        self._work = Work(lambda: family_of(started.agent.pid))
        self._loss: tuple[float, dict[int, RankView]] | None = None
        """How long ranks had stood still when one ended, and who waited for whom."""
        self._referee: RefereeServer | None = None
        self._notices: deque[str] = deque(maxlen=400)
        self._selector = selectors.DefaultSelector()
        self._number = 0
        self._ending = False
        self._farewell = signal.SIGTERM
        """With what the agent, and by it the ranks, are told to end."""
        self._unchecked = False
        self._silenced: list[Silenced] = []
        self._positions: dict[int, Position] = {}
        watch = self._watch = RemoteWatch(
            members=lambda: sorted(self._now.members),
            living=lambda: {each.rank: each for each in self._now.living()},
            heard=lambda: None if self._referee is None else self._referee.hear(),
            asking=lambda: bool(self._now.asking - self._now.gone),
        )
        self._door = LookDoor(watch, engine="torchrun")
        if settings.on_watch is not None:
            settings.on_watch(watch)
        self._base = started.base
        self._agent = started.agent
        self._listener = started.listener
        self._selector.register(self._listener, selectors.EVENT_READ, self._accept)
        for pipe in (self._agent.stdout, self._agent.stderr):
            if pipe is not None:
                os.set_blocking(pipe.fileno(), False)
                lines = Lines(pipe.fileno(), self._notice)
                self._selector.register(pipe, selectors.EVENT_READ, lines)

    # -- waiting ----------------------------------------------------------------------------

    def carry_out(self) -> bool:
        try:
            return self._carry_out()
        except PhalanxError as error:
            error.journal = self.read_journal()
            raise
        finally:
            if self._referee is not None and self._settings.on_tally is not None:
                tally = self._referee.tally()
                self._settings.on_tally(replace(tally, silenced=tuple(self._silenced)))
            if self._settings.on_journal is not None:
                self.read_journal()  # waits for what ranks said last

    def read_journal(self) -> Journal | None:
        """What happened, as far as the referee has heard; None where it is on another machine,
        or where nothing is checked."""
        if self._referee is None:
            return None
        return self._referee.read_journal(at_end=self._agent.poll() is not None)

    def _carry_out(self) -> bool:
        try:
            self._wait()
        except KeyboardInterrupt:
            self._tell_positions()
            self._farewell = signal.SIGINT
            raise
        well = self._agent.returncode == 0
        error = self._with_names(
            find_error(self._now, self._referee, self._settings.replay, well=well)
        )
        if self._agent.returncode < 0 and not (self._now.exits or self._now.ended):
            raise _launcher_died(self._agent.returncode)
        if self._loss is not None and is_ended_from_outside(error):
            raise self._stall(*self._loss)
        if error is not None:
            raise error
        for line in self._notices:
            self._settings.on_notice(line)
        if self._agent.returncode:
            raise SystemExit(2 if self._agent.returncode == 2 else 1)
        self._tell_findings()
        return self._now.initialised

    def _with_names(self, error: BaseException | None) -> BaseException | None:
        """The same, with what ranks passed where they parted, as far as it was noted."""
        verdict = getattr(error, "verdict", None)
        journal = None if verdict is None else self.read_journal()
        if error is None or verdict is None or journal is None:
            return error
        named = with_paired_names(journal, verdict)
        return add_names(error, named, (), self._settings.replay)

    def _tell_findings(self) -> None:
        """What can be said now that all ranks have returned; where the referee is."""
        given = self._settings
        if self._referee is None:
            return
        settings = Settings.of(given, replay=given.replay, on_findings=given.on_findings)
        findings, self._silenced = choose_findings(self._referee.find_at_end(), settings)
        tell_findings(findings, settings)

    def _wait(self) -> None:
        meeting = self._settings.meeting
        patience = monotonic() + MEETING if meeting is not None else inf
        while self._agent.poll() is None:
            self._hear(TICK)
            if meeting and monotonic() > patience and not self._now.members:
                self._settings.on_notice(f"phalanx: {meeting()}")
                patience = inf
            if self._now.asking - self._now.gone:  # somebody thinks, at a prompt
                self._standstill.renew()
            if self._standstill.is_time_to_ask():
                self._standstill.ask(self._now.living())
            if not self._now.living():
                self._look_at_launcher()
                continue
            seconds = self._standstill.seconds()
            if seconds is not None and self._is_still():
                waiting = self._waiting()
                self._ask_positions()
                raise self._stall(seconds, waiting)
        deadline = monotonic() + LAST_OUTPUT
        while len(self._selector.get_map()) > 1 and monotonic() < deadline:
            self._hear(TICK)

    def _look_at_launcher(self) -> None:
        """No rank lives, yet or any more. To start Python and torch takes long at times, but it
        takes a core, too."""
        if self._settings.timeout is None or not self._work.is_time_to_look():
            return
        if self._work.goes_on():
            self._standstill.renew()
        seconds = self._standstill.seconds()
        if seconds is not None:
            raise stall_outside(seconds, self._awaited(), self._settings.replay)

    def _awaited(self) -> str:
        agent, *others = family_of(self._agent.pid)
        launcher = named("torch's launcher", agent)
        if self._now.members:
            return f"{launcher} to end"
        if others:
            return f"ranks to begin: {', '.join(named('a rank', each) for each in others)}"
        meeting = self._settings.meeting
        where = meeting() if meeting is not None else network_trouble()
        return f"{launcher} to start ranks{where and '; '}{where}"

    def _is_still(self) -> bool:
        """Whether the ranks, asked once more, still say so."""
        living = self._now.living()
        self._standstill.ask(living)
        deadline = monotonic() + LAST_ANSWER
        while self._standstill.awaits(self._now.living()) and monotonic() < deadline:
            self._hear(TICK)
        return self._standstill.seconds() is not None and bool(self._now.living())

    def _hear(self, timeout: float) -> None:
        for key, _ in self._selector.select(timeout):
            if key.data() is False:
                self._selector.unregister(key.fileobj)
                if isinstance(key.data, Greeting):
                    key.data.end()
        for key in list(self._selector.get_map().values()):
            if isinstance(key.data, Greeting) and key.data.is_late:
                self._selector.unregister(key.fileobj)
                key.data.end()
        if self._referee is not None and self._referee.trouble is not None:
            self._tell_unchecked(self._referee.trouble)
        self._settings.on_tick()
        self._door.tick()

    def _accept(self) -> None:
        with suppress(OSError):
            end, _ = self._listener.accept()
            end.setblocking(False)
            greeting = Greeting(end, self._base.token, self._welcome)
            self._selector.register(end, selectors.EVENT_READ, greeting)

    def _welcome(self, end: socket.socket, hello: Hello) -> None:
        if hello.stream in ("out", "err"):
            now, rank, stream = self._now, hello.rank, hello.stream
            lines = Lines(end.fileno(), lambda text: self._show(now, rank, stream, text))
            self._selector.register(end, selectors.EVENT_READ, lines)
            return
        if hello.stream == "referee":
            self._pass_to_referee(end, hello)
            return
        if hello.stream == "control":
            self._begin(hello)
            self._standstill.renew()
        control = Connection(end.detach())
        member = Member(self.take_in, hello, control, self._now)
        if hello.stream == "control":
            self._now.members[hello.rank] = member
        self._selector.register(control, selectors.EVENT_READ, member)

    def _begin(self, hello: Hello) -> None:
        """A rank has started; the first one of a restart starts a new world."""
        now = self._now
        if now.known == (hello.generation, hello.ranks, hello.meeting) and (
            hello.rank not in now.members
        ):
            return
        if now.ranks:
            self._tell_restart()
        self._now = Incarnation(hello.generation, hello.ranks, hello.meeting)
        self._standstill.forget_ranks()
        self._loss = None
        first = hello.rank - hello.local_rank
        self._settings.on_world(hello.ranks, range(first, first + hello.local_ranks))

    def _pass_to_referee(self, end: socket.socket, hello: Hello) -> None:
        now = self._now
        if (hello.generation, hello.ranks, hello.meeting) != now.known or not now.is_refereed:
            end.close()
            return
        assert self._referee is not None
        self._referee.adopt(end, hello.rank)

    def _tell_restart(self) -> None:
        error = find_error(self._now, self._referee, None)
        if error is not None:
            self._settings.on_notice(f"{type(error).__name__}: {error}")
        self._settings.on_notice("torch's launcher starts the ranks again")
        self._notices.clear()

    def _show(self, now: Incarnation, rank: int, stream: str, text: str) -> None:
        if now is self._now:
            self._standstill.renew()
        if stream == "err":
            kept = now.stderr.setdefault(rank, deque(maxlen=STDERR_KEPT))
            kept.extend(text.splitlines())
        self._settings.on_output(rank, stream, text)

    def _notice(self, text: str) -> None:
        """What torch's launcher says after a failure is kept until we know better."""
        if self._ending:
            return  # because we told it to
        if self._now.has_failed:
            self._notices.extend(text.splitlines())
        else:
            for line in text.splitlines():
                self._settings.on_notice(line)

    # -- what ranks say ---------------------------------------------------------------------

    def take_in(self, member: Member, message: Any) -> None:
        if member.now is self._now:
            if isinstance(message, Progress):
                self._loss = None if self._standstill.hear(message) else self._loss
            elif message is None or isinstance(message, (Done, Raised, Found, Stopped)):
                if not isinstance(message, Done):
                    self._note_loss()
                self._standstill.renew()
        if isinstance(message, OpenReferee):
            self._open_desk(member, message)
        elif isinstance(message, Position):
            if message.number == LOOK:
                self._watch.take_in(message)
            elif member.now is self._now:
                self._positions[message.rank] = message
        elif isinstance(message, Asking):
            asking = member.now.asking
            (asking.add if message.begins else asking.discard)(message.rank)
        elif isinstance(message, Exits):
            member.now.exits.update(message.codes)
        elif isinstance(message, Unchecked):
            self._tell_unchecked(message.reason)
        elif isinstance(message, Done):
            member.now.done[message.rank] = message.initialised
        elif isinstance(message, (Raised, Found, Stopped)):
            member.now.ended[message.rank] = message
        elif message is None:
            member.now.take_leave(member.rank)

    def _note_loss(self) -> None:
        """Ranks end. If they stood still for nearly as long as they may, another machine may
        have found that it is too long, and its launcher ends them all."""
        seconds = self._standstill.seconds_nearly()
        alone = len(self._now.members) == self._now.ranks
        if seconds is not None and self._loss is None and not alone:
            self._loss = (seconds, self._waiting())

    def _tell_unchecked(self, reason: str) -> None:
        if not self._unchecked:
            self._settings.on_notice(f"phalanx: no checks: {reason}")
        self._unchecked = True

    def _open_desk(self, member: Member, wish: OpenReferee) -> None:
        """Each world has a referee of its own, which its first rank that asks opens."""
        if member.now is not self._now:
            return
        if not self._now.is_refereed:
            self._replace_referee(wish)
        assert self._referee is not None
        member.send(RefereeIsOpen(str(self._referee.offer)))

    def _replace_referee(self, wish: OpenReferee) -> None:
        if self._referee is not None:
            self._referee.close()
        given = self._settings
        self._referee = RefereeServer(
            ranks=wish.ranks,
            host=wish.host,
            key=self._base.key,
            replay=given.replay,
            kinds=given.kinds,
            profile=given.profile,
            on_journal=given.on_journal,
        )
        self._now.is_refereed = True

    # -- where ranks are --------------------------------------------------------------------

    def _ask_positions(self) -> None:
        self._number += 1
        for member in self._now.members.values():
            member.send(Where(self._number))
        deadline = monotonic() + 1.0
        waited = set(self._now.members) - self._now.gone
        while not waited <= set(self._positions) and monotonic() < deadline:
            self._hear(TICK)

    def _tell_positions(self) -> None:
        waiting = self._waiting()  # before ranks are disturbed
        self._ask_positions()
        ranks = sorted(self._now.members)
        blocks = group_views([waiting.get(rank) or self._view(rank) for rank in ranks])
        if blocks:
            text = render_positions("interrupted; each rank of this machine was at", blocks)
            print(text, file=sys.stderr, flush=True)

    def _waiting(self) -> dict[int, RankView]:
        """Who waits in a call for whom, which the referee knows where there is one."""
        views = () if self._referee is None else self._referee.snapshot().ranks
        return {view.rank: view for view in views if view.status == "waiting"}

    def _stall(self, seconds: float, waiting: Mapping[int, RankView]) -> BaseException:
        views = [waiting.get(rank) or self._view(rank) for rank in sorted(self._now.members)]
        verdict = Stall(
            kind="stall",
            severity="error",
            ranks=tuple(view.rank for view in views if view.status == "outside"),
            seconds=round(seconds, 1),
            blocks=group_views(views),
            stacks={rank: each.stack for rank, each in self._positions.items() if each.stack},
        )
        handling = {r: each.handling for r, each in self._positions.items() if each.handling}
        verdict = with_handled(verdict, handling)
        if is_stopped(self._agent.pid):
            launcher = named("torch's launcher", self._agent.pid)
            verdict = replace(verdict, names=(*verdict.names, ("beside", launcher)))
        if self._referee is not None:
            verdict = self._referee.with_tests(verdict)
        return error_for(verdict, self._settings.replay)

    def _view(self, rank: int) -> RankView:
        if rank in self._now.gone and (self._loss is None or rank in self._now.done):
            return RankView(rank, "finished", traced=False)
        position = self._positions.get(rank)
        stack = () if position is None else position.stack
        return RankView(rank, "outside", site=stack[-1] if stack else None, traced=False)

    # -- the end ----------------------------------------------------------------------------

    def close(self) -> None:
        """Nothing that was started here outlives us."""
        agent = self._agent
        self._ending = True
        self._door.close()
        if agent.poll() is None:
            begun = family_of(agent.pid)
            with held(each for each in begun if not is_resource_tracker(each)) as family:
                if not is_stopped(agent.pid):
                    agent.send_signal(self._farewell)  # it ends the ranks, then itself
                    deadline = monotonic() + (PATIENCE if self._now.living() else BRIEFLY)
                    while agent.poll() is None and monotonic() < deadline:
                        with suppress(KeyboardInterrupt):
                            self._hear(TICK)
                if agent.poll() is None:  # those that it started may not know that it is gone
                    kill_all(family)
                agent.wait()
        for key in list(self._selector.get_map().values()):
            with suppress(OSError):
                key.fileobj.close()  # type: ignore[union-attr]
        self._selector.close()
        if self._referee is not None:
            self._referee.close()


def _launcher_died(code: int) -> RankFailedError:
    """The ranks end with it, by no fault of theirs."""
    name = signal.Signals(-code).name
    return RankFailedError(f"torch's launcher died of {name}, and the ranks with it", {})
