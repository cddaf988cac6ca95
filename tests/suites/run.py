"""Run test suites of other projects on real processes and on ranks, and compare.

    python -m tests.suites.run FOLDER [--select NAME] [--way WAY] [--limit SECONDS]
                               [--write docs/suites.md] [--list]

FOLDER has their unpacked sources (`declared.py` says under which names); the packages, pytest
and Phalanx are installed in the environment of this Python. One suite runs at a time, in a
network of its own where the system allows it, because suites use fixed ports. How each test
ended is kept in `build/suites`, so that `--way` runs one side anew. The exit status is 0 if
each test of each chosen suite ends alike, but for the differences that `declared.py` explains.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import sysconfig
import time
from collections.abc import Iterable
from pathlib import Path

from tests.suites.declared import SUITES, Suite
from tests.suites.outcomes import Ran, compare, read
from tests.suites.table import write_table

ROOT = Path(__file__).parents[2]
PLUGIN = Path(__file__).parent / "plugin"
OPTIONS = [
    "-p",
    "suite_outcomes",
    "-p",
    "no:cacheprovider",
    "-p",
    "no:xdist",
    "-q",
    "--color=no",
]
OWN_NETWORK = ["unshare", "--net", "sh", "-c", 'ip link set lo up && exec "$@"', "sh"]


def main() -> int:
    options = parse()
    chosen = [suite for suite in SUITES if not options.select or suite.name in options.select]
    if options.list:
        for suite in chosen:
            print(suite.name, *(" ".join(suite.command(way)) for way in suite.ways), sep="\n  ")
        return 0
    wrong = 0
    for suite in chosen:
        for way in suite.ways:
            if way in (options.way or suite.ways):
                run(suite, way, options.folder, options.limit)
        both = [read(keep(suite, way)) for way in suite.ways]
        wrong += show(suite, both)
    if options.write:
        write_table(
            options.write, ((s, [read(keep(s, way)) for way in s.ways]) for s in SUITES)
        )
    return 1 if wrong else 0


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path)
    parser.add_argument(
        "--select", action="append", metavar="NAME", help="this suite; repeatable"
    )
    parser.add_argument("--way", action="append", help="only this one of a suite's two ways")
    parser.add_argument(
        "--limit", type=float, default=900, metavar="SECONDS", help="of a command"
    )
    parser.add_argument("--write", type=Path, metavar="PAGE", help="put the table into it")
    parser.add_argument("--list", action="store_true", help="only show what there is")
    return parser.parse_args()


def keep(suite: Suite, way: str) -> Path:
    return ROOT / "build" / "suites" / re.sub(r"\W+", "-", suite.name) / way.replace(" ", "")


def run(suite: Suite, way: str, folder: Path, limit: float) -> None:
    """Run the command; what it wrote and how it ended lies in its folder afterwards."""
    sources = max(folder.glob(suite.folder), default=None)
    if sources is None:
        raise SystemExit(f"{folder} has no {suite.folder}")
    place = keep(suite, way)
    shutil.rmtree(place, ignore_errors=True)
    place.mkdir(parents=True)
    started = time.monotonic()
    with (place / "output.txt").open("w") as output:
        process = subprocess.Popen(
            [*own_network(), *suite.command(way), *OPTIONS],
            cwd=sources,
            env=environment(suite, place),
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
        status = wait(process, limit)
    ended = {"status": status, "seconds": time.monotonic() - started, "sources": sources.name}
    (place / "run.json").write_text(json.dumps(ended))


def own_network() -> list[str]:
    usable = subprocess.run([*OWN_NETWORK, "true"], capture_output=True).returncode == 0
    return OWN_NETWORK if usable else []


def environment(suite: Suite, place: Path) -> dict[str, str]:
    """This process's, with the programs of this Python first and the plugin that writes."""
    path = f"{sysconfig.get_path('scripts')}{os.pathsep}{os.environ['PATH']}"
    ours = {"PATH": path, "PYTHONPATH": str(PLUGIN), "SUITE_OUTCOMES": str(place)}
    return {**os.environ, **ours, **dict(suite.environment)}


def wait(process: subprocess.Popen[bytes], limit: float) -> int | None:
    """The exit status, or None if it was ended after the limit, with all that it started."""
    try:
        return process.wait(limit)
    except subprocess.TimeoutExpired:
        return None
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()


def show(suite: Suite, both: Iterable[Ran | None]) -> int:
    """Print what the suite gave; the number of differences that nobody explained."""
    real, here = both
    for way, ran in zip(suite.ways, (real, here), strict=True):
        print(f"{suite.name}, {way}: {ran or 'not run'}", flush=True)
    if real is None or here is None:
        return 0
    unexplained = 0
    for test, (before, after), reason in compare(suite, real, here):
        print(f"  {test}: {before} -> {after}  {reason or 'UNEXPLAINED'}", flush=True)
        unexplained += not reason
    return unexplained


if __name__ == "__main__":
    sys.exit(main())
