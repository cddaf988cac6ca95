"""The same fifty small tests on 4 ranks, in torch's test classes and in ours.

    python benchmarks/testing.py [--quick] [--json FILE] [--only NAME,...]

Every figure is from a real `pytest` run in its own process, on a file with fifty written-out
tests that call the bodies of `testing_bodies.py`, with no plugin but ours, and that for our
tests only. Two times are taken: of the whole run, and of the tests alone (from before the first
test to after the last, so without the imports). The quick contenders run several times, in
turn, and the median counts. `MultiProcessTestCase` takes seconds a test and runs once; with
`--quick` it runs five tests, and the rest is reckoned. Fifty tests that do nothing, on no
ranks, show what pytest itself takes, and one test that does on ranks what the fifty do shows
what the tests take without a harness around each.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median

import torch
from testing_bodies import BODIES

RANKS = 4
RUN_LIMIT = 1200.0

CONFTEST = """
import json, os, time
import pytest

passed = 0

def pytest_runtest_logreport(report):
    global passed
    passed += report.when == "call" and report.passed

@pytest.hookimpl(wrapper=True)
def pytest_runtestloop(session):
    start = time.perf_counter()
    try:
        return (yield)
    finally:
        elapsed = time.perf_counter() - start
        with open(os.environ["BENCH_RESULT"], "w") as file:
            json.dump({"seconds": elapsed, "passed": passed}, file)
"""

# torch's test code imports this package for a feature that nothing here uses.
EXPECTTEST = "from unittest import TestCase\n"

FUNCTIONS = """
import pytest
from testing_bodies import BODIES

pytestmark = pytest.mark.ranks({ranks}, engine="{engine}", backend="gloo")
"""
FUNCTION = """
def test_{name}(rank, world_size):
    BODIES["{name}"](rank, world_size)
"""

ALL_IN_ONE = """
def test_all(rank, world_size):
    for body in BODIES.values():
        body(rank, world_size)
"""

EMPTY = """
from testing_bodies import BODIES
"""
EMPTY_FUNCTION = """
def test_{name}():
    pass
"""

METHOD = """
    def test_{name}(self):
        self.check(BODIES["{name}"])
"""
CLASSES = {
    "MultiProcessTestCase": """
import torch.distributed as dist
from {module} import MultiProcessTestCase
from testing_bodies import BODIES

class TestSmall(MultiProcessTestCase):
    @property
    def world_size(self):
        return {ranks}

    def setUp(self):
        super().setUp()
        self._spawn_processes()

    def check(self, body):
        store = dist.FileStore(self.file_name, self.world_size)
        dist.init_process_group(
            "gloo", store=store, rank=self.rank, world_size=self.world_size
        )
        body(self.rank, self.world_size)
""",
    "MultiThreadedTestCase": """
from {module} import MultiThreadedTestCase
from testing_bodies import BODIES

class TestSmall(MultiThreadedTestCase):
    @property
    def world_size(self):
        return {ranks}

    def setUp(self):
        super().setUp()
        self._spawn_threads()

    def check(self, body):
        body(self.rank, self.world_size)
""",
    "MultiProcContinuousTest": """
from {module} import MultiProcContinuousTest
from testing_bodies import BODIES

class TestSmall(MultiProcContinuousTest):
    world_size = {ranks}

    @classmethod
    def backend_str(cls):
        return "gloo"

    def check(self, body):
        body(self.rank, self.world_size)
""",
}
TORCH = "torch.testing._internal.common_distributed"
OURS = "phalanx.testing"


@dataclass(frozen=True)
class Contender:
    """One harness: its test file, and how it is to be run."""

    name: str
    label: str
    head: str
    test: str
    ours: bool
    slow: bool = False
    in_one: bool = False
    """Whether one test does it all."""

    def source(self, names: Sequence[str]) -> str:
        if self.in_one:
            return self.head + self.test
        return self.head + "".join(self.test.format(name=name) for name in names)


@dataclass(frozen=True)
class Measured:
    """Seconds for all fifty tests."""

    whole: float
    tests: float
    reckoned_from: int | None = None


def contenders() -> Iterator[Contender]:
    yield Contender("pytest", "pytest alone, empty tests", EMPTY, EMPTY_FUNCTION, ours=False)
    head = FUNCTIONS.format(ranks=RANKS, engine="threads")
    yield Contender(
        "bodies", "all in one test, threads", head, ALL_IN_ONE, ours=True, in_one=True
    )
    for name, head in CLASSES.items():
        yield Contender(
            f"torch.{name}",
            f"torch {name}",
            head.format(module=TORCH, ranks=RANKS),
            METHOD,
            ours=False,
            slow=name == "MultiProcessTestCase",
        )
    for engine in ("threads", "processes"):
        head = FUNCTIONS.format(ranks=RANKS, engine=engine)
        yield Contender(engine, f"pytest.mark.ranks, {engine}", head, FUNCTION, ours=True)
    for name, head in CLASSES.items():
        yield Contender(
            name, f"phalanx {name}", head.format(module=OURS, ranks=RANKS), METHOD, ours=True
        )


def measure(contender: Contender, names: Sequence[str]) -> Measured:
    """One run of pytest in a folder of its own. Every test must pass, or nothing counts."""
    with tempfile.TemporaryDirectory() as folder:
        place = Path(folder)
        (place / "conftest.py").write_text(CONFTEST)
        (place / "test_small.py").write_text(contender.source(names))
        if not contender.ours:
            (place / "expecttest.py").write_text(EXPECTTEST)
        command = [
            sys.executable,
            "-m",
            "pytest",
            "-q",
            "-p",
            "no:cacheprovider",
            *(("-p", "phalanx.testing.plugin") if contender.ours else ()),
            "test_small.py",
        ]
        environ = dict(os.environ, BENCH_RESULT=str(place / "result.json"))
        environ["PYTEST_DISABLE_PLUGIN_AUTOLOAD"] = "1"
        environ.pop("PYTHONDONTWRITEBYTECODE", None)
        path = [folder, str(Path(__file__).parent), os.environ.get("PYTHONPATH", "")]
        environ["PYTHONPATH"] = os.pathsep.join(filter(None, path))
        start = time.perf_counter()
        done = subprocess.run(
            command, cwd=folder, env=environ, capture_output=True, text=True, timeout=RUN_LIMIT
        )
        whole = time.perf_counter() - start
        result = json.loads((place / "result.json").read_text()) if done.returncode == 0 else {}
    if result.get("passed") != (1 if contender.in_one else len(names)):
        raise SystemExit(
            f"{contender.label}: not all {len(names)} tests passed, so there is nothing to "
            f"compare\n{done.stdout[-3000:]}\n{done.stderr[-3000:]}"
        )
    return Measured(whole, result["seconds"])


def measure_all(chosen: Sequence[Contender], *, quick: bool) -> dict[str, Measured]:
    names = list(BODIES)
    found: dict[str, list[Measured]] = {contender.name: [] for contender in chosen}
    for contender in chosen:
        if contender.slow:
            found[contender.name] = [measure_slow(contender, names[:: 10 if quick else 1])]
            say(contender, found[contender.name][-1])
    for _ in range(5 if quick else 9):
        for contender in chosen:
            if not contender.slow:
                found[contender.name].append(measure(contender, names))
                say(contender, found[contender.name][-1])
    return {name: middle(runs) for name, runs in found.items()}


def measure_slow(contender: Contender, names: Sequence[str]) -> Measured:
    """A part of the tests, and what all of them would take."""
    part = measure(contender, names)
    if len(names) == len(BODIES):
        return part
    tests = part.tests / len(names) * len(BODIES)
    return Measured(part.whole - part.tests + tests, tests, reckoned_from=len(names))


def middle(runs: Sequence[Measured]) -> Measured:
    whole, tests = (run.whole for run in runs), (run.tests for run in runs)
    return Measured(median(whole), median(tests), runs[0].reckoned_from)


def say(contender: Contender, run: Measured) -> None:
    print(f"  {contender.label}: {run.whole:.2f} s, tests {run.tests:.3f} s", file=sys.stderr)


@dataclass(frozen=True)
class Aim:
    """`faster` takes at least `times` less time for the tests than `slower`."""

    faster: str
    slower: str
    times: float


AIMS = (
    Aim("threads", "torch.MultiProcessTestCase", 100),
    Aim("threads", "torch.MultiThreadedTestCase", 3),
    Aim("processes", "torch.MultiProcessTestCase", 15),
    Aim("processes", "torch.MultiProcContinuousTest", 1),
    Aim("MultiThreadedTestCase", "torch.MultiProcessTestCase", 100),
    Aim("MultiThreadedTestCase", "torch.MultiThreadedTestCase", 3),
    Aim("MultiProcessTestCase", "torch.MultiProcessTestCase", 15),
    Aim("MultiProcContinuousTest", "torch.MultiProcContinuousTest", 1),
)


def table(chosen: Sequence[Contender], found: dict[str, Measured]) -> str:
    """Times, and how many times faster than torch's slowest, by the tests and by the whole."""
    base = found.get("torch.MultiProcessTestCase")
    lines = [f"{'':34}{'whole':>9}{'tests':>10}{'a test':>10}{'faster':>9}{'(whole)':>9}"]
    for contender in chosen:
        run = found[contender.name]
        cells = f"{unit(run.whole):>9}{unit(run.tests):>10}{unit(run.tests / len(BODIES)):>10}"
        if base is not None and base is not run and contender.name not in ("pytest", "bodies"):
            cells += f"{base.tests / run.tests:>8.1f}x{base.whole / run.whole:>8.1f}x"
        lines.append(f"{contender.label:34}{cells}")
    if base is not None and base.reckoned_from:
        lines.append(f"(MultiProcessTestCase reckoned from {base.reckoned_from} tests)")
    return "\n".join(lines)


def judge(chosen: Sequence[Contender], found: dict[str, Measured]) -> tuple[str, bool]:
    """One line for each aim, and whether all of them hold."""
    labels = {contender.name: contender.label for contender in chosen}
    lines, good = [], True
    for aim in AIMS:
        if aim.faster in found and aim.slower in found:
            ratio = found[aim.slower].tests / found[aim.faster].tests
            good &= ratio >= aim.times
            lines.append(
                f"  {'holds' if ratio >= aim.times else 'FAILS'}  {labels[aim.faster]}: "
                f"{ratio:.1f}x faster than {labels[aim.slower]} (aim: {aim.times:g}x)"
                f"{without_pytest(aim, found)}"
            )
    return "\n".join(lines), good


def without_pytest(aim: Aim, found: dict[str, Measured]) -> str:
    """The same ratio with the time of the empty tests taken off both."""
    if "pytest" not in found:
        return ""
    own = found["pytest"].tests
    ratio = (found[aim.slower].tests - own) / (found[aim.faster].tests - own)
    return f"; {ratio:.1f}x less pytest's own part"


def unit(seconds: float) -> str:
    return f"{seconds:.2f} s" if seconds >= 1 else f"{seconds * 1e3:.1f} ms"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="fewer rounds, five slow tests")
    parser.add_argument("--json", metavar="FILE", help="write the times there")
    parser.add_argument("--only", metavar="NAME,...", help="only these contenders")
    options = parser.parse_args()
    chosen = list(contenders())
    if options.only:
        known = [contender.name for contender in chosen]
        asked = options.only.split(",")
        if not set(asked) <= set(known):
            parser.error(f"--only {options.only}: choose from {', '.join(known)}")
        chosen = [contender for contender in chosen if contender.name in asked]
    found = measure_all(chosen, quick=options.quick)
    version = ".".join(map(str, sys.version_info[:2]))
    print(f"{len(BODIES)} small tests on {RANKS} ranks; torch {torch.__version__}, ", end="")
    print(f"Python {version}, {os.cpu_count()} cores")
    print(table(chosen, found))
    verdict, good = judge(chosen, found)
    if verdict:
        print("aims, by the time of the tests alone\n" + verdict)
    if options.json:
        times = {name: {"whole": run.whole, "tests": run.tests} for name, run in found.items()}
        Path(options.json).write_text(json.dumps(times, indent=1))
    return 0 if good else 1


if __name__ == "__main__":
    sys.exit(main())
