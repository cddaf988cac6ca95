"""`phalanx run`: a torchrun script, unmodified, on ranks inside this process or beside it.

Parses and checks the options, shows the ranks' output through the folding printer, and
turns outcomes into exit status and text. What runs a program is `running.script` and
`running.processes.script`.
"""

from __future__ import annotations

import argparse
import os
import re
import shlex
import sys
import traceback
from collections.abc import Callable
from contextlib import ExitStack, suppress
from functools import partial
from typing import TYPE_CHECKING, Any, TextIO

from phalanx.cli.device_options import add_options, device_settings, replay_words, sharing_lines
from phalanx.cli.folded_output import FoldingPrinter
from phalanx.cli.self_spawned import WorldsPrinter, WorldsPrinters, tell_launch
from phalanx.cli.streams import redirected
from phalanx.engines.torchrun.torchrun_options import FLAGS, WITH_VALUE
from phalanx.errors import (
    HazardError,
    InvalidCallError,
    RankDied,
    RankFailedError,
    UsageError,
    VerdictError,
    WrongCommand,
)
from phalanx.kinds import is_on, parse_checks
from phalanx.model import Tally, Verdict
from phalanx.report.closing import render_closing
from phalanx.report.layout import count
from phalanx.report.text import render_kind

if TYPE_CHECKING:
    from phalanx.engines.program import Program

ENGINES = ("threads", "processes", "torchrun")
CHILDREN = ("ranks", "processes")
Shown = FoldingPrinter | WorldsPrinter

DESCRIPTION = """\
Run SCRIPT once per rank, as torchrun would, with all ranks inside this process (or, with
--engine processes, one process per rank on torch's real backend; with --engine torchrun,
torch's own launcher starts them, on this machine and others). Lines that several ranks
print alike are shown once, with their ranks: "[0-3] epoch 1 loss 0.42".

Without -n, SCRIPT is run once, as Python would, and the processes that it starts become the
ranks: those of torch.multiprocessing.spawn and start_processes, and those of Process that an
argument numbers 0, 1, 2, ... Data loaders' workers and pools stay processes.
"""

EPILOG = """\
several machines, the same line on each of them (10.0.0.1 is one of them):
  phalanx run --engine torchrun --nnodes 2 -n 4 --rdzv-endpoint 10.0.0.1:29400 train.py
"""


def add_parser(commands: Any) -> None:
    parser = commands.add_parser(
        "run",
        help="run a torchrun script on ranks in one process",
        description=DESCRIPTION,
        usage="phalanx run [-n RANKS] [options] [-m] SCRIPT [script arguments ...]",
        epilog=EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    size = parser.add_argument_group("how many ranks")
    size.add_argument(
        "-n",
        "--ranks",
        "--nproc-per-node",
        "--nproc_per_node",
        dest="ranks",
        metavar="N",
        help="number of ranks (on each node, with --nnodes); left out for a script that starts "
        "its ranks itself, by torch.multiprocessing.spawn or Process",
    )
    size.add_argument(
        "--nnodes",
        metavar="N",
        default="1",
        help="pretend N nodes of -n ranks; torchrun: N machines, or FEWEST:MOST",
    )
    how = parser.add_argument_group("how they run")
    how.add_argument(
        "--engine",
        default="threads",
        help="threads: ranks in this process; processes: one process each; torchrun: as "
        "torch's launcher starts them",
    )
    add_options(how)
    how.add_argument("--seed", default="0", metavar="S", help="order of ranks; 0: first come")
    how.add_argument("--clock", default="real", help="real, or virtual: sleeps take no time")
    how.add_argument(
        "--checks",
        default="all",
        metavar="KINDS",
        help="all, none, or kinds of findings: mismatch,leak or all,-leak",
    )
    how.add_argument(
        "--profile", metavar="NAME", help="gloo or nccl: what may fail on it is an error"
    )
    how.add_argument(
        "--strict", action="store_true", help="what is only a warning fails the run: exit 3"
    )
    how.add_argument(
        "--completion",
        metavar="WHEN",
        help="of asynchronous operations: earliest, latest, or seeded (default with --seed)",
    )
    how.add_argument(
        "--children",
        default="ranks",
        metavar="WHAT",
        help="what processes are that the script starts and numbers: ranks, or processes",
    )
    how.add_argument(
        "--isolate",
        action="append",
        default=[],
        metavar="PACKAGES",
        help="import these once per rank, as the script's own packages are",
    )
    how.add_argument(
        "--share",
        action="append",
        default=[],
        metavar="PACKAGES",
        help="import these of the script's own packages once for all ranks; or all",
    )
    how.add_argument("--timeout", metavar="SEC", help="stop after SEC seconds of standstill")
    show = parser.add_argument_group("what is shown")
    show.add_argument("-q", "--quiet", action="store_true", help="no output of the ranks")
    show.add_argument("--rank", metavar="R", help="only output of these ranks: 0 or 0,2-3")
    torchrun = parser.add_argument_group(
        "as torchrun takes them",
        "With --engine torchrun these and its other options (--rdzv-backend, --rdzv-id,\n"
        "--max-restarts, --log-dir, --redirects, --tee, ...) mean what they mean there. The\n"
        "other engines take them and, but for the first two, ignore them.",
    )
    shown = {
        "master-addr": {"metavar": "HOST"},
        "master-port": {"metavar": "PORT"},
        "rdzv-endpoint": {"metavar": "HOST:PORT", "help": "where the machines meet"},
        "node-rank": {
            "metavar": "R",
            "help": "which machine this is, with --master-addr",
        },
    }
    ordered = dict.fromkeys((*shown, *WITH_VALUE))
    for name in ordered:
        torchrun.add_argument(*_spellings(name), **shown.get(name, {"help": argparse.SUPPRESS}))
    for name in FLAGS:
        torchrun.add_argument(*_spellings(name), action="store_true", help=argparse.SUPPRESS)
    parser.add_argument("-m", "--module", action="store_true", help="SCRIPT is a module name")
    parser.add_argument("script", metavar="SCRIPT", nargs="?")
    parser.add_argument("args", nargs=argparse.REMAINDER, help=argparse.SUPPRESS)
    parser.set_defaults(handler=handle, parser=parser)


def _spellings(name: str) -> list[str]:
    short = {"redirects": ["-r"], "tee": ["-t"]}
    return [
        *short.get(name, []),
        *dict.fromkeys((f"--{name}", f"--{name.replace('-', '_')}")),
    ]


def handle(arguments: argparse.Namespace) -> int:
    try:
        return _run(arguments)
    except UsageError as error:
        print(f"phalanx: {_as_options(str(error))}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:  # before the ranks began
        print("phalanx: interrupted", file=sys.stderr)
        return 130
    except BrokenPipeError:  # nobody reads any more; Python would complain at the very end
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 1
    except SyntaxError as error:
        print("".join(traceback.format_exception_only(error)), end="", file=sys.stderr)
        return 1


def _as_options(text: str) -> str:
    """Options as they are written here: `--engine threads` for `engine='threads'`."""
    names = "engine|device|gpus|seed|clock|checks|profile|completion|timeout|ranks"
    return re.sub(rf"\b({names})=('?)([\w.,-]*[\w-])\2", r"--\1 \3", text)


def _run(arguments: argparse.Namespace) -> int:
    if not arguments.script:
        raise UsageError("no script given; write: phalanx run -n 4 train.py")
    if arguments.engine not in ENGINES:
        listed = ", ".join(map(repr, ENGINES))
        raise UsageError(f"--engine {arguments.engine}: choose one of {listed}")
    if arguments.children not in CHILDREN:
        listed = ", ".join(map(repr, CHILDREN))
        raise UsageError(f"--children {arguments.children}: choose one of {listed}")
    parse_checks(arguments.checks, where=f"--checks {arguments.checks}".rstrip())
    if arguments.engine == "torchrun":
        return _run_by_torchrun(arguments)
    launches = starts_ranks_itself(arguments)
    ranks, per_node = (1, 1) if launches else _count_ranks(arguments)
    only = _rank_numbers(arguments.rank) if launches else _shown_ranks(arguments.rank, ranks)
    seed, timeout = _number("--seed", arguments.seed), _seconds(arguments.timeout)
    program_args = list(arguments.args)

    from phalanx.emulation.modules.isolation_rule import script_rule
    from phalanx.engines.program import load_module, load_script
    from phalanx.engines.world import check_options

    check_options(
        ranks=ranks,
        engine=arguments.engine,
        clock=arguments.clock,
        checks=arguments.checks,
        seed=seed,
        timeout=timeout,
        profile=arguments.profile,
        completion=arguments.completion,
    )
    devices = device_settings(arguments, per_node)
    shared: list[tuple[Any, int]] = []
    load = load_module if arguments.module else load_script
    program = load(arguments.script, program_args)
    rule = script_rule(arguments.isolate, arguments.share, program.search_path)
    findings: list[Verdict] = []
    tallies: list[Tally] = []
    sinks = (None, None) if arguments.quiet else (sys.stdout, sys.stderr)
    with ExitStack() as stack:
        printers = [
            (
                WorldsPrinter(sink, only)
                if launches
                else FoldingPrinter(ranks, sink=sink, only=only)
            )
            if sink is not None
            else None
            for sink in sinks
        ]
        stack.enter_context(redirected(*printers))
        options: dict[str, Any] = {
            "ranks": ranks,
            "seed": seed,
            "clock": arguments.clock,
            "checked": is_on(arguments.checks),
            "kinds": parse_checks(arguments.checks),
            "profile": arguments.profile,
            "completion": arguments.completion,
            "strict": arguments.strict,
            "on_findings": findings.extend,
            "on_tally": tallies.append,
            "timeout": timeout,
            "init": False,
            "per_node": per_node,
            "replay": _replay(arguments),
            "on_tick": lambda: _tick(printers),
            "environ": _environ(arguments),
            "on_devices": lambda *which: shared.append(which),
            **devices,
        }
        if arguments.engine == "threads":
            options["modules"] = rule
        if launches:
            tell_error = partial(_tell, initialised=True, arguments=arguments)
            launch = _launched(program, options, printers, tell_error)
        else:
            run = partial(_on_threads, children=arguments.children)
            if arguments.engine == "processes":
                run = partial(_on_processes)
            initialised, error = _outcome(lambda: run(program, options, printers))
    for finding in findings:
        print(f"{finding.severity} {render_kind(finding)}\n", file=sys.stderr)
    if launches:
        status = tell_launch(launch, arguments.script, tell_error)
        ends = [(world.tally, world.error) for world in launch.worlds if world.tally]
    else:
        status = _tell(error, initialised or ranks == 1, arguments)
        ends = [(tally, error) for tally in tallies[-1:]]
    if not arguments.quiet:
        for line in sharing_lines(shared):
            print(line, file=sys.stderr)
    for tally, error in ends:
        _close([tally], findings if tally is ends[-1][0] else [], error, arguments)
    return _with_caught(status, [tally for tally, _ in ends], arguments)


def starts_ranks_itself(arguments: argparse.Namespace) -> bool:
    """Whether nobody says how many ranks there are, so that the script must start them."""
    return (
        arguments.ranks is None
        and arguments.nnodes == "1"
        and "WORLD_SIZE" not in os.environ
        and arguments.engine == "threads"
        and arguments.children == "ranks"
    )


def _printer(
    sink: TextIO | None, ranks: int | None, only: frozenset[int] | None
) -> Shown | None:
    if sink is None:
        return None
    if ranks is None:
        return WorldsPrinter(sink, only)
    return FoldingPrinter(ranks, sink=sink, only=only)


def _launched(
    program: Program,
    options: dict[str, Any],
    printers: list[Shown | None],
    tell: Callable[[BaseException], int],
) -> Any:
    from phalanx.engines.run_settings import Settings
    from phalanx.engines.threads.self_spawning_scripts import run_launched

    return run_launched(program, Settings(**options), WorldsPrinters(printers, tell))


def _close(
    tallies: list[Tally],
    findings: list[Verdict],
    error: BaseException | None,
    arguments: argparse.Namespace,
) -> None:
    """How much was checked, and what came of it: the last line, unless nobody wants it or
    there was nothing to check."""
    if not tallies or arguments.quiet:
        return
    verdict = getattr(error, "verdict", None)
    if isinstance(error, HazardError):
        findings, verdict = list(error.findings), None
    elif error is not None and verdict is None:
        return
    tally = tallies[-1]
    if not (tally.groups != 0 or findings or verdict or tally.raised):
        return
    if is_on(arguments.checks) or tally.raised:
        kinds = parse_checks(arguments.checks)
        line = render_closing(tally, findings, verdict, kinds=kinds)
    else:
        line = f"phalanx: {count(tally.ranks, 'rank')}, not checked (--checks none)"
    print(line, file=sys.stderr)


def _with_caught(status: int, tallies: list[Tally], arguments: argparse.Namespace) -> int:
    """Under --strict an error of ours that the program has caught is one all the same."""
    return 3 if status == 0 and arguments.strict and tallies and tallies[-1].raised else status


def _run_by_torchrun(arguments: argparse.Namespace) -> int:
    from phalanx.cli.torchrun import run_by_launcher
    from phalanx.emulation.modules.isolation_rule import script_rule

    folder = os.path.abspath("." if arguments.module else os.path.dirname(arguments.script))
    script_rule(arguments.isolate, arguments.share, folder)  # the names only
    only, timeout = _rank_numbers(arguments.rank), _seconds(arguments.timeout)
    findings: list[Verdict] = []
    tallies: list[Tally] = []
    initialised, error = _outcome(
        lambda: run_by_launcher(
            arguments,
            only=only,
            timeout=timeout,
            replay=_replay(arguments),
            findings=findings,
            tallies=tallies,
        )
    )
    for finding in findings:
        print(f"{finding.severity} {render_kind(finding)}\n", file=sys.stderr)
    status = _tell(error, initialised, arguments)
    _close(tallies, findings, error, arguments)
    return _with_caught(status, tallies, arguments)


def _on_threads(
    program: Program,
    options: dict[str, Any],
    printers: list[Shown | None],
    *,
    children: str,
) -> bool:
    from phalanx.emulation.stdlib import rank_children
    from phalanx.engines.run_settings import Settings
    from phalanx.engines.threads.script_on_threads import run_program

    rank_children.as_processes = children == "processes"
    return run_program(program, Settings(**options))


def _on_processes(
    program: Program, options: dict[str, Any], printers: list[Shown | None]
) -> bool:
    from phalanx.engines.processes.processes_engine import ProcessSettings
    from phalanx.engines.processes.script_on_processes import run_program_in_processes

    def show(rank: int, stream: str, text: str) -> None:
        printer = printers[stream == "err"]
        if printer is not None:
            printer.write(rank, text)

    return run_program_in_processes(program, ProcessSettings(**options, on_output=show))


def _tick(printers: list[Shown | None]) -> None:
    with suppress(BrokenPipeError):  # the rank that prints next gets to know
        for printer in printers:
            if printer is not None:
                printer.tick()


def _outcome(run: Callable[[], bool]) -> tuple[bool, BaseException | None]:
    try:
        return run(), None
    except (RankFailedError, VerdictError, HazardError, KeyboardInterrupt) as error:
        return True, error


def _tell(error: BaseException | None, initialised: bool, arguments: argparse.Namespace) -> int:
    if error is None:
        if initialised:
            return 0
        raise UsageError(
            f"{arguments.script} ended without a call of init_process_group: its ranks never "
            "formed a group, each ran on its own. Is this the right script?"
        )
    if isinstance(error, KeyboardInterrupt):
        return 130
    if isinstance(error, (VerdictError, HazardError)):
        print(f"{type(error).__name__}: {error}", file=sys.stderr)
        return 3
    assert isinstance(error, RankFailedError)
    if isinstance(error, InvalidCallError):
        print(f"{type(error).__name__}: {error}", file=sys.stderr)
        return 3
    if isinstance(error.__cause__, WrongCommand):
        raise error.__cause__
    if error.__cause__ is not None and not _is_exit(error.__cause__):
        # That of another process comes as text.
        text = getattr(error.__cause__.__cause__, "text", None)
        if text is None:
            text = "".join(traceback.format_exception(error.__cause__))
        if text:  # that of another machine stays there
            print(text, file=sys.stderr)
    print(f"{type(error).__name__}: {error}", file=sys.stderr)
    return 1


def _is_exit(error: BaseException) -> bool:
    return isinstance(error, (SystemExit, RankDied))


def _count_ranks(arguments: argparse.Namespace) -> tuple[int, int]:
    outer = os.environ.get("WORLD_SIZE")
    if arguments.ranks is None:
        if outer is None and arguments.children == "processes":
            raise UsageError(
                "--children processes without a number of ranks: processes that the script "
                "starts are no ranks then, so say how many are to run it, e.g. -n 4; or leave "
                "--children processes out, and they become the ranks"
            )
        if outer is None:
            raise UsageError("say how many ranks to run: phalanx run -n 4 " + arguments.script)
        arguments.ranks = outer
    per_node, nodes = _number("-n", arguments.ranks), _number("--nnodes", arguments.nnodes)
    if per_node < 1 or nodes < 1:
        name, given = ("-n", per_node) if per_node < 1 else ("--nnodes", nodes)
        raise UsageError(f"{name} {given}: at least 1 is needed, e.g. {name} 4")
    ranks = per_node * nodes
    if outer is not None and outer != str(ranks):
        raise UsageError(
            f"{ranks} ranks were asked for, but the environment says WORLD_SIZE={outer}; "
            f"unset WORLD_SIZE or write -n {outer}"
        )
    return ranks, per_node


def _number(name: str, given: str) -> int:
    try:
        return int(given)
    except ValueError:
        raise UsageError(f"{name} {given}: a whole number is needed, e.g. {name} 4") from None


def _seconds(given: str | None) -> float | None:
    if given is None:
        return None
    try:
        seconds = float(given)
    except ValueError:
        raise UsageError(f"--timeout {given}: seconds are needed, e.g. --timeout 30") from None
    if not seconds > 0:
        raise UsageError(f"--timeout {given}: give seconds above 0, or leave it out")
    return seconds


def _shown_ranks(given: str | None, ranks: int) -> frozenset[int] | None:
    shown = _rank_numbers(given)
    if shown is not None and (not shown or not shown <= set(range(ranks))):
        raise UsageError(f"--rank {given}: there are ranks 0 to {ranks - 1}")
    return shown


def _rank_numbers(given: str | None) -> frozenset[int] | None:
    if given is None:
        return None
    shown: set[int] = set()
    for part in given.split(","):
        first, _, last = part.partition("-")
        low = _number("--rank", first)
        shown.update(range(low, _number("--rank", last or first) + 1))
    return frozenset(shown)


def _environ(arguments: argparse.Namespace) -> dict[str, str]:
    given = {"MASTER_ADDR": arguments.master_addr, "MASTER_PORT": arguments.master_port}
    return {name: value for name, value in given.items() if value is not None}


def _replay(arguments: argparse.Namespace) -> str:
    """The command that runs the same again, ready to paste."""
    words = ["phalanx", "run"]
    if arguments.ranks is not None:
        words += ["--ranks", str(arguments.ranks)]
    if arguments.nnodes != "1":
        words += ["--nnodes", arguments.nnodes]
    if arguments.engine != "threads":
        words += ["--engine", arguments.engine]
    words += replay_words(arguments)
    if arguments.seed != "0":
        words += ["--seed", arguments.seed]
    if arguments.clock != "real":
        words += ["--clock", arguments.clock]
    if arguments.checks != "all":
        words += ["--checks", arguments.checks]
    if arguments.strict:
        words.append("--strict")
    if arguments.profile is not None:
        words += ["--profile", arguments.profile]
    if arguments.completion is not None:
        words += ["--completion", arguments.completion]
    for option, packages in (("--isolate", arguments.isolate), ("--share", arguments.share)):
        words += [word for names in packages for word in (option, names)]
    if arguments.timeout is not None:
        words += ["--timeout", arguments.timeout]
    if arguments.engine == "torchrun":
        for name in (*WITH_VALUE, *FLAGS):
            value = getattr(arguments, name.replace("-", "_"))
            if value:
                words += [f"--{name}"] if value is True else [f"--{name}", value]
    if arguments.module:
        words.append("-m")
    return shlex.join([*words, arguments.script, *arguments.args])
