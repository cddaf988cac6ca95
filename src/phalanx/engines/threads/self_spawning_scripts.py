"""Run a script that starts its ranks itself, by `torch.multiprocessing` or `multiprocessing`.

Used by the command line for `phalanx run SCRIPT` without a number of ranks. The script is
executed once, as by Python itself, in the calling thread; the processes that it starts become
the ranks of a world (`spawned_ranks.py`), which runs in a thread beside it.
"""

from __future__ import annotations

import inspect
import multiprocessing
import multiprocessing.context
import multiprocessing.process
import os
import pickle
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field, replace
from functools import partial
from types import ModuleType
from typing import Any, Protocol

import torch
import torch.distributed as dist
import torch.multiprocessing

from phalanx.backend.session import RankContext
from phalanx.backend.torch_private import private
from phalanx.core.strand import here
from phalanx.emulation.children.parent_rank import ParentRank
from phalanx.emulation.children.parent_state import put_environ
from phalanx.emulation.children.spawn_payload import SpawnPayload
from phalanx.emulation.children.spawn_rules import asked_size, is_torch_spawn
from phalanx.emulation.children.spawned_ranks import (
    HELD,
    LONG,
    Child,
    SpawningProgram,
)
from phalanx.emulation.modules.isolating import own_main
from phalanx.emulation.modules.isolation_rule import MAIN, MP_MAIN, IsolationRule, is_installed
from phalanx.emulation.modules.known_libraries import PACKAGES
from phalanx.emulation.patch_installer import put_in
from phalanx.emulation.patch_table import SELF_SPAWNING
from phalanx.emulation.run_patches import patched
from phalanx.emulation.stdlib.rank_children import close_queues, end_programs, set_family
from phalanx.engines.outcome import trim_traceback
from phalanx.engines.program import Program
from phalanx.engines.run_settings import Settings
from phalanx.engines.threads.threads_engine import ThreadsEngine
from phalanx.errors import RankExited, RankStopped, UsageError
from phalanx.model import Tally
from phalanx.shown.folded_stack import error_text
from phalanx.system import getpid, monotonic


@dataclass
class WorldEnd:
    """What came of one world: how much was checked, and its error."""

    tally: Tally | None = None
    error: BaseException | None = None
    by_spawn: bool = False
    """Whether torch's `spawn` raises in the program what ranks raise."""
    status: int | None = None
    """The exit status that this makes, if it was told already."""


@dataclass
class LaunchResult:
    """What came of it: the program's own error, and the worlds that there were."""

    error: BaseException | None = None
    worlds: list[WorldEnd] = field(default_factory=list)
    observed: bool = False
    """Whether the program has looked at the exit code of a rank that failed."""
    worlds_of_one: int = 0
    """How often the program made a group of itself alone, which torch's own backend has."""
    is_suite: bool = False
    """Whether the program is pytest."""
    launched: list[Any] = field(default_factory=list)
    """Commands that show that torch's own launcher was used; see `Programs`."""


class WorldObserver(Protocol):
    """Who is told of worlds and ranks that come and go."""

    def begin(self, size: int) -> None:
        """So many ranks are about to begin."""

    def finish(self, rank: int) -> None:
        """A rank has ended; its parent is told after this."""

    def end(self, world: WorldEnd) -> None:
        """All ranks have ended, so."""


class Unwatched:
    def begin(self, size: int) -> None: ...

    def finish(self, rank: int) -> None: ...

    def end(self, world: WorldEnd) -> None: ...


def run_launched(
    program: Program, settings: Settings, watcher: WorldObserver | None = None
) -> LaunchResult:
    """Execute the program, and what it starts as ranks."""
    return _Launching(program, settings, watcher or Unwatched()).run()


class _Launching:
    def __init__(self, program: Program, settings: Settings, watcher: WorldObserver) -> None:
        self._program = program
        self._settings = settings
        self._watcher = watcher
        self._rule = settings.modules or IsolationRule(script=True)
        self._main = ModuleType("__main__")
        self._family = SpawningProgram(self._pack, self._open_world)
        self._one_world = threading.Lock()
        self._stores: list[Any] = []
        """Of ranks that were forked. Such a process ends without taking them down, so their
        files stay for the program."""
        self.launch = LaunchResult(is_suite=program.is_pytest)

    def run(self) -> LaunchResult:
        launch = self.launch
        with ExitStack() as stack:
            stack.enter_context(patched())
            stack.enter_context(self._surroundings())
            try:
                self._execute(self._main)
            except BaseException as error:
                launch.error = error
            self._end(stack)
        launch.observed = self._family.observed
        launch.launched = self._family.programs.launched
        if isinstance(launch.error, RankStopped):
            launch.error = None
        return launch

    def _end(self, stack: ExitStack) -> None:
        interrupted = isinstance(self.launch.error, KeyboardInterrupt)
        try:
            if self._family.parent_rank is not None:
                self._leave_world(self._family.parent_rank, interrupted=interrupted)
            elif self._family.parent_state is not None:
                self._family.parent_state.end()
            self._family.stop() if interrupted else self._family.finish()
            if isinstance(self.launch.error, UsageError):  # what it began will not go on
                end_programs(self._family.programs)
        except KeyboardInterrupt as error:
            self.launch.error = error
            self._family.stop()

    def _leave_world(self, parent_rank: ParentRank, *, interrupted: bool) -> None:
        """What the program has raised is an error of its rank; but if it leaves by `sys.exit`
        when the others have ended, this is the status it wants."""
        error = self.launch.error
        if isinstance(error, SystemExit) and _exit_code(error) and parent_rank.is_alone():
            parent_rank.leave(None)
            return
        parent_rank.leave(error)
        if not interrupted:
            self.launch.error = None

    @contextmanager
    def _surroundings(self) -> Iterator[None]:
        """What Python itself would have set up for a script."""
        before = sys.modules[MAIN], sys.modules.get(MP_MAIN), sys.argv
        search_path, known, environ = list(sys.path), set(sys.modules), dict(os.environ)
        method, _contexts._actual_context = _contexts._actual_context, None
        sys.modules[MAIN] = sys.modules[MP_MAIN] = self._main
        sys.argv = list(self._program.argv)
        sys.path.insert(0, self._program.search_path)
        parent = _Parent()
        initialise = _initialising(dist.init_process_group, self._enter_init)
        take_out = put_in(SELF_SPAWNING, _patches(initialise, parent, self._stores))
        set_family(self._family)
        try:
            yield
        finally:
            set_family(None)
            take_out()
            parent.close()
            self._stores.clear()
            sys.path[:] = search_path
            _contexts._actual_context = method
            put_environ(environ)
            sys.modules[MAIN], mp_main, sys.argv = before
            if mp_main is not None:
                sys.modules[MP_MAIN] = mp_main
            for name in _programs_own(self._rule):
                if name not in known:
                    del sys.modules[name]

    def _execute(self, main: ModuleType) -> None:
        names = vars(main)
        names.update(self._program.names_of_main())
        exec(self._program.code, names)

    def _execute_anew(self, main: ModuleType) -> None:
        """In a process that was spawned. As multiprocessing has it, not the `__main__` of a
        package: it need not be guarded."""
        spec = self._program.spec
        if spec is not None and spec.name.rpartition(".")[2] == MAIN:
            main.__name__ = MAIN
        else:
            self._execute(main)

    def _pack(self, process: Any, forked: bool) -> SpawnPayload:
        modules = (
            {name: sys.modules[name] for name in _programs_own(self._rule)} if forked else {}
        )
        modules[MAIN] = self._main
        number = len(self._family.children)
        return SpawnPayload(process, number, forked=forked, modules=modules)

    def _enter_init(self, given: Mapping[str, Any]) -> None:
        """`init_process_group` is called with these arguments: by a rank, or by the program
        itself. Alone in its world the program needs no ranks: torch's own group is what it
        gets, before, between and after worlds that it starts."""
        is_one = asked_size(given, os.environ) == 1
        if is_one:
            self._family.leaves_rank()
        strand = here.strand
        if strand is not None:
            self._check_round()
            child = strand.local.saved.get("child")
            lacks_program = child is not None and child.lacks_rank_0
            size = given.get("world_size", -1)
            _check_size(strand.local.session.size, size, lacks_program=lacks_program)
        elif is_one:
            self.launch.worlds_of_one += 1
        elif not dist.is_initialized():  # else torch says so
            self._join()

    def _join(self) -> None:
        """The program itself makes the group of ranks that it has started."""
        family = self._family
        if family.parent_rank is not None or not family.has_pending():
            script = self._program.argv[0]
            if family.children:
                raise UsageError(
                    f"{script} calls init_process_group when the processes that it has "
                    "started are at work already, without it; call it sooner, or start the "
                    "processes later"
                )
            raise UsageError(
                f"{script} calls init_process_group and has started no processes that could "
                f"be its ranks; say how many ranks to run: phalanx run -n 4 {script}"
            )
        modules = {name: sys.modules[name] for name in _programs_own(self._rule)}
        parent_rank = ParentRank(self._main, self._program.code, modules, family.parent_state)
        family.begin(parent_rank)
        parent_rank.take()

    def _check_round(self) -> None:
        """A rank calls `init_process_group`: the program itself, for processes that it has
        started since the last time?"""
        parent_rank = self._family.parent_rank
        if parent_rank is not None and parent_rank.is_overdue and parent_rank.is_here():
            raise UsageError(
                "init_process_group in the program itself, which has started processes since "
                "it was a rank the last time; these could not become its ranks, because the "
                "ones before, or threads that it started as a rank, still ran. Join them "
                "before you start others"
            )

    # -- in the world's thread ------------------------------------------------------------

    def _open_world(
        self, children: list[Child], numbers: list[int], parent_rank: ParentRank | None
    ) -> None:
        with self._one_world:  # threads of the program may start ranks at the same time
            self._run_world(children, numbers, parent_rank)
        if parent_rank is not None:
            parent_rank.world_is_over.set()

    def _run_world(
        self, children: list[Child], numbers: list[int], parent_rank: ParentRank | None
    ) -> None:
        left = _Left(children, waits=parent_rank is None)
        bodies: dict[int, Body] = {
            number: self._body(child, left)
            for child, number in zip(children, numbers, strict=True)
        }
        if parent_rank is not None:
            bodies[next(n for n in range(len(bodies) + 1) if n not in bodies)] = parent_rank.sit
        for top in _to_decide(self._rule):
            self._rule.decide(top)
        tallies: list[Tally] = []
        settings = replace(
            self._settings,
            ranks=len(bodies),
            per_node=None,
            as_torchrun=False,
            late_numbers=True,
            modules=self._rule,
            on_tally=tallies.append,
        )
        world = WorldEnd(by_spawn=all(is_torch_spawn(child.restored()) for child in children))
        self.launch.worlds.append(world)
        self._watcher.begin(len(bodies))
        engine = ThreadsEngine(settings)
        try:
            engine.run(partial(_run_body, bodies, {}))
        except BaseException as error:
            world.error = error
        finally:
            with suppress(Exception):
                engine.close()
            left.end()
            self._show_ends(children)
            world.tally = tallies[-1] if tallies else None
            self._watcher.end(world)

    def _show_ends(self, children: list[Child]) -> None:
        limit = monotonic() + HELD
        while not self._family.observed and monotonic() < limit:
            if not any(child.is_held() for child in children):
                break
            time.sleep(0.02)
        for child in children:
            child.end(-signal.SIGTERM, hold=False)
            child.show()

    def _body(self, child: Child, left: _Left) -> Callable[[RankContext], None]:
        def body(context: RankContext) -> None:
            child.strand = here.strand
            context.saved["child"] = child
            if child.sent:
                raise RankStopped
            code, held = 1, False
            try:
                code = self._run_child(child, context)
            except SystemExit as end:
                code = _exit_code(end)
                raise
            except RankStopped:
                code, held = -signal.SIGTERM, True
                raise
            except RankExited as end:
                code = end.code
                if code:
                    raise
            finally:
                self._watcher.finish(context.rank)
                left.end_of(child, code, hold=held)

        return body

    def _run_child(self, child: Child, context: RankContext) -> int:
        payload: SpawnPayload = child.payload
        context.environ.clear()
        context.environ.update(payload.environ)

        context.saved["argv"] = sys.argv = payload.argv
        modules = dict(payload.make_modules())
        main = modules.pop(MAIN)
        own_main(context, main, self._program.code)
        for name, module in modules.items():
            sys.modules[name] = module
        if not payload.forked:
            self._execute_anew(main)
        process = payload.open()
        context.saved["process"] = process
        try:
            if is_torch_spawn(process):
                return _run_spawned(child, *process._args)
            process.run()
            return 0
        finally:
            close_queues(context)


class _Left:
    """The end of the last child is shown when the world is gone, and what belongs to the
    process is the program's again: it may go on at once. Not if the program is a rank itself:
    then the world ends after it."""

    def __init__(self, children: list[Child], *, waits: bool) -> None:
        self._children = children if waits else []
        self._last: Callable[[], None] | None = None

    def end_of(self, child: Child, code: int, *, hold: bool) -> None:
        end = partial(child.end, code, hold=hold)
        if child in self._children and self._is_last(child):
            self._last = end
        else:
            end()

    def _is_last(self, child: Child) -> bool:
        return all(other.has_ended() for other in self._children if other is not child)

    def end(self) -> None:
        if self._last is not None:
            self._last()


_file_store: Any = dist.FileStore  # type: ignore[attr-defined]
_contexts: Any = multiprocessing.context._default_context
"""Keeps what `set_start_method` has set."""


Body = Callable[[RankContext], None]


def _run_body(
    bodies: dict[int, Body], parent_ranks: dict[RankContext, Body], context: RankContext
) -> None:
    """By the numbers that ranks begin with; later they may have others."""
    if not parent_ranks:
        parent_ranks.update((each, bodies[each.rank]) for each in context.session.ranks)
    parent_ranks[context](context)


def _to_decide(rule: IsolationRule) -> set[str]:
    """Packages that are imported now and may be each rank's own."""
    found = {name.partition(".")[0] for name in _programs_own(rule)}
    imported = {name for name in list(sys.modules) if "." not in name}
    return found | imported if imported & PACKAGES else found


def _programs_own(rule: IsolationRule) -> list[str]:
    """Modules of the program that are imported now."""
    found = []
    for name, module in list(sys.modules.items()):
        path = getattr(module, "__file__", None)
        if not path or name in (MAIN, MP_MAIN) or is_installed(os.path.realpath(path)):
            continue
        if rule.decide(name.partition(".")[0]):
            found.append(name)
    return found


def _run_spawned(
    child: Child, fn: Any, index: int, args: tuple[Any, ...], error_file: str
) -> int:
    """What torch's `spawn` runs in a process: the error goes to its parent by a file."""
    try:
        fn(index, *args)
    except KeyboardInterrupt:
        pass
    except Exception as error:
        child.is_ending = True
        trim_traceback(error)
        with open(error_file, "wb") as file:
            pickle.dump(error_text(error), file)
        raise
    return 0


def _exit_code(end: SystemExit) -> int:
    if end.code is None:
        return 0
    return end.code if isinstance(end.code, int) else 1


class _Parent:
    """What `parent_process()` is in a rank: alive as long as the program."""

    def __init__(self) -> None:
        self._ends = os.pipe()
        own = multiprocessing.process.current_process()
        kind: Any = multiprocessing.process._ParentProcess  # type: ignore[attr-defined]
        self.process = kind(own.name, getpid(), self._ends[0])

    def close(self) -> None:
        for end in self._ends:
            os.close(end)


def _patches(initialise: Any, parent: _Parent, stores: list[Any]) -> list[tuple[Any, str, Any]]:
    """What is replaced while such a program runs, besides what every run replaces."""
    current = multiprocessing.process.current_process
    outer = multiprocessing.process.parent_process

    def current_process() -> Any:
        found = _saved("process")
        return current() if found is None else found

    def parent_process() -> Any:
        return outer() if _saved("child") is None else parent.process

    about = {"current_process": current_process, "parent_process": parent_process}
    modules = (multiprocessing.process, multiprocessing, torch.multiprocessing)
    return [
        (dist, "init_process_group", initialise),
        (private.c10d_module, "init_process_group", initialise),
        *((module, name, ask) for name, ask in about.items() for module in modules),
        (_file_store, "__init__", _keeping(_file_store.__init__, stores)),
    ]


def _saved(key: str) -> Any:
    strand = here.strand
    return None if strand is None else strand.local.saved.get(key)


def _initialising(original: Any, enter: Callable[[Mapping[str, Any]], None]) -> Any:
    pid, signature = getpid(), inspect.signature(original)

    def init_process_group(*args: Any, **kwargs: Any) -> Any:
        try:
            given = signature.bind(*args, **kwargs).arguments
        except TypeError:  # torch says so
            return original(*args, **kwargs)
        if getpid() == pid:  # else a process that the program forked
            enter(given)
        return original(*args, **kwargs)

    return init_process_group


def _check_size(have: int, wanted: Any, *, lacks_program: bool) -> None:
    if isinstance(wanted, int) and wanted > have:
        began = "1 process" if have == 1 else f"{have} processes"
        if lacks_program:
            raise UsageError(
                f"init_process_group(world_size={wanted}), but the program had started {began} "
                "with the numbers from 1 on, so that rank 0 is the program itself, and had "
                "not called init_process_group when these had to begin: it stood still for "
                f"{LONG:.0f} s, or waited for them. Call it sooner: prepare before you start "
                "the processes"
            )
        raise UsageError(
            f"init_process_group(world_size={wanted}), but the program had started {began} "
            "when it stood still, and these became the ranks: nothing said how many there "
            "would be. Start them together, or say so beforehand: an argument that is called "
            "world_size, or WORLD_SIZE in the environment"
        )


def _keeping(original: Any, stores: list[Any]) -> Any:
    def construct(self: Any, *args: Any, **kwargs: Any) -> None:
        original(self, *args, **kwargs)
        child = _saved("child")
        if child is not None and child.payload.forked:
            stores.append(self)

    return construct
