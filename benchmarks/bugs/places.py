"""Where programs run: plain Gloo, Gloo under DETAIL, Phalanx on threads or on processes. What
comes back is data: errors by rank with their lines, or verdicts.

Used by the runner; each function here is the task of a forked child, but for `on_processes`:
that one forks its ranks from a process that stays warm, so it runs in the runner itself.
"""

from __future__ import annotations

import os
import runpy
import socket
import sys
import time
import traceback
import warnings
from collections.abc import Iterator
from dataclasses import fields, is_dataclass
from functools import partial
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

from benchmarks.bugs.children import Job
from benchmarks.bugs.programs import Program, carry_out

GLOO_LIMIT = 8.0
PHALANX_LIMIT = 20.0

PLACES = ("gloo", "detail", "phalanx", "processes")


def preload(place: str) -> None:
    """Load what ranks need once, before there are any children."""
    with warnings.catch_warnings():  # torch's own, about torch.jit
        warnings.simplefilter("ignore")
        import torch.distributed.optim  # noqa: F401
    if place == "phalanx":
        import phalanx.engines.threads.script_on_threads
    elif place == "processes":
        import phalanx.engines.processes.script_on_processes  # noqa: F401


def job(place: str, program: Program) -> Job:
    """The program on that place, ready to be run."""
    label = f"{place}:{program.id}"
    if place in ("gloo", "detail"):
        port = free_port()
        tasks = [
            partial(on_gloo, program, rank, port=port, detail=place == "detail")
            for rank in range(program.ranks)
        ]
        return Job(label, tasks, GLOO_LIMIT + program.ranks / 8)
    return Job(label, [partial(on_threads, program)], PHALANX_LIMIT)


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def on_gloo(program: Program, rank: int, *, port: int, detail: bool) -> dict[str, Any]:
    """One rank, as torchrun would start it."""
    os.environ.update(
        RANK=str(rank),
        LOCAL_RANK=str(rank),
        WORLD_SIZE=str(program.ranks),
        LOCAL_WORLD_SIZE=str(program.ranks),
        MASTER_ADDR="127.0.0.1",
        MASTER_PORT=str(port),
        GLOO_SOCKET_IFNAME="lo",
        TORCH_DISTRIBUTED_DEBUG="DETAIL" if detail else "OFF",
    )
    dist.set_debug_level_from_env()  # type: ignore[attr-defined]
    torch.set_num_threads(1)
    begun = time.perf_counter()
    told: dict[str, Any] = {"rank": rank, "error": None, "lines": []}
    try:
        _execute(program)
    except BaseException as error:
        if not (isinstance(error, SystemExit) and not error.code):
            told["error"] = f"{type(error).__name__}: {error}"
            told["lines"] = sorted(_lines(error, program.file))
    told["seconds"] = time.perf_counter() - begun
    if told["error"] is None:
        told["leave"] = "by exit"
    return told


def _execute(program: Program) -> None:
    if program.script is None:
        carry_out(program)
        return
    sys.argv = [program.script]
    sys.path.insert(0, str(Path(program.script).parent))
    runpy.run_path(program.script, run_name="__main__")


def _lines(error: BaseException, file: str) -> set[int]:
    frames = traceback.extract_tb(error.__traceback__)
    return {
        frame.lineno or 0 for frame in frames if Path(frame.filename).name == Path(file).name
    }


def on_threads(program: Program) -> dict[str, Any]:
    """All ranks, as `phalanx run -n N` would, or `phalanx.run`."""
    from phalanx.engines.program import load_script
    from phalanx.engines.run_settings import Settings
    from phalanx.engines.threads.script_on_threads import run_program
    from phalanx.engines.threads.threads_engine import ThreadsEngine

    found: list[Any] = []
    settings = Settings(**_options(program), on_findings=found.extend)
    script = None if program.script is None else load_script(program.script, [])
    engine = None if script is not None else ThreadsEngine(settings)
    begun = time.perf_counter()
    try:
        if script is not None:
            run_program(script, settings)
        elif engine is not None:
            engine.run(lambda context: carry_out(program))
    except BaseException as error:
        return _told(error, found, begun)
    else:
        return _told(None, found, begun)
    finally:
        if engine is not None:
            engine.close()


def on_processes(program: Program) -> dict[str, Any]:
    """Each rank a process on the real Gloo, watched by the controller. What hangs or crashes is
    a rank; the time limit is the engine's."""
    from phalanx.engines.processes.processes_engine import ProcessesEngine, ProcessSettings
    from phalanx.engines.processes.script_on_processes import run_program_in_processes
    from phalanx.engines.program import load_script

    found: list[Any] = []
    settings = ProcessSettings(
        **_options(program),
        on_findings=found.extend,
        on_output=lambda *output: None,
        limit=PHALANX_LIMIT,
    )
    script = None if program.script is None else load_script(program.script, [])
    engine = None if script is not None else ProcessesEngine(settings)
    begun = time.perf_counter()
    try:
        if script is not None:
            run_program_in_processes(script, settings)
        elif engine is not None:
            engine.call(carry_out, (program,))
    except KeyboardInterrupt:
        raise
    except BaseException as error:
        return _told(error, found, begun)
    else:
        return _told(None, found, begun)
    finally:
        if engine is not None:
            engine.close()


def _options(program: Program) -> dict[str, Any]:
    profile = None if program.profile == "gloo" else program.profile
    return {"ranks": program.ranks, "init": False, "profile": profile}


def _told(error: BaseException | None, found: list[Any], begun: float) -> dict[str, Any]:
    seconds = time.perf_counter() - begun
    verdicts = [*_verdicts_of(error), *(as_data(each) for each in found)]
    text = None if error is None else f"{type(error).__name__}: {error}"
    return {"seconds": seconds, "error": text, "verdicts": verdicts}


def _verdicts_of(error: BaseException | None) -> Iterator[dict[str, Any]]:
    """What an error says, as data. What a rank raised may carry a verdict of its own."""
    if error is None:
        return
    inner = getattr(error, "failures", {})
    carried = {r: getattr(each, "verdict", None) for r, each in inner.items()}
    if any(carried.values()):
        for verdict in {id(each): each for each in carried.values() if each}.values():
            yield as_data(verdict)
        return
    verdict = getattr(error, "verdict", None)
    if verdict is None:
        yield {"kind": "crash", "severity": "error", "ranks": [], "sites": []}
        return
    data = as_data(verdict)
    if inner and all(_is_invalid_call(each) for each in inner.values()):
        data["kind"] = "invalid-call"
    yield data


def _is_invalid_call(error: BaseException) -> bool:
    return any(base.__name__ == "InvalidCallError" for base in type(error).__mro__)


def as_data(verdict: Any) -> dict[str, Any]:
    sites: set[tuple[str, int]] = set()
    for name in ("blocks", "sites"):
        _collect_sites(getattr(verdict, name, None), sites)
    return {
        "kind": verdict.kind,
        "severity": verdict.severity,
        "ranks": list(verdict.ranks),
        "sites": sorted(sites),
    }


def _collect_sites(value: Any, found: set[tuple[str, int]]) -> None:
    from phalanx.model import Site

    if isinstance(value, Site):
        found.add((Path(value.file).name, value.line))
    elif isinstance(value, dict):
        _collect_sites(tuple(value.values()), found)
    elif isinstance(value, (tuple, list)):
        for each in value:
            _collect_sites(each, found)
    elif is_dataclass(value):
        for part in fields(value):
            _collect_sites(getattr(value, part.name), found)
