"""Be a script or module in a rank that is a process: as that process's `__main__`.

Used on processes and under torchrun. The source is compiled where it was loaded; `Script` is
what travels.
"""

from __future__ import annotations

import builtins
import importlib.util
import marshal
import os
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from types import ModuleType
from typing import Any

import torch.distributed as dist
from torch.distributed import distributed_c10d as c10d

from phalanx.backend.evidence.departures import left_by, note_departure
from phalanx.backend.evidence.env_groups import ScriptProcess
from phalanx.backend.torch_private.private_registries import has_used_rpc
from phalanx.emulation.patch_installer import replaced
from phalanx.emulation.patch_table import RANK_PROCESS
from phalanx.engines.program import Program
from phalanx.engines.remote.idle_threads import only_joining
from phalanx.engines.suite_of_run import activate
from phalanx.model import Leave


@dataclass(frozen=True)
class Script:
    """A program that can travel."""

    code: bytes
    path: str
    argv: tuple[str, ...]
    search_path: str
    module: str | None
    is_pytest: bool = False


def as_script(program: Program) -> Script:
    return Script(
        code=marshal.dumps(program.code),
        path=program.path,
        argv=program.argv,
        search_path=program.search_path,
        module=None if program.spec is None else program.spec.name,
        is_pytest=program.is_pytest,
    )


def execute(
    script: Script,
    *,
    tell_test: Callable[[str], None],
    statuses: list[int] | None = None,
) -> bool:
    """In a rank: be that script. Its threads are waited for, as at the end of a program. Where
    it is pytest, `tell_test` is called with each test, and `statuses` takes the exit status."""
    if script.is_pytest:
        activate(SuiteInProcess(tell_test))
    ScriptProcess.is_script = True
    main = ModuleType("__main__")
    names: dict[str, Any] = main.__dict__
    names["__file__"] = os.path.abspath(script.path)
    names["__builtins__"] = builtins
    sys.modules["__main__"] = main
    sys.argv[:] = script.argv
    sys.path.insert(0, script.search_path)
    if script.module is not None:
        spec = importlib.util.find_spec(script.module)
        names["__spec__"] = spec
        names["__package__"] = spec.parent if spec is not None else ""
    with _noted() as initialised:
        try:
            exec(marshal.loads(script.code), names)
            note_departure(Leave("end"))
        except SystemExit as end:
            if script.is_pytest and statuses is not None and isinstance(end.code, int):
                statuses.append(int(end.code))
            elif end.code not in (None, 0):
                raise
            note_departure(left_by(end))
            initialised.append(True)
    end_pools()
    with only_joining():
        for thread in threading.enumerate():
            if thread is not threading.current_thread() and not thread.daemon:
                thread.join()
    return bool(initialised)


class SuiteInProcess:
    """What hooks of pytest tell in a rank that is a process."""

    def __init__(self, tell_test: Callable[[str], None]) -> None:
        self._tell_test = tell_test
        self._is_inside = False

    def enter(self) -> bool:
        entered, self._is_inside = not self._is_inside, True
        return entered

    def collect(self, tests: Sequence[str]) -> None: ...

    def begin_test(self, test: str) -> None:
        self._tell_test(test)

    def fail(self, error: str) -> None: ...

    def settle(self, *, passed: bool) -> BaseException | None:
        return None

    def why_stopped(self) -> str | None:
        return None

    def leave(self) -> None:
        self._is_inside = False


def end_pools() -> None:
    """As Python does at the end of a program, before it waits for threads: idle workers of a
    `ThreadPoolExecutor` that nobody shut down would be waited for in vain."""
    pools: Any = sys.modules.get("concurrent.futures.thread")
    if pools is not None:
        pools._python_exit()


@contextmanager
def _noted() -> Iterator[list[bool]]:
    """A list that is no longer empty once the program has called `init_process_group`, or at
    its end if it has called `init_rpc`."""
    calls: list[bool] = []
    name = "init_process_group"
    original = getattr(c10d, name)

    def init_process_group(*args: Any, **kwargs: Any) -> Any:
        calls.append(True)
        return original(*args, **kwargs)

    with replaced(RANK_PROCESS, [(owner, name, init_process_group) for owner in (dist, c10d)]):
        yield calls
    if has_used_rpc():
        calls.append(True)
