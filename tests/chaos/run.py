"""Inject faults into runs, at moments that a seed decides, and look at how each run ends.

    python -m tests.chaos.run [--count 500] [--minutes 30] [--seed 0] [--only FAULT]
                              [--engine ENGINE] [--jobs N] [--keep FOLDER]

Each injection is one `phalanx run` of `victim.py` in a process group and a temporary folder of
its own. It has to end in time, with a status that is right for this fault, and to leave nothing
behind: no process that has its mark in the environment, no file in its folder, and in the end
nothing more in /dev/shm. A run that failed must never look like one that passed. The moment of
a fault is a step that a rank has come to; for faults from outside it is read from the output.
Prints a line for each run that fell short, with the command, and a summary; exits with 1 if
there was any.
"""

from __future__ import annotations

import argparse
import os
import random
import re
import select
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import uuid
from collections import Counter
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

from tests.chaos.faults import ENGINES, FAULTS, RIGHT, TIMEOUT, Fault

VICTIM = Path(__file__).with_name("victim.py")
RANKS, STEPS = 3, 6
PATIENCE = 90.0
"""Seconds after which a run counts as one that never ends: start, time limit and end of a run
on a busy machine take a third of it."""
CLEAR = 5.0
"""Seconds in which what a run has started is gone after its end."""
MARK = "PHALANX_CHAOS"


class Injection(NamedTuple):
    fault: Fault
    engine: str
    rank: int
    step: int

    def command(self) -> list[str]:
        options = ["-n", str(RANKS), "--engine", self.engine, "--no-record"]
        options += ["--timeout", str(TIMEOUT)]
        name, steps = ("slow", 10 * STEPS) if self.fault.outside else (self.fault.name, STEPS)
        victim = [str(VICTIM), name, str(self.rank), str(self.step), str(steps)]
        return [sys.executable, "-m", "phalanx", "run", *options, *victim]

    def __str__(self) -> str:
        return f"{self.fault.name} on {self.engine}, rank {self.rank}, step {self.step}"


class Ending(NamedTuple):
    """How a run ended; `status` is None if it did not."""

    status: int | None
    output: str
    seconds: float
    left: list[str]


def draw(choose: random.Random, *, only: str, engine: str) -> Injection:
    faults = [
        fault
        for fault in FAULTS
        if only in fault.name and (not engine or engine in fault.engines)
    ]
    fault = choose.choice(faults)
    engines = [each for each in fault.engines if not engine or each == engine]
    return Injection(
        fault, choose.choice(engines), choose.randrange(RANKS), choose.randrange(STEPS)
    )


def inject(injection: Injection, folder: Path) -> Ending:
    mark = uuid.uuid4().hex
    start = time.monotonic()
    process = subprocess.Popen(
        injection.command(),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        env={**os.environ, MARK: mark, "TMPDIR": str(folder), "XDG_CACHE_HOME": str(folder)},
        start_new_session=True,
    )
    try:
        output = _follow(process, injection)
        status = process.wait(timeout=max(1.0, PATIENCE - (time.monotonic() - start)))
    except subprocess.TimeoutExpired:
        status, output = None, "it did not end"
    finally:
        if process.stdout is not None:
            process.stdout.close()
    seconds = time.monotonic() - start
    left = _left_behind(mark, folder)
    return Ending(status, output, seconds, left)


def _follow(process: subprocess.Popen[bytes], injection: Injection) -> str:
    """What the run prints, until it closes its output; strikes when the time has come."""
    assert process.stdout is not None
    strokes = injection.fault.outside.split()
    signal_of_step = f"has done step {max(0, injection.step - 1)}".encode()
    output, end = b"", time.monotonic() + PATIENCE
    while time.monotonic() < end:
        ready, _, _ = select.select([process.stdout], [], [], 0.2)
        if not ready:
            if process.poll() is not None:
                break
            continue
        piece = os.read(process.stdout.fileno(), 65536)
        if not piece:
            break
        output += piece
        if strokes and signal_of_step in output:
            _strike(process, strokes, injection.rank)
            strokes = []
            if process.stdout.closed:
                return "closed"
    return output.decode(errors="replace")


def _strike(process: subprocess.Popen[bytes], strokes: list[str], rank: int) -> None:
    victims = [process.pid]
    if strokes[0] == "close":
        assert process.stdout is not None
        process.stdout.close()
        return
    if strokes[0] in ("rank", "child"):
        victims = _pids_of(process.pid, strokes[0] == "rank")
        victims = victims[rank % max(1, len(victims)) :][:1]
        strokes = strokes[1:]
    for number, name in enumerate(strokes):
        if number:
            time.sleep(0.3)
        for pid in victims:
            try:
                os.kill(pid, getattr(signal, f"SIG{name}"))
            except ProcessLookupError:
                return


def _pids_of(pid: int, ranks: bool) -> list[int]:
    """The ranks of a run, which are its processes without children, or all that it has started
    itself."""
    parents = {each: _parent_of(each) for each in _all_pids()}
    own = [each for each, parent in parents.items() if parent == pid]
    if not ranks:
        return sorted(own)
    below = list(own)
    for each in below:
        below += [child for child, parent in parents.items() if parent == each]
    return sorted(each for each in below if each not in parents.values())


def _all_pids() -> list[int]:
    return [int(name) for name in os.listdir("/proc") if name.isdecimal()]


def _parent_of(pid: int) -> int:
    try:
        return int(Path(f"/proc/{pid}/stat").read_text().rpartition(") ")[2].split()[1])
    except OSError:
        return 0


def _left_behind(mark: str, folder: Path) -> list[str]:
    end = time.monotonic() + CLEAR
    while True:
        processes = _with_mark(mark)
        if not processes or time.monotonic() > end:
            break
        time.sleep(0.1)
    left = [f"process {pid}: {_line(pid)[:100]}" for pid in processes]
    for pid in processes:
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
    left += [f"file {path.relative_to(folder)}" for path in sorted(folder.rglob("*"))]
    return left


def _with_mark(mark: str) -> list[int]:
    """The processes that were started with this mark and live."""
    wanted, found = f"{MARK}={mark}".encode(), []
    for pid in _all_pids():
        try:
            environ = Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")
        except OSError:
            continue
        if wanted in environ:  # that of a zombie is empty
            found.append(pid)
    return found


def forgotten(before: set[str], folder: str = "/dev/shm") -> set[str]:
    """What is new in the folder and belongs to nobody. Other programs of the machine have
    their semaphores and memory there as well, for as long as they live."""
    end = time.monotonic() + CLEAR
    while found := set(os.listdir(folder)) - before:
        found -= {name for name in found if _is_mapped(os.path.join(folder, name))}
        if not found or time.monotonic() > end:
            return found
        time.sleep(0.1)
    return set()


def _is_mapped(path: str) -> bool:
    for pid in _all_pids():
        with suppress(OSError):
            if path in Path(f"/proc/{pid}/maps").read_text():
                return True
    return False


def _line(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/cmdline").read_text().replace("\0", " ")
    except OSError:
        return "ended"


def shortcomings(injection: Injection, ending: Ending) -> list[str]:
    fault = injection.fault
    wanted = fault.status
    if injection.engine == "threads" and fault.threads is not None:
        wanted = fault.threads
    if ending.status is None:
        return [f"did not end in {PATIENCE:.0f} s"]
    found = []
    if ending.status not in wanted:
        looks = "  A FAILING RUN THAT LOOKS LIKE ONE THAT PASSED" if ending.status == 0 else ""
        found.append(f"status {ending.status}, right: {wanted}{looks}")
    elif ending.status != RIGHT and not re.search(fault.text, ending.output):
        found.append(f"the output has no {fault.text!r}")
    if "INTERNALERROR" in ending.output or "phalanx/src" in ending.output:
        found.append("an error of Phalanx's own")
    allowed = "time.sleep(3)" if fault.name == "leaves_a_process" else None
    if ending.status >= 0:  # a command that a signal has ended could clean up nothing
        found += [f"left {each}" for each in ending.left if not allowed or allowed not in each]
    else:
        found += [f"left {each}" for each in ending.left if each.startswith("process")]
    return found


class Report:
    """What has been found so far, told while it goes on. Used by one thread at a time."""

    def __init__(self, keep: str | None) -> None:
        self.done: Counter[str] = Counter()
        self.short = 0
        self._slowest = 0.0
        self._keep = keep
        self._begin = time.monotonic()

    def note(self, number: int, injection: Injection, ending: Ending) -> None:
        self.done[injection.engine] += 1
        self._slowest = max(self._slowest, ending.seconds)
        problems = shortcomings(injection, ending)
        if problems:
            self.short += 1
            print(f"#{number} {injection}: {'; '.join(problems)}", flush=True)
            print(f"    {' '.join(injection.command()[1:])}", flush=True)
            if self._keep:
                Path(self._keep).mkdir(parents=True, exist_ok=True)
                Path(self._keep, f"{number}.txt").write_text(ending.output)
        elif sys.stdout.isatty():
            print(
                f"\r{sum(self.done.values())} done, {self.short} fell short ",
                end="",
                flush=True,
            )

    def summary(self, kinds: int) -> str:
        engines = ", ".join(f"{name} {count}" for name, count in sorted(self.done.items()))
        minutes = (time.monotonic() - self._begin) / 60
        return (
            f"{sum(self.done.values())} injections of {kinds} kinds of faults ({engines}) in "
            f"{minutes:.0f} min; {self.short} fell short; slowest {self._slowest:.0f} s"
        )


def inject_all(
    injections: Sequence[Injection], report: Report, *, jobs: int, minutes: float
) -> None:
    """Several at a time: most of a run is waiting."""
    end = time.monotonic() + minutes * 60

    def one(injection: Injection) -> Ending | None:
        if time.monotonic() > end:
            return None
        folder = Path(tempfile.mkdtemp(prefix="phalanx-chaos-"))
        try:
            return inject(injection, folder)
        finally:
            shutil.rmtree(folder, ignore_errors=True)

    with ThreadPoolExecutor(jobs) as pool:
        for number, ending in enumerate(pool.map(one, injections)):
            if ending is not None:
                report.note(number, injections[number], ending)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--count", type=int, default=500)
    parser.add_argument("--minutes", type=float, default=30.0)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1, help="runs at a time")
    parser.add_argument("--only", default="", help="faults with this in their name")
    parser.add_argument("--engine", default="", choices=("", *ENGINES))
    parser.add_argument("--keep", help="write the output of runs that fell short there")
    options = parser.parse_args()
    if signal.getsignal(signal.SIGINT) == signal.SIG_IGN:
        # A shell starts background jobs so, and runs inherit it: no Ctrl-C would end one.
        signal.signal(signal.SIGINT, signal.default_int_handler)
    choose = random.Random(options.seed)
    shared = set(os.listdir("/dev/shm"))
    drawn = [
        draw(choose, only=options.only, engine=options.engine) for _ in range(options.count)
    ]
    report = Report(options.keep)
    inject_all(drawn, report, jobs=options.jobs, minutes=options.minutes)
    for name in sorted(forgotten(shared)):
        print(f"/dev/shm has {name}, which was not there before", flush=True)
        report.short += 1
    print(report.summary(len([fault for fault in FAULTS if options.only in fault.name])))
    return 1 if report.short else 0


if __name__ == "__main__":
    sys.exit(main())
