"""`phalanx conformance`: does a backend of torch.distributed do what it must?

Parses and checks the options, shows progress, prints the tables and turns them into an exit
status. What runs the cases is `phalanx.conformance`.
"""

from __future__ import annotations

import argparse
import os
import signal
import sys
import threading
import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any

from phalanx.cli.progress import ProgressBar
from phalanx.errors import PhalanxError, UsageError

if TYPE_CHECKING:
    from phalanx.conformance.case_model import Case, Setting, Table

DESCRIPTION = """\
Run thousands of small cases on a backend and say of each: pass, refuse (a clean error where
this backend is known to refuse), WRONG (wrong data, or written outside of a tensor), or fail.
"""

EPILOG = """\
examples:
  phalanx conformance                               the threads engine, as Gloo
  phalanx conformance --engine processes            the real Gloo, in processes
  phalanx conformance --select 'all_reduce/*@3'     some cases only
  phalanx conformance --select mistake --list       what there is, without running it
  phalanx conformance --engine processes --import my_backend --backend my_backend
                                                    a backend of your own, which the module
                                                    registers (Backend.register_backend)
  phalanx conformance --json threads.json           keep the results ...
  phalanx conformance --engine processes --against threads.json
                                                    ... and compare: what differs, and why

--select takes parts of ids or globs over whole ids, separated by commas. An id is
operation/dtype/...@ranks, e.g. all_reduce/float32/sum/async/sub@3.

exit status: 0 nothing failed and nothing was WRONG (with --against: no difference without a
reason, and no failure that the backend's profile does not know); 1 otherwise, also if the
backend makes no group at all; 2 wrong usage; 130 interrupted; 143 terminated
"""


def add_parser(commands: Any) -> None:
    parser = commands.add_parser(
        "conformance",
        help="test a backend: does it do what torch.distributed promises?",
        description=DESCRIPTION,
        epilog=EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    where = parser.add_argument_group("what is tested")
    where.add_argument(
        "--engine", default="threads", help="threads (default), or processes: the real backend"
    )
    where.add_argument("--backend", default="gloo", metavar="NAME", help="default: gloo")
    where.add_argument(
        "--import",
        dest="imports",
        action="append",
        default=[],
        metavar="MODULE",
        help="import this on every rank first",
    )
    where.add_argument(
        "--device", metavar="TYPE", help="where tensors are; default: cuda for nccl, else cpu"
    )
    where.add_argument(
        "--timeout",
        default="30",
        metavar="SECONDS",
        help="how long a case may take before it counts as hanging; default: 30",
    )
    which = parser.add_argument_group("which cases")
    which.add_argument("--ranks", default="2,3,4", metavar="N,N", help="default: 2,3,4")
    which.add_argument("--select", metavar="EXPR", help="only cases with such ids; see below")
    which.add_argument("--list", action="store_true", help="print their ids, run nothing")
    results = parser.add_argument_group("results")
    results.add_argument("--json", metavar="FILE", help="write all results to FILE")
    results.add_argument("--against", metavar="FILE", help="compare with results kept earlier")
    results.add_argument(
        "--document", metavar="FILE", help="with --against: write both tables as Markdown"
    )
    results.add_argument(
        "-q",
        "--quiet",
        action="store_true",
        help="no tables: only what is WRONG, fails or DIFFERS, and the last line",
    )
    parser.set_defaults(handler=handle, parser=parser)


def handle(arguments: argparse.Namespace) -> int:
    try:
        with _terminated_by_raising():
            return _run(arguments)
    except PhalanxError as error:
        print(f"phalanx: {error}", file=sys.stderr)
        return 2 if isinstance(error, UsageError) else 1
    except _Terminated:
        print("phalanx: terminated", file=sys.stderr)
        return 143
    except BrokenPipeError:  # the reader is gone; without this, Python complains when it exits
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 1
    except KeyboardInterrupt:
        print("phalanx: interrupted", file=sys.stderr)
        return 130


class _Terminated(BaseException):
    """SIGTERM came. Raised, so that our processes and folders are removed first."""


@contextmanager
def _terminated_by_raising() -> Iterator[None]:
    """Turn SIGTERM into an exception. Any error that follows counts as the signal."""
    came = threading.Event()

    def end(*_: object) -> None:
        came.set()
        raise _Terminated

    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = signal.signal(signal.SIGTERM, end)
    try:
        yield
    except BaseException as error:
        if came.is_set():
            raise _Terminated from error
        raise
    finally:
        signal.signal(signal.SIGTERM, before)


def _run(arguments: argparse.Namespace) -> int:
    ranks = _rank_counts(arguments.ranks)
    if arguments.document and not arguments.against:
        raise UsageError("--document shows two tables: give the other one by --against FILE")
    for name in ("json", "against"):
        if arguments.list and getattr(arguments, name):
            raise UsageError(f"--list runs nothing, so --{name} has no results: leave one out")

    from phalanx.conformance import result_files
    from phalanx.conformance.runner import run_suite

    setting = _setting(arguments)
    cases = _cases(ranks, arguments)
    if arguments.list:
        print("\n".join(case.id for case in cases), flush=True)
        return 0
    against = result_files.load(Path(arguments.against)) if arguments.against else None
    for path in filter(None, (arguments.json, arguments.document)):
        result_files.check_writable(Path(path))
    bar = ProgressBar(len(cases), sink=sys.stderr)
    try:
        table = run_suite(cases, setting, lambda result: bar.step(result.operation))
    finally:
        bar.close()
    if arguments.json:
        result_files.save(table, Path(arguments.json))
    _print(table, quiet=arguments.quiet)
    if against is None:
        return 0 if table.succeeded else 1
    if arguments.document:
        _write_document(against, table, Path(arguments.document))
    return _compare(table, against, arguments.against)


def _rank_counts(given: str) -> list[int]:
    try:
        counts = sorted({int(word) for word in given.split(",")})
    except ValueError:
        counts = []
    if not counts or counts[0] < 1 or counts[-1] > 64:
        raise UsageError(f"--ranks {given}: give numbers from 1 to 64, e.g. --ranks 2,3,4")
    return counts


def _seconds(given: str) -> float:
    try:
        seconds = float(given)
    except ValueError:
        seconds = 0.0
    if not 0.0 < seconds < float("inf"):
        raise UsageError(f"--timeout {given}: give seconds above 0, e.g. --timeout 30")
    return seconds


def _setting(arguments: argparse.Namespace) -> Setting:
    from phalanx.conformance.case_model import Setting

    if arguments.engine not in ("threads", "processes"):
        raise UsageError(f"--engine {arguments.engine}: choose threads or processes")
    for module in arguments.imports:
        try:
            import_module(module)
        except Exception as error:
            raise UsageError(f"--import {module}: {_told(error)}") from error
    _check_backend(arguments.engine, arguments.backend)
    device = arguments.device or ("cuda" if arguments.backend == "nccl" else "cpu")
    _check_device(device)
    return Setting(
        engine=arguments.engine,
        backend=arguments.backend,
        device=device,
        imports=tuple(arguments.imports),
        timeout=_seconds(arguments.timeout),
    )


def _told(error: Exception) -> str:
    """An error of a module in one line: its class, its text and where it was raised."""
    text = " ".join(str(error).split())
    if isinstance(error, SyntaxError):
        return f"{type(error).__name__}: {text}"  # whose text names the place
    frames = traceback.extract_tb(error.__traceback__)
    inside = [each for each in frames if not each.filename.startswith("<frozen importlib")]
    where = f" ({inside[-1].filename}:{inside[-1].lineno})" if len(inside) > 2 else ""
    return f"{type(error).__name__}: {text}{where}"


def _check_backend(engine: str, backend: str) -> None:
    import torch.distributed as dist

    if engine == "threads":
        if backend not in ("gloo", "nccl"):
            raise UsageError(
                f"--backend {backend}: the threads engine stands for gloo and nccl; a backend "
                "of your own runs with --engine processes"
            )
        return
    known = [name for name in dist.Backend.backend_list if name != "undefined"]
    if backend not in known:
        raise UsageError(
            f"--backend {backend}: torch knows {', '.join(known)}; a module that registers "
            "another one is given by --import MODULE"
        )
    if not dist.is_backend_available(backend):
        raise UsageError(f"--backend {backend}: this build of torch does not include it")


def _check_device(device: str) -> None:
    import torch

    if device == "cuda" and not torch.cuda.is_available():
        raise UsageError("--device cuda: torch finds no GPU here (nccl needs one)")
    if device not in ("cpu", "cuda"):
        raise UsageError(f"--device {device}: choose cpu or cuda")


def _cases(ranks: list[int], arguments: argparse.Namespace) -> list[Case]:
    from phalanx.conformance.judge import applies
    from phalanx.conformance.suite import all_cases, select

    cases = [case for case in all_cases(ranks) if applies(case, arguments.backend)]
    expression = arguments.select
    if expression is None:
        return cases
    chosen = select(cases, expression)
    if not chosen:
        raise UsageError(
            f"--select {expression}: no case has such an id; phalanx conformance --list shows "
            "them all"
        )
    return chosen


def _print(table: Table, *, quiet: bool) -> None:
    from phalanx.conformance.folded_results import render_findings, render_refusals
    from phalanx.conformance.result_table import render_tables, render_total

    parts = [] if quiet else [render_tables(table), render_refusals(table)]
    parts += [render_findings(table), render_total(table)]
    print(("\n" if quiet else "\n\n").join(filter(None, parts)), flush=True)


def _compare(table: Table, against: Table, path: str) -> int:
    from phalanx.conformance.folded_results import render_differences
    from phalanx.conformance.known_differences import find_differences, is_known_trouble

    found = find_differences(table, against)
    unexplained = [each for each in found if not each.reason]
    if unexplained:
        print(render_differences(unexplained, path))
    print(f"{len(found)} differences from {path}, {len(unexplained)} without a reason")
    troubles = [
        result
        for result in table.results
        if result.outcome in ("fail", "WRONG") and not is_known_trouble(result, table.backend)
    ]
    return 1 if unexplained or troubles else 0


def _write_document(one: Table, other: Table, path: Path) -> None:
    from phalanx.conformance import result_files
    from phalanx.conformance.conformance_page import render_document

    result_files.write(render_document(one, other), path)
