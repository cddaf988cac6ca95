"""Run a script that starts its ranks itself as plain Python would, and referee its worlds.

Used by the command line. The script has a process of its own and shares the terminal. A
process of it that makes a group says here which rank of which world it is (`spawned_rank.py`);
ranks that name the same address and size are one world, with a referee of its own. When all of
a world have left, what was found is told. Must never start ranks, nor decide what the script's
end means.
"""

from __future__ import annotations

import os
import secrets
import selectors
import signal
import socket
import struct
import subprocess
import sys
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import replace
from typing import Any

from phalanx.backend.rank_errors import error_for
from phalanx.engines.process_table import (
    Work,
    family_of,
    held,
    is_resource_tracker,
    kill_all,
    named,
)
from phalanx.engines.referee.referee_server import RefereeServer
from phalanx.engines.run_settings import Settings, choose_findings, tell_findings
from phalanx.engines.snapshots import group_views
from phalanx.engines.spawned.spawned_messages import (
    LONGEST,
    VARIABLE,
    Joins,
    PhaseOver,
    RefereeAddress,
    ScriptEnd,
    SpawnBase,
    WorldErrors,
    listen,
    read_hello,
    send_line,
)
from phalanx.engines.spawned.spawned_worlds import OpenWorld, SpawnedEnd, SpawnedWorld
from phalanx.engines.standstill import stall_outside
from phalanx.errors import HazardError, PhalanxError, RankFailedError, VerdictError
from phalanx.model import Silenced, Stall
from phalanx.system import monotonic

TICK = 0.05
GREETING = 5.0
"""Seconds that a caller has to say its first line."""
GRACE = 5.0
"""Seconds that the script has to end when it was interrupted, or when a run is given up."""


def run_spawning(
    words: Sequence[str], settings: Settings, *, quiet: bool = False
) -> SpawnedEnd:
    """Execute the script; `words` are its kind ("script" or "module"), its name and its
    arguments. Blocks until it and its worlds have ended. Raises `KeyboardInterrupt` when it
    was interrupted."""
    launch = _Launch(settings)
    try:
        return launch.run(words, quiet=quiet)
    finally:
        launch.close()


class _Launch:
    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._base = SpawnBase(
            address=f"phalanx-{os.getpid()}-{secrets.token_hex(8)}",
            token=secrets.token_hex(16),
            checks=settings.checks,
        )
        self._result = SpawnedEnd()
        self._worlds: list[OpenWorld] = []
        self._listener = listen(self._base.address)
        self._selector = selectors.DefaultSelector()
        self._selector.register(self._listener, selectors.EVENT_READ, self._accept)
        self._callers: dict[socket.socket, tuple[float, bytes]] = {}
        self._moved: tuple[Any, float] = ((), monotonic())

    def run(self, words: Sequence[str], *, quiet: bool) -> SpawnedEnd:
        flags = subprocess._args_from_interpreter_flags()  # type: ignore[attr-defined]
        own = "phalanx.engines.spawned.spawned_script"
        shown = subprocess.DEVNULL if quiet else None
        script = subprocess.Popen(
            [sys.executable, *flags, "-m", own, *words],
            env={**os.environ, **(self._settings.environ or {}), VARIABLE: self._base.export()},
            stdout=shown,
        )
        work = Work(lambda: family_of(script.pid), moves_bytes=True)
        try:
            self._wait(script, work)
        except KeyboardInterrupt:
            self._end(script, signal.SIGINT)
            raise
        result = self._result
        result.status = script.returncode
        result.untold = [world for world in result.untold if not world.is_known]
        return result

    def _wait(self, script: subprocess.Popen[bytes], work: Work) -> None:
        while script.poll() is None:
            self._hear(TICK)
            if self._result.error is None and self._stands_still(work):
                self._result.error = self._stall(script.pid)
                begun = family_of(script.pid)
                with held(each for each in begun if not is_resource_tracker(each)) as family:
                    self._end(script, signal.SIGTERM)
                    kill_all(family)  # what it has started need not have a line
        deadline = monotonic() + GRACE
        while (self._worlds or self._callers) and monotonic() < deadline:
            self._hear(TICK)

    def _end(self, script: subprocess.Popen[bytes], number: int) -> None:
        """The ranks end with their lines, and the script by this signal."""
        if script.poll() is None and number != signal.SIGINT:
            script.send_signal(number)
        for world in self._worlds:
            for line in world.lines.values():
                with suppress(OSError):
                    line.shutdown(socket.SHUT_RDWR)
        try:
            script.wait(GRACE)
        except (subprocess.TimeoutExpired, KeyboardInterrupt):
            script.kill()
            script.wait()

    def close(self) -> None:
        for world in self._worlds:
            world.referee.close()
        for key in list(self._selector.get_map().values()):
            key.fileobj.close()  # type: ignore[union-attr]
        self._selector.close()

    # -- listening --------------------------------------------------------------------------

    def _hear(self, timeout: float) -> None:
        for key, _ in self._selector.select(timeout):
            key.data()
        for caller, (since, _) in list(self._callers.items()):
            if monotonic() - since > GREETING:
                self._hang_up(caller)
        if self._settings.on_tick is not None:
            self._settings.on_tick()

    def _accept(self) -> None:
        with suppress(OSError):
            caller, _ = self._listener.accept()
            credentials = caller.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12)
            if struct.unpack("3i", credentials)[1] != os.getuid():
                caller.close()
                return
            caller.setblocking(False)
            self._callers[caller] = monotonic(), b""
            self._watch(caller, lambda: self._greet(caller))

    def _watch(self, line: socket.socket, on_read: Callable[[], Any]) -> None:
        self._selector.register(line, selectors.EVENT_READ, on_read)

    def _hang_up(self, line: socket.socket) -> None:
        self._callers.pop(line, None)
        self._selector.unregister(line)
        line.close()

    def _greet(self, caller: socket.socket) -> None:
        since, known = self._callers[caller]
        data = _read(caller)
        if data is None:
            return
        known += data
        self._callers[caller] = since, known
        if data and b"\n" not in known and len(known) < LONGEST:
            return
        said = read_hello(known, self._base.token)
        if isinstance(said, Joins) and 0 <= said.rank < said.size:
            self._selector.unregister(caller)
            del self._callers[caller]
            self._join(caller, said)
            return
        if isinstance(said, ScriptEnd):
            self._result.end = said
            self._note_looks(said.looked_at)
        elif isinstance(said, PhaseOver):
            self._result.is_suite = True
            self._note_looks(said.looked_at)
            caller.settimeout(GREETING)  # a report may be longer than a socket takes at once
            send_line(caller, self._settle(said))
        self._hang_up(caller)

    # -- what the script knows --------------------------------------------------------------

    def _note_looks(self, pids: Sequence[int]) -> None:
        worlds: list[OpenWorld | SpawnedWorld] = [*self._worlds, *self._result.worlds]
        for world in worlds:
            world.is_known = world.is_known or not world.pids.isdisjoint(pids)

    def _settle(self, test: PhaseOver) -> WorldErrors:
        """What is to fail the test, if it has not failed by itself."""
        untold, self._result.untold = self._result.untold, []
        if not test.passed:
            return WorldErrors()
        errors = [world.error for world in untold if not world.is_known]
        return WorldErrors(tuple((type(each).__name__, str(each)) for each in errors))

    # -- worlds -----------------------------------------------------------------------------

    def _join(self, line: socket.socket, joins: Joins) -> None:
        world = next((each for each in self._worlds if each.takes(joins)), None)
        if world is None:
            world = OpenWorld(joins, self._new_referee(joins.size))
            self._worlds.append(world)
        world.lines[joins.rank] = line
        world.pids |= set(joins.pids)
        joined = world
        self._watch(line, lambda: self._attend(joined, joins.rank, line))
        send_line(line, RefereeAddress(world.referee.offer.port, world.referee.token))

    def _new_referee(self, size: int) -> RefereeServer:
        given = self._settings
        return RefereeServer(
            size,
            replay=given.replay,
            kinds=given.kinds,
            profile=given.profile,
            on_journal=given.on_journal,
        )

    def _attend(self, world: OpenWorld, rank: int, line: socket.socket) -> None:
        if _read(line) != b"":
            return
        self._selector.unregister(line)
        line.close()
        world.has_lost = True
        del world.lines[rank]
        for other in world.lines.values() if world.referee.failures else ():
            with suppress(OSError):
                other.send(b"!")  # the one that failed has ended
        if not world.lines:
            self._worlds.remove(world)
            self._finish(world)

    def _finish(self, world: OpenWorld) -> None:
        """All of its ranks have left."""
        referee = world.referee
        silenced: list[Silenced] = []
        error: BaseException | None = None
        try:
            found = referee.find_at_end()  # waits for what they said last
            error = referee.error or _failure(referee)
            if error is None:
                findings, silenced = choose_findings(found, self._settings)
                tell_findings(findings, self._settings)
        except (VerdictError, HazardError) as finding:
            error = finding
        finally:
            tally = replace(referee.tally(), silenced=tuple(silenced))
            ended = SpawnedWorld(tally, error, world.pids, world.is_known)
            self._result.worlds.append(ended)
            if ended.has_report:
                self._result.untold.append(ended)
            referee.close()

    # -- the time ---------------------------------------------------------------------------

    def _stands_still(self, work: Work) -> bool:
        """Whether no rank has called, come or gone for longer than it may. While there are no
        ranks, the script and what it has started must neither compute, read nor write."""
        limit = self._settings.timeout
        if limit is None:
            return False
        state = [
            (id(world), sorted(world.lines), list(world.referee.hear()[1]))
            for world in self._worlds
        ]
        known, since = self._moved
        if not state and not work.is_time_to_look():
            return False
        if state != known or (not state and work.goes_on()):
            self._moved = state, monotonic()
            return False
        return monotonic() - since > limit

    def _stall(self, script: int) -> BaseException:
        """Of the ranks of all worlds; their numbers are those of their own world."""
        replay = self._settings.replay
        if not self._worlds:
            goal = "end" if self._result.worlds else "start ranks"
            seconds = monotonic() - self._moved[1]
            return stall_outside(seconds, f"{named('the script', script)} to {goal}", replay)
        views = [view for world in self._worlds for view in world.views()]
        blocks = group_views(sorted(views, key=lambda view: view.rank))
        seconds = self._settings.timeout or 0.0
        verdict = Stall("stall", "error", (), seconds=seconds, blocks=blocks)
        return error_for(self._worlds[0].referee.with_tests(verdict), replay)


def _read(line: socket.socket) -> bytes | None:
    """What has come; nothing at its end, None if it is not at its end."""
    try:
        return line.recv(LONGEST)
    except BlockingIOError:
        return None
    except OSError:
        return b""


def _failure(referee: RefereeServer) -> PhalanxError | None:
    """What ranks raised by themselves. The script, or Python for it, prints it."""
    failures = referee.failures
    if not failures:
        return None
    rank, text = next(iter(failures.items()))
    return RankFailedError(f"rank {rank} raised {text}", {rank: PhalanxError(text)})
