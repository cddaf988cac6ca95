"""The threads engine: ranks are threads of this process, and one of them runs at a time.

`World` drives it. It owns a session for as long as the world is open and makes a baton for
each run. Runs of different worlds take turns, because random generators and the like belong
to the process: the second caller waits. A run started inside a rank is nested: the outer
world stands still meanwhile.
"""

from __future__ import annotations

import os
import sys
import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import ExitStack, suppress
from dataclasses import replace
from functools import partial
from typing import Any

import torch
import torch.distributed as dist

from phalanx.backend.devices import device_mode
from phalanx.backend.devices.cuda_streams import default_backend
from phalanx.backend.devices.device_map import hint_for, plan_devices
from phalanx.backend.evidence.call_description import describe_pending
from phalanx.backend.evidence.call_stacks import find_stacks
from phalanx.backend.evidence.departures import left_by
from phalanx.backend.evidence.handled_errors import find_handling
from phalanx.backend.evidence.invalid_call import note_invalid_call
from phalanx.backend.evidence.model_names import (
    THREAD,
    add_lacking,
    names_for_failure,
    note_lacking,
    with_names,
)
from phalanx.backend.group_reuse import (
    can_be_inherited,
    inherit,
    leaves_untouched,
    made_more,
    take_stock,
)
from phalanx.backend.meeting_checks import find_unheard
from phalanx.backend.rank_errors import error_for
from phalanx.backend.session import Environ, RankContext, Session
from phalanx.backend.stores.store import InProcessStore
from phalanx.backend.torch_patches import leave_groups
from phalanx.backend.torch_private import private, private_modes
from phalanx.backend.work import buffer_modes, completion, execution_traces, profiler_events
from phalanx.backend.work.promises import give_one_up
from phalanx.checks.call_paths import with_paths
from phalanx.checks.error_handlers import with_handled
from phalanx.checks.unmatched_message import find_leftovers
from phalanx.core.baton import Baton
from phalanx.core.clock import Clock
from phalanx.core.computing import charge
from phalanx.core.invariants import check_invariants
from phalanx.core.launcher import Launcher
from phalanx.core.schedule import schedule_from_seed
from phalanx.core.strand import RUNNING, Strand, here
from phalanx.core.thread_pool import FORGETS_LOCALS, RankThreadPool
from phalanx.emulation.modules.crossing import IsolatedCall, opened
from phalanx.emulation.modules.isolating import isolating, own_modules
from phalanx.emulation.modules.registrations import forget
from phalanx.emulation.run_patches import (
    devices_mapped,
    hold,
    keep_groups_by_thread,
    release,
)
from phalanx.emulation.state import fork, logs
from phalanx.emulation.state.environ import environ_here
from phalanx.emulation.state.switcher import switchers
from phalanx.emulation.stdlib.executor_pools import finish_jobs
from phalanx.emulation.stdlib.listening_threads import serves
from phalanx.emulation.stdlib.rank_children import (
    end_processes,
    kill_processes,
    leave_if_forked,
)
from phalanx.emulation.stdlib.replaced_calls import enter_thread
from phalanx.emulation.stdlib.signals import SignalDispatch
from phalanx.emulation.stdlib.virtual_time import virtual_time
from phalanx.engines.look.look_door import LookDoor
from phalanx.engines.machine_limits import limits_named
from phalanx.engines.outcome import Outcome, Outcomes, find_error
from phalanx.engines.run_settings import (
    IDLE_STALL,
    Settings,
    choose_findings,
    environ_later,
    rank_environ,
    tell_findings,
)
from phalanx.engines.snapshots import group_views, is_debugging, take_snapshot, user_stacks
from phalanx.engines.threads.helper_threads import (
    end_helpers,
    join_helpers,
    start_callback_thread,
)
from phalanx.engines.threads.referee_host import Judge
from phalanx.engines.threads.renumbering import exchange
from phalanx.engines.threads.run_clock import make_clock, make_switcher
from phalanx.engines.threads.run_lock_watch import RunLockWatch
from phalanx.engines.threads.suite_on_threads import tests_now, with_tests_now
from phalanx.engines.threads.threads_check_host import find_at_end
from phalanx.engines.threads.threads_watch import ThreadsWatch
from phalanx.errors import RankStopped, UsageError, VerdictError
from phalanx.journal.events import RankEnded
from phalanx.journal.reader import Journal
from phalanx.model import Silenced, Stall, Unmet, Verdict
from phalanx.report.positions import render_positions
from phalanx.system import getpid

_one_run = threading.Lock()
if hasattr(os, "register_at_fork"):  # a child of a rank is in no run
    os.register_at_fork(after_in_child=_one_run._at_fork_reinit)  # type: ignore[attr-defined]


fork.install()


class ThreadsEngine:
    """Ranks as threads. One `Session` is kept from run to run until one fails."""

    def __init__(
        self, settings: Settings, *, thread_pool: RankThreadPool | None = None
    ) -> None:
        self.settings = settings
        self._thread_pool = thread_pool
        self.fingerprint = 0
        self.findings: list[Verdict] = []
        """What checks found in runs that succeeded."""
        self.silenced: list[Silenced] = []
        """What they found and the program has silenced."""
        self.journal: Journal | None = None
        """What happened in the last run, or in the one that is going on."""
        self._session: Session | None = None
        self._lone = False
        """Whether no thread is left that could look into the session."""
        self._busy = False
        self.clock = make_clock(settings, explored=settings.choices is not None)
        hold()
        self._holds = True

    def __del__(self) -> None:
        """One that was never closed and is forgotten still puts everything back."""
        if getattr(self, "_holds", False):
            self._holds = False
            release()

    def call(
        self, fn: Callable[..., Any], args: Sequence[Any], kwargs: Mapping[str, Any]
    ) -> list[Any]:
        """Call `fn` once per rank and return the values in rank order. Where ranks import
        packages of their own, `fn`, its arguments and the values refer to the rank's."""
        __tracebackhide__ = True
        if self.settings.modules is None:
            return self.run(lambda context: fn(*args, **kwargs))
        crossing = IsolatedCall(self.settings.modules, fn, args, kwargs)
        with crossing.errors_opened():
            return opened(self.run(lambda context: crossing.call()))

    def run(self, body: Callable[[RankContext], Any]) -> list[Any]:
        """Run `body` once per rank and return the values in rank order."""
        __tracebackhide__ = True
        nested = here.strand
        if nested is not None and (nested.helper or nested.state is not RUNNING):
            raise UsageError(
                "phalanx.run was called in a thread that a rank started; call it in the "
                "rank's main thread"
            )
        if nested is not None:
            nested.baton.frozen = True
            try:
                return self._run_once(body)
            finally:
                nested.baton.frozen = False
        with _one_run:
            return self._run_once(body)

    def close(self) -> None:
        """Destroy the groups that are left and put torch back as it was."""
        if self._busy:
            raise UsageError("a World cannot be closed while it runs; close it afterwards")
        journal = self.journal
        try:
            ranks = () if self._session is None else self._session.ranks
            if any(context.torch_state.pg_names for context in ranks):
                self.run(leave_groups)
        finally:
            self.journal = journal
            if self._session is not None and self._lone:
                self._session.dissolve()
            self._session = None
            forget(self.settings.modules)
            if self._holds:
                self._holds = False
                release()

    def _run_once(self, body: Callable[[RankContext], Any]) -> list[Any]:
        __tracebackhide__ = True
        if self._busy:
            raise UsageError(
                "this World is running already; nested runs need a World of their own"
            )
        session = self._session or self._new_session()
        self._session = None
        settings, pool = self.settings, self._thread_pool
        if body is leave_groups:  # this is no run of the program any more
            settings = replace(settings, on_journal=None, faults=())
        run = _class_for(settings)(settings, session, body, thread_pool=pool, clock=self.clock)
        self.journal = session.journal.reader()
        outer, here.strand = here.strand, None
        excepthook = sys.excepthook
        self._busy = True
        try:
            with isolating(self.settings.modules):
                values = run.execute()
            if self._thread_pool is not None and not FORGETS_LOCALS and made_more(session):
                self._thread_pool.close()
            ended = run.outcomes.any_stopped or self._keep_for_reuse(session)
            self._session = None if ended else session
            self._lone = run.dissolve()
            if run.findings:
                self._tell(run.findings)
            return values
        finally:
            if self.settings.on_tally is not None:
                found = replace(session.tally(), silenced=tuple(self.silenced))
                self.settings.on_tally(found)
            self._busy = False
            self.fingerprint = run.baton.fingerprint
            here.strand = outer
            sys.excepthook = excepthook

    def _tell(self, found: Sequence[Verdict]) -> None:
        findings, silenced = choose_findings(found, self.settings)
        self.findings += findings
        self.silenced += silenced
        tell_findings(findings, self.settings)

    def _keep_for_reuse(self, session: Session) -> bool:
        """Leave the groups to the next world of this kind, if the thread pool is to have one.
        Not with a seed, which decides about making groups, too; nor what faults have hurt."""
        if self.settings.faults:
            return True
        if self._thread_pool is None or self.settings.seed or not can_be_inherited(session):
            return False
        self._thread_pool.groups_for_reuse[self._kind()] = session
        return True

    def _former(self) -> Session | None:
        """The one whose groups this world has, if any."""
        settings = self.settings
        if self._thread_pool is None or not settings.init or settings.seed or settings.faults:
            return None
        former: Session | None = self._thread_pool.groups_for_reuse.pop(self._kind(), None)
        store = settings.store
        if former is not None and store is not None and former.stores["init"] is not store:
            return None
        return former

    def _kind(self) -> tuple[Any, ...]:
        settings = self.settings
        checks = (settings.checked, settings.kinds, settings.profile)
        return (settings.ranks, settings.backend, settings.device, settings.gpus, *checks)

    def _new_session(self) -> Session:
        settings = self.settings

        def report(verdict: Verdict) -> VerdictError:
            verdict = with_paths(verdict, find_stacks(session.ranks))
            verdict = with_handled(verdict, find_handling(session.ranks))
            named = with_tests_now(with_names(session, verdict), session, settings.test_of)
            named = replace(named, names=(*session.fault_lines, *named.names))
            session.raised.append(named)
            session.journal.found(verdict)
            return error_for(named, settings.replay)

        former = self._former()
        session = Session(
            settings,
            report=report,
            environs=self._environs(),
            devices=plan_devices(settings.device, settings.gpus, per_node=settings.node_size),
            states=[each.torch_state for each in former.ranks] if former is not None else (),
            now=self.clock.reading,
        )
        session.makes_world = settings.init
        if settings.on_devices is not None and session.devices is not None:
            settings.on_devices(session.devices, settings.ranks)
        own_modules(session.ranks, settings.modules)
        if former is not None:
            inherit(session, former)
        else:
            session.stores["init"] = settings.store or InProcessStore()
        return session

    def _environs(self) -> Iterable[Environ]:
        """With a thread pool a session has one run, meanwhile the caller waits, and its
        environment is what it was when a rank looks."""
        settings, given, ranks = self.settings, self.settings.environ or {}, self.settings.ranks
        if self._thread_pool is not None and here.strand is None:
            return [partial(environ_later, settings, rank) for rank in range(ranks)]
        base = {**environ_here(), **given}
        return [rank_environ(base, settings, rank) for rank in range(ranks)]


class Run:
    """One run of one body on all ranks."""

    baton_class = Baton

    def __init__(
        self,
        settings: Settings,
        session: Session,
        body: Callable[[RankContext], Any],
        *,
        thread_pool: RankThreadPool | None = None,
        clock: Clock,
    ) -> None:
        self.settings = settings
        self.pid = getpid()
        self.thread_pool = thread_pool
        self.session = session
        session.begin_journal()
        if settings.on_journal is not None:
            settings.on_journal(session.journal)
        for context in session.ranks:
            context.holds.clear()
        self.body = body
        self.outcomes = Outcomes([Outcome(rank) for rank in range(settings.ranks)])
        self.findings: Sequence[Verdict] = ()
        self._left_threads = False
        self._device = private_modes.default_device() if private.function_modes() else None
        """The caller's default device, which torch keeps for each thread."""
        self.switcher = make_switcher(clock)
        self.baton = self.baton_class(
            schedule=schedule_from_seed(settings.seed),
            choices=settings.choices,
            clock=clock,
            switcher=self.switcher,
            callback_thread=start_callback_thread,
            shared_core=thread_pool.shared_core if thread_pool is not None else None,
        )
        self.judge = Judge(session, self.baton, self.outcomes)
        self.baton.on_stuck = self.judge.judge_stuck
        session.promises.clear()
        if settings.choices is None or self.baton.step_choice is None:
            self.baton.on_look = self.judge.look
        else:  # a look is at a moment that nobody has chosen
            self.baton.step_choice.on_idle = partial(give_one_up, session, settings.choices)
        self.baton.serves_by(serves)
        self.baton.on_condemned = self.judge.forget
        self.signals = SignalDispatch(self.baton, session.ranks)
        watch = ThreadsWatch(session, self.baton, self.outcomes)
        self.door = LookDoor(watch, engine=settings.engine)
        if settings.on_watch is not None:
            settings.on_watch(watch)
        self.lock_watch = RunLockWatch(settings, self.baton, self._stall_locked)
        if settings.late_numbers:
            session.renumber = partial(exchange, session, self.baton, self.outcomes)

    def execute(self) -> list[Any]:
        __tracebackhide__ = True
        settings = self.settings
        launcher = Launcher(
            self.baton,
            stall_after=settings.timeout or IDLE_STALL,
            work_counts=settings.timeout is None,
            on_stall=self._stall,
            limit=settings.limit,
            on_limit=lambda seconds: self._stall(seconds, over_limit=True),
            on_tick=self._tick,
            on_interrupt=self._tell_positions,
            thread_pool=self.thread_pool,
        )
        strands = [self.baton.add(context.rank, context) for context in self.session.ranks]
        self.signals.open()
        try:
            self.lock_watch.begin()
            keep_groups_by_thread(True)
            with self._what_applies():
                stuck = launcher.run(strands, [self._main] * len(strands))
        finally:
            self.lock_watch.end()
            keep_groups_by_thread(False)
            try:
                self.switcher.restore()
            finally:
                self.signals.close()
                self.door.close()
                if logs.in_use and not switchers:
                    logs.relax()
        self._left_threads = end_helpers(self.session, self.baton)
        if launcher.interrupted is not None:
            with limits_named("the ranks could not be started"):
                raise launcher.interrupted
        for strand in stuck:
            kill_processes(strand.local)
        if stuck:
            stacks = user_stacks(self.baton)
            self.outcomes.stuck = tuple(
                (s.rank, (stacks.get(s.rank) or (None,))[-1]) for s in stuck
            )
        self.outcomes.names = add_lacking(self.session, self.outcomes.names)
        error = find_error(self.outcomes, settings.replay)
        if error is not None:
            raise error
        if settings.checked and not self.outcomes.any_stopped:
            if self.session.put_off:
                completion.complete_all(self.session)
            unheard = find_unheard(self.session)
            unmet = self._find_leftovers()
            late = find_at_end(self.session, unmet, settings.test_of)
            self.findings = [*unheard, *late]
            for found in late:  # the others were written when they were raised
                self.session.journal.found(found)
        return [outcome.value for outcome in self.outcomes.ranks]

    def _what_applies(self) -> ExitStack:
        """What is in place only in runs that ask for it."""
        stack = ExitStack()
        if self.session.devices is not None:
            stack.enter_context(devices_mapped())
        if self.settings.clock == "virtual":
            stack.enter_context(virtual_time())
        return stack

    def dissolve(self) -> bool:
        """After a run that went well: let go of what refers back, so that all of it ends here
        and not with a garbage collection. Not if threads are left, which may still use it."""
        if self._left_threads:
            return False
        baton = self.baton
        for strand in baton.strands:
            strand.inside = strand.why = None
        baton.strands.clear()
        baton.callback_thread = baton.on_stuck = baton.on_look = baton.on_condemned = None
        baton.step_choice = None
        for context in self.session.ranks:
            context.tell_failure = None
        return True

    def _tick(self) -> None:
        self.signals.serve()
        self.door.tick()
        self.lock_watch.look()
        self.baton.note_calls(self.session.posted)
        if self.settings.on_tick is not None:
            self.settings.on_tick()

    def _find_leftovers(self) -> Sequence[Unmet]:
        waits, self.session.leftovers = self.session.leftovers, []
        for met in self.session.mailboxes.values():
            for call in met.open_calls():
                if not call.waited:
                    waits.append(describe_pending(call))
                    call.waited = True  # told once, also if the world runs again
        return find_leftovers(waits)

    # -- inside a rank's thread -----------------------------------------------------------

    def _main(self, strand: Strand) -> None:
        context: RankContext = strand.local
        outcome = self.outcomes.ranks[context.rank]
        context.tell_failure = partial(self._tell_failure, outcome)
        context.left = context.caught = None
        try:
            self.switcher.begin(context)
            enter_thread(context)
            context.saved[THREAD] = strand.ident
            self.lock_watch.note_rank(context.rank, strand.ident, strand.native)
            self._init(context)
            if self._device is not None:
                torch.set_default_device(self._device)
            try:
                outcome.value = self.body(context)
            except SystemExit as end:
                if end.code not in (None, 0):
                    raise
                context.left = left_by(end)
            leave_if_forked(self.pid)
            if context.invariants:
                check_invariants(strand)
            if self.settings.on_rank_end is not None:
                self.settings.on_rank_end(context)
            if strand.pending_callbacks:
                self.baton.run_pending_callbacks(strand)
            finish_jobs(context)
            if context.helpers:
                join_helpers(context)
            charge(strand)
        except BaseException as error:
            leave_if_forked(self.pid, error)
            self._tell_failure(outcome, error)
        finally:
            self._note_end(outcome)
            self._put_away(context)

    def _tell_failure(self, outcome: Outcome, error: BaseException) -> None:
        """At the end of a body, or before it cleans up: then what comes later is late."""
        if outcome.error is not None:
            outcome.late = error if error is not outcome.error else outcome.late
            return
        note_invalid_call(error)
        if self.outcomes.record(outcome.rank, error, stopping=self.baton.stopping):
            note_lacking(self.session.ranks[outcome.rank].saved, error)
            self._stop_others(outcome.rank, error)

    def _note_end(self, outcome: Outcome) -> None:
        rank, error = outcome.rank, outcome.error
        stopped = outcome.stopped or outcome.late is not None
        how = "failed" if error is not None else "stopped" if stopped else "finished"
        name = "" if error is None else type(error).__name__
        self.session.journal.add(RankEnded(self.session.now(), rank, 0, None, how, name))

    def _put_away(self, context: RankContext) -> None:
        """What a process would take with it when it ends."""
        outcome = self.outcomes.ranks[context.rank]
        if self._device is not None:
            torch.set_default_device(None)
        end_processes(context, failed=outcome.error is not None or self.baton.stopping)
        with suppress(RankStopped):
            if self.switcher.end(context) or context.uses_pools:
                leaves_untouched(context)  # what ran last may have changed that
        with suppress(RankStopped):
            profiler_events.leave_thread()
            execution_traces.leave_thread(context, stopping=self.baton.stopping)
        buffer_modes.leave_thread()
        if self.session.devices is not None:
            device_mode.leave_thread()
        private.unregister_groups()

    def _init(self, context: RankContext) -> None:
        settings = self.settings
        if settings.init and settings.device == "cuda":
            torch.cuda.set_device(context.rank % (settings.per_node or settings.ranks))
        if settings.init and context.torch_state.default_pg is None:
            dist.init_process_group(
                settings.backend or default_backend(),
                store=self.session.stores["init"],
                rank=context.rank,
                world_size=settings.ranks,
            )
            if self.thread_pool is not None:
                take_stock(context)

    def _stop_others(self, rank: int, error: BaseException) -> None:
        if not self.outcomes.stopped_at:
            tests = tests_now(self.session, self.settings.test_of)
            names = names_for_failure(self.session, rank, error)
            hint = hint_for(error, self.session.devices, ranks=self.settings.ranks)
            self.outcomes.names = (*tests, *names, *hint)
            snapshot = take_snapshot(self.session, self.baton, self.outcomes)
            others = [view for view in snapshot.ranks if view.status != "failed"]
            self.outcomes.stopped_at = group_views(others)
        self.baton.stop()

    # -- called by the baton, the launcher and the monitor --------------------------------

    def _stall(self, seconds: float, *, over_limit: bool = False) -> bool:
        if is_debugging(self.baton):
            return False  # somebody thinks, at a prompt
        stall = self.judge.stalled(seconds, over_limit=over_limit)
        error: VerdictError = self.session.report(stall)
        verdict = error.verdict
        rank = verdict.ranks[0] if verdict is not None and verdict.ranks else 0
        self.outcomes.record(rank, error, stopping=False)
        self.baton.stop()
        return True

    def _stall_locked(self, stall: Stall | None) -> None:
        """No thread could run for too long, and now they can again: still it was a stall."""
        stall = stall or self.judge.stalled(self.settings.timeout or IDLE_STALL)
        error = self.session.report(stall)
        self.outcomes.record(min(stall.ranks, default=0), error, stopping=False)
        self.baton.stop()

    def _tell_positions(self) -> None:
        """Of one run of many that are explored nobody asks where its ranks were."""
        if self.settings.choices is not None:
            return
        snapshot = take_snapshot(self.session, self.baton, self.outcomes)
        text = render_positions(
            "interrupted; each rank was at", group_views(list(snapshot.ranks))
        )
        print(text, file=sys.stderr, flush=True)


def _class_for(settings: Settings) -> type[Run]:
    if not settings.faults:
        return Run
    from phalanx.engines.threads.strikes import run_with_faults  # which needs this module

    return run_with_faults.RunWithFaults
