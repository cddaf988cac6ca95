"""Run torch's own backend suite on our ranks, or on real Gloo processes, and print a table.

    python tests/upstream/run.py [--ranks 3,4,8] [--select NAME] [--engine threads|gloo]
                                 [--gpu-tests] [--json FILE] [--save]
    python tests/upstream/run.py --docs FILE

Every test has a time limit. The tests run in a worker process, one after the other; a test that
crashes it or hangs costs only itself, because a new worker goes on with the next one. The exit
status is 0 if every test ends as it does on Gloo or is a known difference (`known.py`).
`--save` stores the results in `results/`, and `--docs` writes the page made from them.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import select
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from known import (
    DIFFERENCES,
    GPU_DIFFERENCES,
    LEFT_OUT,
    expected_status,
    is_as_expected,
    save,
    stored,
)
from table import render_page, render_reason, render_summary

HERE = Path(__file__).parent
SECONDS = {"threads": 30.0, "gloo": 120.0}
"""The limit for one test. Eight Gloo processes on two cores take their time."""

LONGER = {"test_ddp_compile_static_graph": 10.0}
"""It calls the C++ compiler: times the limit."""
LOADING = 60.0
"""The limit for importing torch and the suite."""


@dataclass(frozen=True)
class Result:
    """One test at one number of ranks."""

    name: str
    ranks: int
    status: str
    """passed, skipped, failed, crashed or timed out"""
    reason: str = ""
    seconds: float = 0.0


def main() -> int:
    options = parse()
    if options.docs:
        options.docs.write_text(page())
        return 0
    results: list[Result] = []
    for ranks in options.ranks:
        for result in run_suite(options, ranks):
            results.append(result)
            print(line_of(result), flush=True)
    print(render_summary(asdict(result) for result in results))
    if options.json:
        content = [asdict(result) for result in results]
        options.json.write_text(json.dumps(content, indent=1) + "\n")
    if options.save:
        save(options.engine, statuses_of(results), gpu_tests=options.gpu_tests)
    wrong = [] if options.engine == "gloo" else find_surprises(results, options.gpu_tests)
    for result in wrong:
        expected = expected_status(result.name, result.ranks, gpu_tests=options.gpu_tests)
        print(
            f"unexpected: {result.name}, {result.ranks} ranks: {result.status}, not {expected}"
        )
        if result.status == "crashed":
            print(result.reason)
    return 1 if wrong else 0


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--ranks", type=sizes, default=sizes("3,4,8"))
    parser.add_argument("--select", action="append", default=[], metavar="NAME")
    parser.add_argument("--engine", choices=sorted(SECONDS), default="threads")
    parser.add_argument(
        "--gpu-tests", action="store_true", help="those that ask for GPUs, with CPU tensors"
    )
    parser.add_argument("--seconds", type=float, help="limit for one test")
    parser.add_argument("--json", type=Path, help="write every result to this file")
    parser.add_argument("--save", action="store_true", help="store the results")
    parser.add_argument("--docs", type=Path, help="write the page from what is stored")
    return parser.parse_args()


def find_surprises(results: list[Result], gpu_tests: bool) -> list[Result]:
    return [
        result
        for result in results
        if not is_as_expected(result.name, result.ranks, told(result), gpu_tests=gpu_tests)
    ]


def told(result: Result) -> str:
    """How a test ended and why, in few words."""
    why = render_reason(gist(result.reason))
    return f"{result.status}: {why}" if why else result.status


def statuses_of(results: list[Result]) -> dict[str, dict[str, str]]:
    statuses: dict[str, dict[str, str]] = {}
    for result in results:
        statuses.setdefault(result.name, {})[str(result.ranks)] = told(result)
    return statuses


def page() -> str:
    """docs/upstream.md as it should be."""
    version, plain = stored("gloo", gpu_tests=False)
    _, gpu = stored("gloo", gpu_tests=True)
    _, own_plain = stored("threads", gpu_tests=False)
    _, own_gpu = stored("threads", gpu_tests=True)
    return render_page(
        f"torch {version}",
        (plain, own_plain),
        (gpu, own_gpu),
        differences={**DIFFERENCES, **GPU_DIFFERENCES},
        left_out=LEFT_OUT,
    )


def sizes(text: str) -> list[int]:
    return [int(part) for part in text.split(",")]


def line_of(result: Result) -> str:
    line = f"{result.ranks} {result.status:9} {result.seconds:6.2f} s  {result.name}"
    return f"{line}  {gist(result.reason)}"[:200].rstrip()


def gist(reason: str) -> str:
    """The line of a traceback, or of what a crashed worker left, that says most: the error of a
    rank rather than our report of it."""
    lines = [line.strip() for line in reason.strip().split("\n")]
    errors = [line for line in lines if re.match(r"[\w.]*(Error|Exception)\b", line)]
    of_ranks = [line for line in errors if not line.startswith("phalanx.errors.RankFailed")]
    return (of_ranks or errors or lines)[-1]


def run_suite(options: argparse.Namespace, ranks: int) -> Iterator[Result]:
    """Every chosen test at one number of ranks, with as many workers as it takes."""
    limit = options.seconds or SECONDS[options.engine]
    with tempfile.TemporaryDirectory() as folder:
        environ = suite_environ(ranks, folder)
        command = [options.engine, "gpu" if options.gpu_tests else "cpu"]
        with Worker(command, environ, {}) as worker:
            names = worker.names()
        if options.gpu_tests:
            names = [name for name in names if name not in LEFT_OUT]
        todo = {n: limit * LONGER.get(n, 1.0) for n in chosen(names, options.select)}
        while todo:
            with Worker(command, environ, todo) as worker:
                for result in worker.results(ranks):
                    del todo[result.name]
                    yield result


def chosen(names: list[str], select: list[str]) -> list[str]:
    """All, or those that are named, in full or in part."""
    if not select:
        return names
    parts = [part for part in select if part not in names]
    return [name for name in names if name in select or any(part in name for part in parts)]


def suite_environ(ranks: int, folder: str) -> dict[str, str]:
    """What the suite expects in the environment of the process that imports it."""
    return {
        **os.environ,
        "BACKEND": "gloo",
        "WORLD_SIZE": str(ranks),
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": "29500",
        "TEMP_DIR": folder,
        "TMPDIR": folder,
        "INIT_METHOD": f"file://{folder}/init",
    }


class Worker:
    """A process that runs tests until it is through, crashes, or is stopped for being late."""

    def __init__(
        self, command: list[str], environ: dict[str, str], limits: dict[str, float]
    ) -> None:
        self.limits = dict(limits)
        self.patience = LOADING
        self.log = tempfile.TemporaryFile("w+")  # noqa: SIM115
        self.unread = b""
        self.pipe, writing = os.pipe()
        tests = [f"{name}:{seconds}" for name, seconds in limits.items()]
        self.process = subprocess.Popen(
            [sys.executable, "worker.py", *command, str(writing), *tests],
            cwd=HERE,
            env=environ,
            stdout=self.log,
            stderr=self.log,
            pass_fds=[writing],
            start_new_session=True,
        )
        os.close(writing)

    def __enter__(self) -> Worker:
        return self

    def __exit__(self, *exc: object) -> None:
        self._stop()
        os.close(self.pipe)
        self.log.close()

    def names(self) -> list[str]:
        record = self._next_record()
        if record is None:
            raise RuntimeError(f"the suite does not load\n{self._last_words()}")
        return list(record["names"])

    def results(self, ranks: int) -> Iterator[Result]:
        running, began = None, time.monotonic()
        while True:
            record = self._next_record()
            if record is None:
                break
            if "begin" in record:
                running, began = record["begin"], time.monotonic()
                self.patience = self.limits[running] + 10
            else:
                running = None
                yield Result(
                    record["end"], ranks, record["status"], record["reason"], record["seconds"]
                )
        if running is not None:
            seconds = time.monotonic() - began
            status = "timed out" if seconds >= self.limits[running] else "crashed"
            yield Result(running, ranks, status, self._last_words(), round(seconds, 2))
        elif self.process.wait() != 0:
            raise RuntimeError(f"the worker ended between two tests\n{self._last_words()}")

    def _next_record(self) -> dict[str, Any] | None:
        """None if the worker has ended or is late beyond its own limit."""
        while b"\n" not in self.unread:
            ready, _, _ = select.select([self.pipe], [], [], self.patience)
            chunk = os.read(self.pipe, 65536) if ready else b""
            if not chunk:
                return None
            self.unread += chunk
        line, self.unread = self.unread.split(b"\n", 1)
        return dict(json.loads(line))

    def _last_words(self) -> str:
        self._stop()
        code = self.process.returncode
        end = f"signal {signal.Signals(-code).name}" if code < 0 else f"exit status {code}"
        self.log.seek(0)
        return f"{self.log.read()[-6000:]}\n{end}"

    def _stop(self) -> None:
        """The worker and all it started; they are a process group of their own, whose number
        is theirs until the worker has been waited for."""
        if self.process.returncode is None:
            with suppress(ProcessLookupError):
                os.killpg(self.process.pid, signal.SIGKILL)
            self.process.wait()


if __name__ == "__main__":
    sys.exit(main())
