"""Run a script or module as torchrun would: once per rank, as that rank's `__main__`.

Used by the command line. The source is compiled once; every rank executes it in a module of
its own, with its own `sys.argv`, so pickling a class of `__main__` finds the rank's own.
"""

from __future__ import annotations

import gc
import sys
from dataclasses import replace
from functools import partial
from importlib import import_module
from types import ModuleType

from phalanx.backend.evidence.departures import left_by
from phalanx.backend.evidence.env_groups import SCRIPT
from phalanx.backend.session import RankContext
from phalanx.core.strand import here
from phalanx.emulation.modules.importing import code_of_one_rank
from phalanx.emulation.modules.isolating import own_main
from phalanx.emulation.modules.isolation_rule import IsolationRule
from phalanx.emulation.modules.known_libraries import LIBRARIES
from phalanx.emulation.random import randomness
from phalanx.emulation.state.exits import call_own_hook
from phalanx.engines.program import Program
from phalanx.engines.restarts.attempts import run_attempts
from phalanx.engines.run_settings import Settings
from phalanx.engines.suite_of_run import activate
from phalanx.engines.threads.restarted_rank import begin_attempt
from phalanx.engines.threads.suite_on_threads import SuiteOnThreads
from phalanx.engines.threads.threads_engine import ThreadsEngine
from phalanx.errors import RankExited
from phalanx.model import Leave


def run_program(program: Program, settings: Settings) -> bool:
    """Execute it on every rank; whether it went about it as a distributed program: a rank
    initialised `torch.distributed`, or left by `sys.exit` before it came to that."""
    if not settings.max_restarts:
        return _run_once(program, settings)
    return run_attempts(settings, partial(_run_once, program))


def _run_once(program: Program, settings: Settings) -> bool:
    rule = settings.modules or IsolationRule(script=True)
    engine = ThreadsEngine(replace(settings, modules=rule))
    attempts = settings.attempts
    if attempts is not None:
        engine.clock = attempts.clock = attempts.clock or engine.clock
    settled: list[bool] = []
    hook = sys.excepthook
    suite = SuiteOnThreads(settings.ranks) if program.is_pytest else None

    def body(context: RankContext) -> None:
        try:
            if attempts is not None:
                begin_attempt(context, attempts, settings.choices)
            _execute(program, context)
            context.left = Leave("end")
            _finalise(rule)
        except SystemExit as end:
            settled.append(True)
            if settings.on_exit is None or not isinstance(end.code, int):
                raise
            context.left = left_by(end)
            settings.on_exit(int(end.code))
        except Exception as error:
            call_own_hook(error, hook)
            raise
        except RankExited as end:
            settled.append(True)
            if end.code:
                raise
            context.left = left_by(end)
        finally:
            settled.append(context.initialised)
            if attempts is not None and settings.choices is not None and here.strand:
                attempts.stamps.append(settings.choices.stamp(here.strand))
            if suite is not None:
                suite.gone(context.rank)

    search_path, folders = list(sys.path), set(sys.path_importer_cache)
    sys.path.insert(0, program.search_path)
    for name in program.imported:
        rule.decide(name.partition(".")[0])
    try:
        activate(suite)
        with randomness.script(settings.seed):
            engine.run(body)
    finally:
        activate(None)
        engine.close()
        sys.path[:] = search_path
        for name in filter(rule.covers, program.imported):
            sys.modules.pop(name, None)
        if program.search_path not in folders:
            sys.path_importer_cache.pop(program.search_path, None)
    return any(settled)


def _finalise(rule: IsolationRule) -> None:
    """Objects of libraries that die in a circle go while their rank is there, with its
    environment and modules (DeepSpeed's engine imports in `__del__`), as in a process that
    ends. Only with libraries whose import takes far longer than this."""
    if any(rule.covers(library.package) for library in LIBRARIES):
        gc.collect()


def _execute(program: Program, context: RankContext) -> None:
    main = ModuleType("__main__")
    names = main.__dict__
    names.update(program.names_of_main())
    own_main(context, main, program.code)
    context.saved["argv"] = sys.argv = list(program.argv)
    context.saved[SCRIPT] = True
    if program.spec is not None and program.spec.parent:
        import_module(program.spec.parent)
    exec(code_of_one_rank(program.code), names)
