"""`phalanx run`: a torchrun script, unmodified, on ranks inside this process or beside it.

Reads the options, shows the ranks' output through the folding printer, and leaves the end of
the run to `run_end.py`. What runs the program is `script_on_threads`, `script_on_processes`,
`self_spawning_scripts`, or, for `--engine torchrun`, `cli/torchrun.py`.
"""

from __future__ import annotations

import argparse
import os
import re
import sys
import traceback
from collections.abc import Iterable, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, nullcontext
from functools import partial
from typing import TYPE_CHECKING, Any, TextIO

from phalanx.cli import collection
from phalanx.cli.folded_output import FoldingPrinter
from phalanx.cli.run_end import (
    RestartsShown,
    check_restarts,
    end_recording,
    outcome_of,
    print_closing,
    print_closing_of_worlds,
    print_error,
    print_faults,
    print_findings,
    print_unchecked_pool,
    sharing_lines,
    with_caught,
)
from phalanx.cli.self_spawned import WorldsPrinter, WorldsPrinters, alone_line, tell_launch
from phalanx.cli.streams import Outlet, OutputLost, end_without_output, redirected
from phalanx.engines.torchrun.torchrun_options import LAUNCHER_FLAGS, MAX_RESTARTS, WITH_VALUE
from phalanx.errors import UsageError
from phalanx.kinds import parse_checks
from phalanx.model import Tally, Verdict
from phalanx.options import (
    DEFAULTS,
    ENGINES,
    FLAGS,
    Flag,
    Options,
    check_choice,
    flag_of,
    read_flag,
    read_number,
)
from phalanx.report.layout import visible

if TYPE_CHECKING:
    from phalanx.cli.live.live_display import LiveDisplay
    from phalanx.engines.program import Program
    from phalanx.engines.run_recording import RunRecording

Shown = FoldingPrinter | WorldsPrinter

DESCRIPTION = """\
Run SCRIPT once per rank, as torchrun would, with all ranks inside this process (or, with
--engine processes, one process per rank on torch's real backend; with --engine torchrun,
torch's own launcher starts them, on this machine and others). Lines that several ranks
print alike are shown once, with their ranks: "[0-3] epoch 1 loss 0.42".

Without -n, SCRIPT is run once, as Python would, and the processes that it starts become the
ranks: those of torch.multiprocessing.spawn and start_processes, and those of Process that an
argument numbers 0, 1, 2, ... Data loaders' workers and pools stay processes. With --engine
processes all of them stay what they are, and those that make a group are checked as ranks.

A test suite runs as it is: "phalanx run -m pytest tests/" if tests start their ranks, and
"phalanx run -n 2 -m pytest tests/" if torchrun would start pytest. Reports name the test.
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
        help="number of ranks (on each node, with --nnodes); omit it for a script that starts "
        "its ranks itself, by torch.multiprocessing.spawn or Process",
    )
    size.add_argument(
        "--nnodes",
        metavar="N",
        default="1",
        help="pretend N nodes of -n ranks; torchrun: N machines; FEWEST:MOST: with "
        "--max-restarts as few nodes go on when others are lost",
    )
    how = parser.add_argument_group("how they run")
    record = how.add_mutually_exclusive_group()
    add_flags(how, {name: flag for name, flag in FLAGS.items() if name != "record"})
    add_flags(record, {"record": FLAGS["record"]})
    record.add_argument(
        "--no-record",
        dest="record",
        action="store_false",
        default=None,
        help="do not keep what ranks did in a run that fails",
    )
    show = parser.add_argument_group("what is shown")
    show.add_argument("-q", "--quiet", action="store_true", help="show no output of the ranks")
    show.add_argument(
        "--live",
        action="store_true",
        help="show below the output what ranks do: call, line, whom they wait for; "
        "only at a terminal",
    )
    show.add_argument("--rank", metavar="R", help="only output of these ranks: 0 or 0,2-3")
    torchrun = parser.add_argument_group(
        "as torchrun takes them",
        "With --engine torchrun these and its other options (--rdzv-backend, --rdzv-id,\n"
        "--log-dir, --redirects, --tee, ...) mean what they mean there. The other engines\n"
        "take them and, but for the first two, ignore them.",
    )
    shown = {
        "master-addr": {"metavar": "HOST"},
        "master-port": {"metavar": "PORT"},
        "rdzv-endpoint": {"metavar": "HOST:PORT", "help": "where the machines meet"},
        "node-rank": {
            "metavar": "R",
            "help": "the number of this machine, with --master-addr",
        },
    }
    ordered = dict.fromkeys((*shown, *WITH_VALUE))
    for name in ordered:
        torchrun.add_argument(*_spellings(name), **shown.get(name, {"help": argparse.SUPPRESS}))
    for name in LAUNCHER_FLAGS:
        torchrun.add_argument(*_spellings(name), action="store_true", help=argparse.SUPPRESS)
    parser.add_argument("-m", "--module", action="store_true", help="SCRIPT is a module name")
    parser.add_argument("script", metavar="SCRIPT", nargs="?")
    parser.add_argument("args", nargs=argparse.REMAINDER, help=argparse.SUPPRESS)
    parser.set_defaults(handler=handle, parser=parser)


def add_flags(
    place: Any, flags: Mapping[str, Flag], defaults: Mapping[str, Any] = DEFAULTS
) -> None:
    """Options of a run as flags of a command; `defaults` may name fewer than all."""
    for name, flag in flags.items():
        default = DEFAULTS[name] if flag.default is None else flag.default
        given: dict[str, Any] = {
            "metavar": flag.metavar,
            "default": defaults.get(name, default) if flag.default is None else default,
        }
        if flag.form == "switch":
            given = {"action": "store_true"}
        elif flag.form == "packages":
            given = {"metavar": flag.metavar, "action": "append"}
        also = [f"--{name}"] if flag_of(name) == f"--{MAX_RESTARTS}" else []  # as torchrun
        place.add_argument(flag_of(name), *also, help=flag.text, **given)


def _spellings(name: str) -> list[str]:
    short = {"redirects": ["-r"], "tee": ["-t"]}
    return [
        *short.get(name, []),
        *dict.fromkeys((f"--{name}", f"--{name.replace('-', '_')}")),
    ]


def handle(arguments: argparse.Namespace) -> int:
    if arguments.owns_process:
        collection.pause()
    try:
        return _run(arguments)
    except UsageError as error:
        print(f"phalanx: {visible(as_options(str(error)))}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:  # before the ranks began
        print("phalanx: interrupted", file=sys.stderr)
        return 130
    except (OutputLost, BrokenPipeError) as error:
        return end_without_output(error)
    except SyntaxError as error:
        print("".join(traceback.format_exception_only(error)), end="", file=sys.stderr)
        return 1
    finally:
        collection.resume()


def as_options(text: str, names: Iterable[str] = (*FLAGS, "ranks")) -> str:
    """An error text with options as flags: `--engine threads` for `engine='threads'`."""
    pattern = rf"\b({'|'.join(names)})=('?)([\w./,-]*[\w-])\2"
    return re.sub(pattern, lambda found: f"{flag_of(found[1])} {found[3]}", text)


def _run(arguments: argparse.Namespace) -> int:
    if not arguments.script:
        raise UsageError("no script given; write: phalanx run -n 4 train.py")
    check_choice("engine", arguments.engine, ENGINES)
    parse_checks(arguments.checks, where=f"--checks {arguments.checks}".rstrip())
    if arguments.engine == "torchrun":
        return _run_by_torchrun(arguments)
    launches = starts_ranks_itself(arguments)
    if launches and arguments.faults:
        raise UsageError(
            "--faults names ranks: say how many there are, e.g. -n 4. For a script that starts "
            "its ranks itself there is no plan"
        )
    if launches and arguments.engine == "processes":
        return _run_spawning(arguments)
    ranks, per_node = (1, 1) if launches else count_ranks(arguments)
    only = _rank_numbers(arguments.rank) if launches else _shown_ranks(arguments.rank, ranks)
    options = read_options(arguments, ranks=ranks, per_node=per_node)

    from phalanx.emulation.modules.isolation_rule import script_rule
    from phalanx.engines.engine import check_gpus
    from phalanx.engines.program import load_module, load_script
    from phalanx.engines.suite_of_run import exit_status
    from phalanx.engines.tests_of_ranks import reader_of_tests

    check_gpus(options)
    shared: list[tuple[Any, int]] = []
    load = load_module if arguments.module else load_script
    program = load(arguments.script, list(arguments.args))
    check_restarts(options, None if launches else program)
    rule = script_rule(options.isolate, options.share, program.search_path)
    findings: list[Verdict] = []
    tallies: list[Tally] = []
    statuses: list[int] = []
    replay = _replay(options, arguments)
    recording = _recording(options, arguments, replay)
    with ExitStack() as stack:
        stack.push(recording)
        live = stack.enter_context(_live_display(arguments))
        outlets = [] if arguments.quiet else [Outlet(sys.stdout), Outlet(sys.stderr)]
        sinks: list[Any] = [*outlets] or [None, None]
        printers = [_printer(sink, None if launches else ranks, only) for sink in sinks]
        stack.enter_context(redirected(*printers))
        restarts = RestartsShown(arguments.script, printers)
        told: dict[str, Any] = {
            "on_findings": findings.extend,
            "on_tally": tallies.append,
            "on_restart": restarts.tell,
            "on_tick": lambda: _tick(printers, outlets, live),
            "on_watch": None if live is None else live.watch,
            "on_devices": lambda *which: shared.append(which),
            "on_journal": recording.follow,
            "replay": replay,
            "test_of": reader_of_tests(),
            "on_exit": statuses.append if program.is_pytest else None,
            "environ": _environ(arguments),
            "modules": rule if options.engine == "threads" else None,
        }
        if launches:
            tell_error = partial(print_error, initialised=True, script=arguments.script)
            worlds = WorldsPrinters(printers, tell_error)
            launch, untold = _launched(program, options, told, worlds)
        else:
            run = _on_processes if options.engine == "processes" else _on_threads
            initialised, error = outcome_of(lambda: run(program, options, told, printers))
    for outlet in outlets:
        outlet.check()
    print_findings(findings)
    if launches:
        error = next((world.error for world in launch.worlds if world.error), None)
        timeline = end_recording(recording, error, findings, quiet=arguments.quiet)
        status = tell_launch(launch, arguments.script, tell_error) or untold
        ends = [(world.tally, world.error) for world in launch.worlds if world.tally]
    else:
        timeline = end_recording(recording, error, findings, quiet=arguments.quiet)
        status = print_error(error, initialised or ranks == 1, arguments.script)
        status = status or exit_status(statuses)
        ends = [(tally, error) for tally in tallies[-1:]]
    if timeline:
        print(timeline, file=sys.stderr)
    if not arguments.quiet:
        for line in sharing_lines(shared):
            print(line, file=sys.stderr)
        if launches and launch.worlds_of_one and not launch.worlds and launch.error is None:
            print(alone_line(_replay_alone(options, arguments)), file=sys.stderr)
        restarts.print_end()
        print_faults(options, tallies or [tally for tally, _ in ends])
        print_closing_of_worlds(ends, findings, options)
        if launches and program.is_pytest and not ends:
            print_unchecked_pool()
    ended = tallies if restarts.restarts else [tally for tally, _ in ends]
    return with_caught(status, ended, options)


def _recording(options: Options, arguments: argparse.Namespace, replay: str) -> RunRecording:
    from phalanx.engines.run_recording import RunRecording

    return RunRecording(options, program=arguments.script, command=replay)


def _live_display(arguments: argparse.Namespace) -> AbstractContextManager[LiveDisplay | None]:
    if not arguments.live:
        return nullcontext()
    from phalanx.cli.live.live_display import live_display

    return live_display()


def read_options(
    arguments: argparse.Namespace, *, ranks: int, per_node: int | None = None
) -> Options:
    """The options that the flags say. Raises `UsageError`."""
    given = {name: read_flag(name, getattr(arguments, name)) for name in FLAGS}
    if arguments.engine != "torchrun":
        given["fewest_nodes"] = fewest_nodes(arguments)
    return Options(ranks=ranks, per_node=per_node, init=False, **given)


def starts_ranks_itself(arguments: argparse.Namespace) -> bool:
    """Whether no number of ranks is given, so that the script must start its ranks itself."""
    return (
        arguments.ranks is None
        and arguments.nnodes == "1"
        and "WORLD_SIZE" not in os.environ
        and arguments.children == "ranks"
    )


def _printer(
    sink: TextIO | None, ranks: int | None, only: frozenset[int] | None
) -> Shown | None:
    """The printer of one stream; `ranks` is None where the script starts its ranks itself."""
    if sink is None:
        return None
    if ranks is None:
        return WorldsPrinter(sink, only)
    return FoldingPrinter(ranks, sink=sink, only=only)


def _launched(
    program: Program, options: Options, told: dict[str, Any], printers: WorldsPrinters
) -> tuple[Any, int]:
    """What came of it, and the exit status for errors of ours that no test has met with."""
    from phalanx.engines.run_settings import Settings
    from phalanx.engines.suite_of_run import activate
    from phalanx.engines.threads.self_spawning_scripts import run_launched

    collection.resume()
    settings = Settings.of(options, **told)
    if not program.is_pytest:
        return run_launched(program, settings, printers), 0
    from phalanx.engines.threads.suite_worlds import SuiteWorlds

    suite = SuiteWorlds(printers)
    activate(suite)
    try:
        launch = run_launched(program, settings, suite)
    finally:
        activate(None)
    return launch, 3 if suite.untold else 0


def _on_threads(
    program: Program, options: Options, told: dict[str, Any], printers: list[Shown | None]
) -> bool:
    from phalanx.emulation.stdlib import rank_children
    from phalanx.engines.run_settings import Settings
    from phalanx.engines.threads.script_on_threads import run_program

    rank_children.as_processes = options.children == "processes"
    collection.resume()
    return run_program(program, Settings.of(options, **told))


def _on_processes(
    program: Program, options: Options, told: dict[str, Any], printers: list[Shown | None]
) -> bool:
    from phalanx.engines.processes.processes_engine import ProcessSettings
    from phalanx.engines.processes.script_on_processes import run_program_in_processes

    def show(rank: int, stream: str, text: str) -> None:
        printer = printers[stream == "err"]
        if printer is not None:
            printer.write(rank, text)

    settings = ProcessSettings.of(options, **told, on_output=show)
    collection.resume()
    return run_program_in_processes(program, settings)


def _tick(
    printers: list[Shown | None], outlets: Sequence[Outlet], live: LiveDisplay | None
) -> None:
    for printer in printers:
        if printer is not None:
            printer.tick()
    for outlet in outlets:
        outlet.check()
    if live is not None:
        live.tick()


def _run_by_torchrun(arguments: argparse.Namespace) -> int:
    from phalanx.cli.torchrun import check_arguments, run_by_launcher
    from phalanx.emulation.modules.isolation_rule import script_rule

    per_node = int(arguments.ranks) if (arguments.ranks or "").isdecimal() else 1
    options = read_options(arguments, ranks=0, per_node=per_node)
    folder = os.path.abspath("." if arguments.module else os.path.dirname(arguments.script))
    script_rule(options.isolate, options.share, folder)  # only to check the names
    only = _rank_numbers(arguments.rank)
    check_arguments(arguments)
    findings: list[Verdict] = []
    tallies: list[Tally] = []
    replay = _replay(options, arguments)
    recording = _recording(options, arguments, replay)
    collection.resume()
    with recording, _live_display(arguments) as live:
        initialised, error = outcome_of(
            lambda: run_by_launcher(
                arguments,
                options,
                only=only,
                replay=replay,
                findings=findings,
                tallies=tallies,
                on_journal=recording.follow,
                live=live,
            )
        )
    print_findings(findings)
    timeline = end_recording(recording, error, findings, quiet=arguments.quiet)
    status = print_error(error, initialised, arguments.script)
    if timeline:
        print(timeline, file=sys.stderr)
    if tallies and not arguments.quiet:
        print_closing(tallies[-1], findings, error, options)
    return with_caught(status, tallies, options)


def _run_spawning(arguments: argparse.Namespace) -> int:
    """The script starts its ranks itself, and they are processes."""
    from phalanx.cli.self_spawned import tell_spawned
    from phalanx.engines.program import load_module, load_script
    from phalanx.engines.run_settings import Settings
    from phalanx.engines.spawned.spawning_launcher import run_spawning

    if arguments.rank is not None:
        raise UsageError(
            "--rank without -n on processes: the script's processes print by themselves; leave "
            "it out, or say how many ranks run the script, e.g. -n 4"
        )
    options = read_options(arguments, ranks=1)
    (load_module if arguments.module else load_script)(arguments.script, [])  # is it there?
    findings: list[Verdict] = []
    replay = _replay(options, arguments)
    recording = _recording(options, arguments, replay)
    told: dict[str, Any] = {
        "on_findings": findings.extend,
        "on_journal": recording.follow,
        "replay": replay,
        "environ": _environ(arguments),
    }
    kind = "module" if arguments.module else "script"
    collection.resume()
    with recording:
        words = [kind, arguments.script, *arguments.args]
        try:
            done = run_spawning(words, Settings.of(options, **told), quiet=arguments.quiet)
        except KeyboardInterrupt:
            return 130
    print_findings(findings)
    failed = [world.error for world in done.worlds if world.error is not None]
    error = done.error or next(iter(failed), None)
    timeline = end_recording(recording, error, findings, quiet=arguments.quiet)
    status = tell_spawned(done, partial(print_error, initialised=True, script=arguments.script))
    if timeline:
        print(timeline, file=sys.stderr)
    if not arguments.quiet:
        ends = [(world.tally, world.error) for world in done.worlds]
        print_closing_of_worlds(ends, findings, options)
    return with_caught(status, [world.tally for world in done.worlds], options)


def count_ranks(arguments: argparse.Namespace, *, command: str = "run") -> tuple[int, int]:
    """How many there are, and how many of them on a node. Raises `UsageError`."""
    outer = os.environ.get("WORLD_SIZE")
    if arguments.ranks is None:
        if outer is None and arguments.children == "processes":
            raise UsageError(
                "--children processes without a number of ranks: processes that the script "
                "starts are no ranks then, so say how many are to run it, e.g. -n 4; or leave "
                "--children processes out, and they become the ranks"
            )
        if outer is None:
            raise UsageError(
                f"say how many ranks to run: phalanx {command} -n 4 {arguments.script}"
            )
        arguments.ranks = outer
    per_node = read_number("-n", arguments.ranks)
    first, colon, last = arguments.nnodes.partition(":")
    fewest, nodes = (
        read_number("--nnodes", each) for each in (first, last if colon else first)
    )
    if fewest > nodes:
        raise UsageError(
            f"--nnodes {arguments.nnodes}: give the fewest nodes first, e.g. --nnodes 1:4"
        )
    if per_node < 1 or fewest < 1:
        name, given = ("-n", per_node) if per_node < 1 else ("--nnodes", arguments.nnodes)
        raise UsageError(f"{name} {given}: at least 1 is needed, e.g. {name} 4")
    ranks = per_node * nodes
    if outer is not None and outer != str(ranks):
        raise UsageError(
            f"{ranks} ranks were asked for, but the environment says WORLD_SIZE={outer}; "
            f"unset WORLD_SIZE or write -n {outer}"
        )
    return ranks, per_node


def fewest_nodes(arguments: argparse.Namespace) -> int | None:
    """Of `--nnodes FEWEST:MOST`."""
    fewest, colon, _ = arguments.nnodes.partition(":")
    return read_number("--nnodes", fewest, "1:4") if colon else None


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
        low = read_number("--rank", first)
        shown.update(range(low, read_number("--rank", last or first) + 1))
    return frozenset(shown)


def _environ(arguments: argparse.Namespace) -> dict[str, str]:
    given = {"MASTER_ADDR": arguments.master_addr, "MASTER_PORT": arguments.master_port}
    return {name: value for name, value in given.items() if value is not None}


def _replay(options: Options, arguments: argparse.Namespace) -> str:
    """The command that runs the same again, ready to paste."""
    nnodes = None if arguments.nnodes == "1" else arguments.nnodes
    program = ["-m"] if arguments.module else []
    program += [arguments.script, *arguments.args]
    if options.engine == "torchrun":
        program = [*_launcher_words(arguments), *program]
    return options.command(*program, size={"ranks": arguments.ranks, "nnodes": nnodes})


def _replay_alone(options: Options, arguments: argparse.Namespace) -> str:
    """The command that runs it on one rank."""
    return _replay(options, argparse.Namespace(**{**vars(arguments), "ranks": "1"}))


def _launcher_words(arguments: argparse.Namespace) -> list[str]:
    words = []
    for name in (*WITH_VALUE, *LAUNCHER_FLAGS):
        value = getattr(arguments, name.replace("-", "_"))
        if value:
            words += [f"--{name}"] if value is True else [f"--{name}", value]
    return words
