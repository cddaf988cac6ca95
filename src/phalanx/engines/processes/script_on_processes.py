"""Run a script or module on ranks that are processes, each as that process's `__main__`.

Used by the command line; the counterpart of `script_on_threads.py`. The source is compiled
once, in the program, and `script_in_rank.py` runs it in a rank.
"""

from __future__ import annotations

import os
import random
import sys
from dataclasses import replace
from functools import partial

import torch

from phalanx.engines.processes.process_rank import tell_test
from phalanx.engines.processes.processes_engine import (
    ProcessesEngine,
    ProcessSettings,
    free_port,
)
from phalanx.engines.program import Program
from phalanx.engines.restarts.attempts import run_attempts
from phalanx.engines.script_in_rank import Script, as_script, execute


def run_program_in_processes(program: Program, settings: ProcessSettings) -> bool:
    """Execute it on every rank; whether it went about it as a distributed program: a rank
    initialised `torch.distributed`, or left by `sys.exit` before it came to that, or by
    `os._exit`."""
    if not settings.max_restarts:
        return _run_once(program, settings)
    # torchrun's ranks find the address of before.
    given = {**os.environ, **(settings.environ or {})}
    port = given.get("MASTER_PORT") or str(free_port())
    settings = replace(settings, environ={**(settings.environ or {}), "MASTER_PORT": port})
    return run_attempts(settings, partial(_run_once, program))


def _run_once(program: Program, settings: ProcessSettings) -> bool:
    engine = ProcessesEngine(settings)
    try:
        ends = engine.call(_start, [as_script(program)], may_exit=True)
    finally:
        engine.close()
    told = [end for end in ends if isinstance(end, tuple)]
    if settings.on_exit is not None:
        for _, status in told:
            settings.on_exit(status)
    return len(told) < len(ends) or any(initialised for initialised, _ in told)


def _start(script: Script) -> tuple[bool, int]:
    """What `execute` returns, and the exit status if it is pytest. Its random numbers are those
    of no other rank, as in a process that was started."""
    random.seed()
    torch.default_generator.seed()
    numpy_random = sys.modules.get("numpy.random")
    if numpy_random is not None:
        numpy_random.seed()
    statuses = [0]
    return execute(script, tell_test=tell_test, statuses=statuses), statuses[-1]
