"""How often the programs fail on plain torch with Gloo: many runs, each in its own processes.

No Phalanx: torch and the standard library alone. A process that has imported torch forks the
ranks, so that a run costs about a tenth of a second of one core. Many runs go on at once, each
in a *slot*: a process that forks a store's server as torchrun's agent has it, and the ranks,
waits for them, and judges.

A run fails if a rank ends with an error or does not end within the limit. Of programs whose
bug is in their results, those runs fail that print something else than most do. Where a fault
decides, each run has one, of the kind and at a moment drawn from the seed: `kill` is SIGKILL,
`stop` is SIGSTOP for a tenth of a second, `drop_store` kills the server of the store. Nothing
here can cut connections, so `partition` injects nothing.
"""

from __future__ import annotations

import contextlib
import faulthandler
import gc
import json
import os
import random
import re
import select
import shutil
import signal
import sys
import tempfile
import time
import traceback
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from types import CodeType, ModuleType
from typing import IO, Any, NoReturn

import torch
import torch.distributed as dist

from benchmarks.orders.programs import Program

STOPPED = 0.1
STACK_TIME = 0.03
"""Seconds in which a rank that hangs writes down where it is."""


@dataclass
class Tally:
    """What the runs of one program came to."""

    runs: int = 0
    failed: int = 0
    hung: int = 0
    outputs: dict[str, int] = field(default_factory=dict)
    """How often which output was printed by runs that did not fail."""
    errors: dict[str, int] = field(default_factory=dict)
    """How often which last line of a traceback was seen."""
    seconds: float = 0.0
    cpu: float = 0.0

    def add(self, outcome: dict[str, Any]) -> None:
        self.runs += 1
        self.failed += outcome["failed"]
        self.hung += outcome["hung"]
        self.seconds += outcome["seconds"]
        self.cpu += outcome["cpu"]
        counts, key = (
            (self.errors, outcome["error"])
            if outcome["failed"]
            else (self.outputs, outcome["output"])
        )
        counts[key] = counts.get(key, 0) + 1

    def bad(self, program: Program) -> int:
        """Failed runs, and where no fault is injected those with another output than most."""
        odd = sum(self.outputs.values()) - max(self.outputs.values(), default=0)
        return self.failed + odd * (program.decides != "fault")


@dataclass(frozen=True)
class Task:
    """One run of one program."""

    program: Program
    number: int


def measure(
    programs: Sequence[Program],
    *,
    runs: Callable[[Program], int],
    slots: int,
    limit: float,
    seconds: float,
    file: Path,
    shard: tuple[int, int] = (1, 1),
) -> dict[str, Tally]:
    """Run each program as often as `runs` says, in `slots` at once, and keep writing the
    tallies into `file`.

    What the file has already counts, so the same command goes on where one was stopped.
    `shard` (2, 3) makes the second third of the runs. Ends before `seconds` are over.
    """
    tallies = {program.id: Tally() for program in programs}
    if file.exists():
        for name, tally in json.loads(file.read_text())["programs"].items():
            tallies[name] = Tally(**tally)
    part, parts = shard
    tasks = [
        Task(program, number)
        for program in programs
        for number in list(range(part - 1, runs(program), parts))[tallies[program.id].runs :]
    ]
    tasks.sort(key=lambda task: task.number)
    torch.set_num_threads(1)
    os.environ.update(RES_OPTIONS="timeout:1 attempts:1", TORCH_CPP_LOG_LEVEL="FATAL")
    codes = {
        each.id: compile(each.path.read_text(), str(each.path), "exec") for each in programs
    }
    gc.freeze()
    deadline = time.monotonic() + seconds
    readers = {
        start_slot(tasks[slot::slots], codes, limit=limit, deadline=deadline): slot
        for slot in range(min(slots, len(tasks)))
    }
    gather(readers, tallies, file, total=len(tasks))
    return tallies


def gather(
    readers: dict[IO[str], int], tallies: dict[str, Tally], file: Path, total: int
) -> None:
    """Take in what the slots say until all have ended."""
    written, done = time.monotonic(), 0
    while readers:
        for reader in select.select(list(readers), [], [], 1.0)[0]:
            line = reader.readline()
            if not line:
                del readers[reader]
                continue
            outcome = json.loads(line)
            tallies[outcome["id"]].add(outcome)
            done += 1
        if time.monotonic() - written > 3:
            write(tallies, file)
            written = time.monotonic()
            print(f"{done}/{total} runs", file=sys.stderr, flush=True)
    write(tallies, file)


def write(tallies: dict[str, Tally], file: Path) -> None:
    """All at once: a reader sees the old text or the new one."""
    data = {
        "torch": torch.__version__,
        "python": sys.version.split()[0],
        "cores": os.cpu_count(),
        "programs": {name: asdict(tally) for name, tally in sorted(tallies.items())},
    }
    new = file.with_suffix(".new")
    new.write_text(json.dumps(data, indent=1))
    os.replace(new, file)


def start_slot(
    tasks: list[Task], codes: dict[str, CodeType], *, limit: float, deadline: float
) -> IO[str]:
    """Fork a slot; what it says is read from the result, one line for each run."""
    inward, outward = os.pipe()
    if os.fork():
        os.close(outward)
        return os.fdopen(inward)
    os.close(inward)
    with contextlib.suppress(BaseException), os.fdopen(outward, "w") as report:
        spans: dict[str, float] = {}
        for task in tasks:
            if time.monotonic() + limit > deadline:
                break
            folder = tempfile.mkdtemp(prefix="orders_")
            try:
                outcome = run_task(task, codes[task.program.id], Path(folder), limit, spans)
            except OSError as error:
                print(f"{task.program.id}: {error}", file=sys.stderr, flush=True)
                continue
            finally:
                shutil.rmtree(folder, ignore_errors=True)
            print(json.dumps({"id": task.program.id, **outcome}), file=report, flush=True)
    os._exit(0)


def run_task(
    task: Task, code: CodeType, folder: Path, limit: float, spans: dict[str, float]
) -> dict[str, Any]:
    """How one run ended. `spans` has, of programs that get a fault, how long a run without one
    takes, in which the fault strikes; it is measured at the first run."""
    program = task.program
    if program.decides != "fault":
        return Run(task, code, folder, limit).outcome()
    if program.id not in spans:
        run = Run(task, code, folder, limit)
        run.outcome()
        spans[program.id] = run.span
    return Run(task, code, folder, limit, span=spans[program.id]).outcome()


class Run:
    """One run: its processes, its fault if it has a `span` for one, and how it ends."""

    def __init__(
        self, task: Task, code: CodeType, folder: Path, limit: float, span: float = 0.0
    ) -> None:
        self.program, self.code, self.folder = task.program, code, folder
        self.end = time.monotonic() + limit
        self.dice = random.Random(f"{task.program.id} {task.number}")
        self.span = span
        self.fault = self._draw() if span else ""
        self.agent = 0
        self.killed: set[int] = set()

    def _draw(self) -> str:
        kind = self.dice.choice(self.program.faults.split(","))
        return {"delay": "stop", "partition": ""}.get(kind, kind)

    def outcome(self) -> dict[str, Any]:
        start, before = time.monotonic(), os.times()
        failed = hung = False
        for attempt in range(self.program.restarts + 1):
            port = self._start_agent()
            failed, hung = self._attempt(attempt, port)
            self._end_agent()
            self.fault = ""
            self.killed.clear()
            if hung or not failed:
                break
        after = os.times()
        cpu = sum(after[2:4]) - sum(before[2:4])
        return {
            "failed": failed or hung,
            "hung": hung,
            "seconds": round(time.monotonic() - start, 3),
            "cpu": round(cpu, 3),
            "output": self._text("out"),
            "error": self._hanging_lines() if hung else self._last_error(),
        }

    def _attempt(self, attempt: int, port: int) -> tuple[bool, bool]:
        """Whether a rank failed, and whether the ranks were still there at the end."""
        ranks = [self._start_rank(rank, attempt, port) for rank in range(self.program.ranks)]
        pipes = {pipe: (rank, pid) for rank, (pipe, pid) in enumerate(ranks)}
        begun, began, strike, revive = 0, None, None, None
        failed = False
        while pipes and not failed and time.monotonic() < self.end:
            now = time.monotonic()
            needed = self.program.ranks if makes_group(self.code) else 1
            if begun >= needed and began is None:
                began = now
                strike = now + self.dice.uniform(0, self.span)
            if self.fault and strike is not None and now >= strike:
                revive = self._strike(pipes, now)
            if revive and now >= revive[0]:
                _signal(revive[1], signal.SIGCONT)
                revive = None
            soon = min(
                (at for at in (strike if self.fault else None, revive and revive[0]) if at),
                default=self.end,
            )
            for pipe in select.select(list(pipes), [], [], max(0.0, min(soon, self.end) - now))[
                0
            ]:
                said = os.read(pipe, 1)
                if said == b"i":
                    begun += 1
                    continue
                rank, pid = pipes.pop(pipe)
                os.close(pipe)
                status = os.waitpid(pid, 0)[1]
                expected = rank in self.killed and not self.program.restarts
                failed = failed or (status != 0 and not expected)
        if began and not self.span:
            self.span = time.monotonic() - began
        hung = bool(pipes) and not failed
        if hung:
            for _, pid in pipes.values():
                _signal(pid, signal.SIGUSR1)
            time.sleep(STACK_TIME)
        for pipe, (_, pid) in pipes.items():
            _signal(pid, signal.SIGKILL)
            os.waitpid(pid, 0)
            os.close(pipe)
        return failed, hung

    def _strike(
        self, pipes: dict[int, tuple[int, int]], now: float
    ) -> tuple[float, int] | None:
        """The fault happens; for a stop, when and to whom it ends."""
        kind, self.fault = self.fault, ""
        if kind == "drop_store":
            self._end_agent()
            return None
        rank, pid = self.dice.choice(sorted(pipes.values()))
        if kind == "kill":
            self.killed.add(rank)
            _signal(pid, signal.SIGKILL)
            return None
        _signal(pid, signal.SIGSTOP)
        return now + STOPPED, pid

    def _start_agent(self) -> int:
        """A process that serves the store, as torchrun's does; its port."""
        inward, outward = os.pipe()
        self.agent = os.fork()
        if not self.agent:
            with contextlib.suppress(BaseException):
                store = dist.TCPStore("127.0.0.1", 0, None, True, wait_for_workers=False)
                os.write(outward, f"{store.port}\n".encode())
                while True:
                    signal.pause()
            os._exit(1)
        os.close(outward)
        with os.fdopen(inward) as said:
            return int(said.readline() or 0)

    def _end_agent(self) -> None:
        if self.agent:
            _signal(self.agent, signal.SIGKILL)
            os.waitpid(self.agent, 0)
            self.agent = 0

    def _start_rank(self, rank: int, attempt: int, port: int) -> tuple[int, int]:
        inward, outward = os.pipe()
        pid = os.fork()
        if pid:
            os.close(outward)
            return inward, pid
        os.close(inward)
        os.environ.update(environment(rank, self.program.ranks, attempt, port))
        run_rank(self.code, self.program.path, self.folder, rank, outward)

    def _text(self, kind: str) -> str:
        """What the ranks wrote, one after the other."""
        return "".join(
            path.read_text(errors="replace")
            for path in sorted(self.folder.glob(f"{kind}[0-9]*"))
        )

    def _hanging_lines(self) -> str:
        """The lines of the program at which ranks were at the end."""
        pattern = re.compile(rf'{re.escape(self.program.path.name)}", line (\d+)')
        found = []
        for rank in range(self.program.ranks):
            lines = pattern.findall((self.folder / f"err{rank}").read_text(errors="replace"))
            found += [f"rank {rank} at {lines[0]}"] if lines else []
        return "hangs: " + ", ".join(found)

    def _last_error(self) -> str:
        lines = [line for line in self._text("err").splitlines() if line and line[0] != " "]
        return re.sub(r"\[[^]]*\]:?\d*", "", lines[-1])[:160] if lines else ""


def environment(rank: int, ranks: int, attempt: int, port: int) -> dict[str, str]:
    """What torchrun would set."""
    return {
        "RANK": str(rank),
        "LOCAL_RANK": str(rank),
        "WORLD_SIZE": str(ranks),
        "LOCAL_WORLD_SIZE": str(ranks),
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(port),
        "TORCHELASTIC_USE_AGENT_STORE": "True",
        "TORCHELASTIC_RESTART_COUNT": str(attempt),
        "GLOO_SOCKET_IFNAME": "lo",
    }


def run_rank(code: CodeType, path: Path, folder: Path, rank: int, pipe: int) -> NoReturn:
    """In the fork of a rank: run the script and end the process with its status."""
    status = 1
    try:
        os.chdir(folder)
        for number, kind in ((1, "out"), (2, "err")):
            file = os.open(folder / f"{kind}{rank}", os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
            os.dup2(file, number)
            os.close(file)
        sys.stdout, sys.stderr = os.fdopen(1, "w"), os.fdopen(2, "w")
        faulthandler.register(signal.SIGUSR1, all_threads=False)
        announce_begin(code, pipe)
        module = ModuleType("__main__")
        module.__file__ = str(path)
        sys.modules["__main__"] = module
        exec(code, module.__dict__)
        status = 0
    except SystemExit as end:
        status = end.code if isinstance(end.code, int) else int(bool(end.code))
    except BaseException:
        traceback.print_exc()
    finally:
        with contextlib.suppress(BaseException):
            sys.stdout.flush()
            sys.stderr.flush()
        os._exit(status)


def announce_begin(code: CodeType, pipe: int) -> None:
    """Write a byte into the pipe when the rank is in its group, or at once if it makes none: a
    fault before that is the launcher's concern."""
    if not makes_group(code):
        os.write(pipe, b"i")
        return
    real = dist.init_process_group

    def init_process_group(*args: Any, **kwargs: Any) -> None:
        real(*args, **kwargs)
        os.write(pipe, b"i")

    dist.init_process_group = init_process_group


def makes_group(code: CodeType) -> bool:
    """Whether a function of the script calls `init_process_group`."""
    functions = [each for each in code.co_consts if isinstance(each, CodeType)]
    return any("init_process_group" in each.co_names for each in functions)


def _signal(pid: int, number: int) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, number)
