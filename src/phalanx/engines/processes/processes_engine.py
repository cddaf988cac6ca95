"""The processes engine: ranks are warm processes of this machine, with torch's own backends.

`World` drives it, and the conformance suite. The processes are kept from call to call until
one fails; then all of them are replaced. What a call came to is found out in
`call_on_ranks.py`.
"""

from __future__ import annotations

import os
import socket
import sys
import warnings
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Any

from phalanx.backend.devices.device_map import visible_to_processes
from phalanx.engines.machine_limits import limits_named
from phalanx.engines.processes import inherited_settings
from phalanx.engines.processes.call_on_ranks import CallInProgress
from phalanx.engines.processes.faults_of_call import FaultsOfCall
from phalanx.engines.processes.fork_server import fork_server
from phalanx.engines.processes.group_rendezvous import LOOPBACK
from phalanx.engines.processes.rank_messages import CallRequest, Start
from phalanx.engines.processes.rank_processes import (
    MemberProcess,
    OnOutput,
    RankProcesses,
    print_line,
)
from phalanx.engines.real_faults.unserved_stores import serve_on
from phalanx.engines.referee.codec import RefereeCodec
from phalanx.engines.remote import shared_memory_path
from phalanx.engines.remote.failure_evidence import death
from phalanx.engines.run_settings import Settings, choose_findings, rank_environ, tell_findings
from phalanx.engines.serialization.serialization import (
    Serialized,
    check_not_loading,
    pack_call,
)
from phalanx.engines.terminal import find_input
from phalanx.errors import HazardError, PhalanxWarning, StallError, UsageError, VerdictError
from phalanx.faults import Plan
from phalanx.journal.reader import Journal
from phalanx.journal.writer import JournalWriter
from phalanx.model import Silenced, Verdict, rank_list


@dataclass(frozen=True, kw_only=True)
class ProcessSettings(Settings):
    engine: str = "processes"
    imports: Sequence[str] = ()
    """Modules that every rank imports before it initialises its group: where third-party
    backends register themselves."""
    on_output: OnOutput = print_line


class ProcessesEngine:
    """Ranks as processes. `fingerprint` is always 0: nobody records who ran when."""

    fingerprint = 0

    def __init__(self, settings: ProcessSettings) -> None:
        check_not_loading()
        self.settings = settings
        self.findings: list[Verdict] = []
        self.journal: Journal | None = None
        """What happened in the last call, as the referee heard of it."""
        self.silenced: list[Silenced] = []
        self.base_environ: dict[str, str] | None = None
        """The program's environment when the present ranks were started, if they were."""
        self._ranks_alive: RankProcesses | None = None
        self._busy = False
        self._calls = 0
        self._replay: str | None = None
        fork_server()  # begins to load torch while the caller goes on

    def call(
        self,
        fn: Callable[..., Any],
        args: Sequence[Any] = (),
        kwargs: Mapping[str, Any] | None = None,
        *,
        timeout: float | None = None,
        fresh: bool = False,
        limit: float | None = None,
        on_output: OnOutput | None = None,
        replay: str | None = None,
        patient: bool = False,
        may_exit: bool = False,
        bare: bool = False,
        lingers: bool = False,
        faults: Plan | None = None,
    ) -> list[Any]:
        """Call `fn` once per rank and return the values in rank order.

        `timeout` (seconds in which no rank calls, prints or ends), `limit` (seconds in all),
        `on_output`, `replay` and `faults` stand in for those of the world, for this call; a
        world without faults can have none here. With faults the ranks are not kept.

        With `fresh` the ranks begin as if they had just been started: no groups of before, a
        new default group, environment, folder, arguments and random numbers as at first, and
        what else is in `process_state.py`; ranks that died meanwhile are replaced.

        With `patient` the
        ranks that are left when one has died have as much time as without that. With
        `may_exit` a rank that leaves by `os._exit(0)` has not failed; its value is `EXITED`.
        With `bare` no group is made for ranks that have none any more. A call ends when the
        threads that it started have, unless it `lingers`.
        """
        __tracebackhide__ = True
        if self._busy:
            raise UsageError("this World is running already; use another one")
        serialized = pack_call(fn, args, kwargs or {})
        self._busy = True
        try:
            return self._call(
                serialized,
                timeout=self.settings.timeout if timeout is None else timeout,
                fresh=fresh,
                limit=self.settings.limit if limit is None else limit,
                on_output=on_output,
                replay=replay or self.settings.replay,
                patient=patient,
                may_exit=may_exit,
                bare=bare,
                lingers=lingers,
                faults=self.settings.faults if faults is None else faults,
            )
        finally:
            self._busy = False

    def _call(
        self,
        serialized: Serialized,
        *,
        timeout: float | None,
        fresh: bool,
        limit: float | None,
        on_output: OnOutput | None,
        replay: str | None,
        patient: bool,
        may_exit: bool,
        bare: bool,
        lingers: bool,
        faults: Plan,
    ) -> list[Any]:
        __tracebackhide__ = True
        if fresh:
            self.replace_dead()
        ranks_alive = self._take_ranks()
        ranks_alive.show = on_output or self.settings.on_output
        self._calls += 1
        self._replay = replay
        call = CallInProgress(
            ranks_alive,
            timeout=timeout,
            limit=limit,
            replay=replay,
            on_tick=self.settings.on_tick,
            patient=patient,
            may_exit=may_exit,
            faults=self._faults_of(faults, ranks_alive),
        )
        inherited = inherited_settings.look()
        request = CallRequest(self._calls, serialized, fresh, bare, lingers, inherited, faults)
        if self.settings.on_watch is not None:
            self.settings.on_watch(call.watch)
        try:
            values = call.carry_out(request, whole_lines=on_output is None)
            findings, silenced = choose_findings(call.findings, self.settings)
            self.findings += findings
            self.silenced += silenced
            tell_findings(findings, replace(self.settings, replay=replay))
            return values
        except BaseException as error:
            if not call.is_whole:
                call.note_stopped()
                self._tell_reasons(call)
            # What was found may have left them out of step, with other numbers of groups.
            call.is_worn |= isinstance(error, (VerdictError, HazardError))
            raise
        finally:
            if ranks_alive.codec is not None:
                self.journal = ranks_alive.codec.referee.read_journal()
            if self.settings.on_tally is not None:
                self.settings.on_tally(replace(call.tally, silenced=tuple(self.silenced)))
            if not call.is_whole:
                with suppress(StallError):  # another error is on its way
                    ranks_alive.kill()
            elif call.is_worn:
                ranks_alive.close()
            else:
                ranks_alive.show = self.settings.on_output
                self._ranks_alive = ranks_alive

    def _faults_of(self, plan: Plan, ranks_alive: RankProcesses) -> FaultsOfCall | None:
        return FaultsOfCall(plan, ranks_alive, self.settings) if plan else None

    def _tell_journal(self, journal: JournalWriter) -> None:
        """By the settings of now: whoever keeps an engine may change them from call to call."""
        if self.settings.on_journal is not None:
            self.settings.on_journal(journal)

    def _tell_reasons(self, call: CallInProgress) -> None:
        """What was found though the ranks failed; their error follows."""
        findings, silenced = choose_findings(call.findings, self.settings)
        self.findings += findings
        self.silenced += silenced
        if findings and self.settings.on_findings is not None:
            self.settings.on_findings(findings)

    def close(self) -> None:
        """Let the ranks leave their groups and end."""
        if self._busy:
            raise UsageError("a World cannot be closed while it runs; close it afterwards")
        ranks_alive, self._ranks_alive = self._ranks_alive, None
        if ranks_alive is not None:
            ranks_alive.close()

    def replace_dead(self) -> bool:
        """Whether ranks have died since the last call, of something it had left running. Then
        all of them are replaced, and a warning says so: the next call is not to blame."""
        ranks_alive = self._ranks_alive
        if ranks_alive is None or not ranks_alive.is_ours:
            return False
        for _ in ranks_alive.hear(0):
            pass
        dead = [member for member in ranks_alive.members if member.status is not None]
        if not dead:
            return False
        self._ranks_alive = None
        ranks_alive.kill()
        warnings.warn(PhalanxWarning(_tell_dead(dead, self._replay)), stacklevel=2)
        return True

    def _take_ranks(self) -> RankProcesses:
        ranks_alive, self._ranks_alive = self._ranks_alive, None
        if ranks_alive is not None and ranks_alive.is_ours:
            return ranks_alive
        with limits_named("the ranks could not be started"):
            return self._new_ranks()

    def _new_ranks(self) -> RankProcesses:
        settings = self.settings
        self.base_environ = dict(os.environ)
        per_node = settings.node_size
        seen = visible_to_processes(settings.device, settings.gpus, per_node=per_node)
        base = {**self.base_environ, **(settings.environ or {}), **seen}
        base.setdefault("MASTER_ADDR", LOOPBACK)
        if "MASTER_PORT" not in base:
            base["MASTER_PORT"] = str(free_port())
        if settings.ranks > 1:
            base.setdefault("OMP_NUM_THREADS", "1")  # as torchrun does
        loopback = _loopback_interface()
        if loopback is not None:
            # Gloo would look the host's name up, which leads anywhere or nowhere.
            base.setdefault("GLOO_SOCKET_IFNAME", loopback)
        given, options = find_input(), settings.plain()
        # A rank that is stopped while it has the lock there would stop the others, too.
        is_plain = settings.checked and not settings.faults
        has_fast_path = is_plain and shared_memory_path.is_available()
        with socket.create_server((LOOPBACK, 0), backlog=2 * settings.ranks) as listener:
            starts = [
                Start(
                    rank=rank,
                    options=options,
                    environ=rank_environ(base, settings, rank),
                    folder=os.getcwd(),
                    argv=tuple(sys.argv),
                    search_path=tuple(sys.path),
                    imports=tuple(settings.imports),
                    store_port=listener.getsockname()[1],
                    serves_store=not settings.faults,
                    has_fast_path=has_fast_path,
                    gpu=rank % per_node if settings.device == "cuda" else None,
                    input=given,
                )
                for rank in range(settings.ranks)
            ]
            codec = None
            if settings.checked:
                kinds, profile = settings.kinds, settings.profile
                codec = RefereeCodec(
                    settings.ranks,
                    kinds=kinds,
                    profile=profile,
                    on_journal=self._tell_journal,
                    faulty=bool(settings.faults),
                )
            # With faults ranks may be killed, and the store outlives them, as torchrun's does.
            store = serve_on(listener) if settings.faults else None
            ranks_alive = RankProcesses(
                starts,
                listener if store is None else None,
                show=settings.on_output,
                codec=codec,
                timeout=settings.timeout,
                replay=self._replay or settings.replay,
            )
            ranks_alive.store = store
            return ranks_alive


def _tell_dead(dead: Sequence[MemberProcess], replay: str | None) -> str:
    alike: dict[str, list[int]] = {}
    for member in dead:
        alike.setdefault(str(death(member.status or 0, member.stderr)), []).append(member.rank)
    lines = [f"{rank_list(who)} {how}" for how, who in alike.items()]
    lines.append("after the last call had returned; all ranks were started anew")
    return "\n".join([*lines, *([f"the last call: {replay}"] if replay else [])])


def free_port() -> int:
    """A port that rank 0 can serve `env://` on. A connection to it is left in its closing
    state, so that the system gives the port to nobody who does not ask for it by number."""
    with socket.create_server((LOOPBACK, 0)) as server:
        port = int(server.getsockname()[1])
        with socket.create_connection((LOOPBACK, port)) as near:
            far, _ = server.accept()
            far.close()
            near.recv(1)
    return port


def _loopback_interface() -> str | None:
    names = {name for _, name in socket.if_nameindex()}
    return next((name for name in ("lo", "lo0") if name in names), None)
