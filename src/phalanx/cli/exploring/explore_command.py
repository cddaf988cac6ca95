"""`phalanx explore`: run a script in many orders, and say in which of them it fails.

Reads the options, which are those of `phalanx run` that mean something to ranks that are
threads, and those of `ExploreOptions`; shows progress, the failures and the summary. With
`--replay` it repeats one run, and shows it as `phalanx run` would.
"""

from __future__ import annotations

import argparse
import shlex
import sys
import traceback
from collections.abc import Iterator, Mapping
from contextlib import ExitStack
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from phalanx.cli import collection
from phalanx.cli.exploring.explore_progress import ProgressLine
from phalanx.cli.folded_output import FoldingPrinter
from phalanx.cli.run import (
    add_flags,
    as_options,
    count_ranks,
    fewest_nodes,
    starts_ranks_itself,
)
from phalanx.cli.streams import Outlet, OutputLost, end_without_output, redirected
from phalanx.errors import UsageError, WrongCommand
from phalanx.explore.explore_options import COMPARED, STRATEGIES, STRATEGY, ExploreOptions
from phalanx.kinds import KINDS
from phalanx.options import (
    EXPLORE_DEFAULTS,
    EXPLORE_FLAGS,
    FLAGS,
    Options,
    read_flag,
    read_number,
    read_seconds,
)
from phalanx.report.layout import visible

if TYPE_CHECKING:
    from phalanx.engines.program import Program
    from phalanx.explore.exploration import Exploration
    from phalanx.explore.run_view import RunView
    from phalanx.explore.tokens import Token

DESCRIPTION = """\
Run SCRIPT on ranks inside this process again and again, each time in another order: who
reaches a store first, whose message is received first, when an operation completes. Say in
which orders it fails, or prints something else; a failure comes with the choices that lead to
it and with a token that repeats it. The clock is virtual: sleeps and timeouts take no time.
"""

EPILOG = """\
examples:
  phalanx explore -n 4 queue.py                    200 orders
  phalanx explore -n 4 --seconds 60 queue.py       as many as fit into a minute
  phalanx explore -n 3 --strategy exhaustive queue.py    all of them: a proof
  phalanx explore -n 4 --replay 4-12.1-a7f3 queue.py     the run of a failure again

exit status: 0 nothing found; 1 a rank failed (the script's own error); 2 wrong usage;
3 the checks found an error, or orders differ in their results; 130 interrupted
"""

LAUNCHES = (
    "say how many ranks to explore: phalanx explore -n 4 {script}. A script that starts its "
    "ranks itself (torch.multiprocessing.spawn, Process) cannot be explored: give the function "
    "that it starts to phalanx.explore, which takes it and the number of ranks"
)
PYTEST = (
    "pytest explores by itself: pytest --ranks-explore 200 tests/ (for tests marked with "
    "@pytest.mark.ranks)"
)


def add_parser(commands: Any) -> None:
    parser = commands.add_parser(
        "explore",
        help="run a script in all orders that matter, and find those in which it fails",
        description=DESCRIPTION,
        usage="phalanx explore -n RANKS [options] [-m] SCRIPT [script arguments ...]",
        epilog=EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    size = parser.add_argument_group("how many ranks")
    size.add_argument(
        "-n", "--ranks", "--nproc-per-node", dest="ranks", metavar="N", help="number of ranks"
    )
    size.add_argument("--nnodes", metavar="N", default="1", help="as phalanx run has it")
    _add_what(parser.add_argument_group("what is explored"))
    _add_one_run(parser.add_argument_group("one run again"))
    how = parser.add_argument_group("how ranks run", "as for phalanx run")
    add_flags(how, EXPLORE_FLAGS, EXPLORE_DEFAULTS)
    show = parser.add_argument_group("what is shown")
    show.add_argument(
        "-q",
        "--quiet",
        action="store_true",
        help="show failures only",
    )
    show.add_argument("--json", metavar="FILE", help="write it all into FILE, for tools")
    parser.add_argument("-m", "--module", action="store_true", help="SCRIPT is a module name")
    parser.add_argument("script", metavar="SCRIPT", nargs="?")
    parser.add_argument("args", nargs=argparse.REMAINDER, help=argparse.SUPPRESS)
    parser.set_defaults(handler=handle, parser=parser, children="ranks")


def _add_what(what: Any) -> None:
    what.add_argument(
        "--schedules", metavar="N", help="how many orders to try (200; exhaustive: 10000)"
    )
    what.add_argument("--seconds", metavar="SEC", help="begin no run after SEC seconds")
    what.add_argument(
        "--strategy",
        metavar="NAME",
        default=STRATEGY,
        help=f"{', '.join(STRATEGIES)} ({STRATEGY}); exhaustive ends with a proof",
    )
    what.add_argument("--seed", metavar="S", default="0", help="of the strategy, and of faults")
    what.add_argument(
        "--faults",
        metavar="WHAT",
        default="",
        help="draw faults of these kinds, kill,delay; or a plan: kill(rank=2, at=call(17))",
    )
    what.add_argument(
        "--compare",
        metavar="WHAT",
        default=",".join(COMPARED),
        help="what must be equal in all orders: values,output,parameters, or none",
    )
    what.add_argument(
        "--same-result",
        action="store_true",
        help="with --faults: what a run without faults ends with, those with faults must, too",
    )
    what.add_argument(
        "--store", metavar="DIR", default=".phalanx", help="the folder that keeps failures"
    )
    what.add_argument(
        "--no-store", dest="store", action="store_const", const=None, help="keep no failures"
    )


def _add_one_run(again: Any) -> None:
    again.add_argument("--replay", metavar="TOKEN", help="repeat the run of a failure")
    again.add_argument(
        "--record", metavar="FILE", help="with --replay: write what every rank does into FILE"
    )


def handle(arguments: argparse.Namespace) -> int:
    if arguments.owns_process:
        collection.pause()
    try:
        return _explore(arguments)
    except UsageError as error:
        print(f"phalanx: {visible(_as_flags(str(error)))}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:  # before a run began
        print("phalanx: interrupted", file=sys.stderr)
        return 130
    except (OutputLost, BrokenPipeError) as error:
        return end_without_output(error)
    except SyntaxError as error:
        print("".join(traceback.format_exception_only(error)), end="", file=sys.stderr)
        return 1
    finally:
        collection.resume()


_OWN = ("schedules", "seconds", "strategy", "seed", "faults", "compare", "store", "replay")


def _as_flags(text: str) -> str:
    return as_options(text, (*FLAGS, *_OWN, "ranks"))


def _explore(arguments: argparse.Namespace) -> int:
    if not arguments.script:
        raise UsageError("no script given; write: phalanx explore -n 4 train.py")
    asked = _read_asked(arguments)
    if starts_ranks_itself(arguments):
        raise UsageError(LAUNCHES.format(script=arguments.script))
    ranks, per_node = count_ranks(arguments, command="explore")
    options = _read_options(arguments, asked, ranks=ranks, per_node=per_node)

    from phalanx.emulation.modules.isolation_rule import script_rule
    from phalanx.engines.engine import check_gpus
    from phalanx.engines.program import load_module, load_script

    check_gpus(options)
    load = load_module if arguments.module else load_script
    program = load(arguments.script, list(arguments.args))
    if program.is_pytest:
        raise UsageError(PYTEST)
    script_rule(options.isolate, options.share, program.search_path)  # are the names right?
    return _Exploring(arguments, asked, options, program).run()


def _read_asked(arguments: argparse.Namespace) -> ExploreOptions:
    given: dict[str, Any] = {
        name: getattr(arguments, name)
        for name in ("strategy", "faults", "compare", "same_result", "store", "replay")
    }
    if arguments.schedules is not None:
        given["schedules"] = read_number("--schedules", arguments.schedules, "500")
    if arguments.seconds is not None:
        given["seconds"] = read_seconds("--seconds", arguments.seconds, "60")
    given["seed"] = read_number("--seed", arguments.seed, "7")
    return ExploreOptions.of(**given, record=arguments.record)


def _read_options(
    arguments: argparse.Namespace, asked: ExploreOptions, *, ranks: int, per_node: int
) -> Options:
    given = {name: read_flag(name, getattr(arguments, name)) for name in EXPLORE_FLAGS}
    record = False if asked.record is None else asked.record
    given.update(faults=asked.plan, record=record, fewest_nodes=fewest_nodes(arguments))
    return Options(ranks=ranks, per_node=per_node, init=False, **given)


class _Exploring:
    """One command, from its first run to its exit status."""

    def __init__(
        self,
        arguments: argparse.Namespace,
        asked: ExploreOptions,
        options: Options,
        program: Program,
    ) -> None:
        self._arguments = arguments
        self._asked = asked
        self._options = options
        self._program = program
        self._progress: ProgressLine | None = None

    def run(self) -> int:
        from phalanx.explore.run_view import RunView

        command = self._command(self._asked.replay)
        view = RunView.of(
            self._asked, self._options, program=self._arguments.script, command=command
        )
        with view:
            found, is_interrupted = self._explored(view)
            view.end(found)
        for failure in found.failures:
            if isinstance(failure.error.__cause__, WrongCommand):
                raise UsageError(LAUNCHES.format(script=self._arguments.script))
        if self._arguments.json:
            from phalanx.cli.exploring.explore_json import write_json

            write_json(self._arguments.json, found, self._asked)
        self._show(found, is_interrupted=is_interrupted)
        return 130 if is_interrupted else exit_status(found)

    def _explored(self, view: RunView) -> tuple[Exploration, bool]:
        """What was found, and whether Ctrl-C ended it."""
        from phalanx.emulation.modules.isolation_rule import script_rule
        from phalanx.emulation.run_patches import patched
        from phalanx.explore.explorer import ExploreProgress, Explorer
        from phalanx.explore.subjects import ScriptSubject

        options, search_path = self._options, self._program.search_path
        subject = ScriptSubject(
            self._program,
            options,
            self._asked.plan,
            rule=lambda: script_rule(options.isolate, options.share, search_path),
            view=view,
        )
        show = self._progress_line()

        def tell(progress: ExploreProgress) -> None:
            if not view.has_formed_group and not progress.failures and options.ranks > 1:
                raise UsageError(
                    f"{self._arguments.script} ended without a call of init_process_group: its "
                    "ranks never formed a group, each ran on its own. Is this the right script?"
                )
            if show is not None:
                show(progress)

        explorer = Explorer(subject, self._asked, tell, self._replay_line)
        collection.resume()
        with ExitStack() as stack:
            stack.enter_context(patched())
            stack.callback(subject.close)
            if view.shows_output:
                outlets = [Outlet(sys.stdout), Outlet(sys.stderr)]
                printers = [_printer(options.ranks, each) for each in outlets]
                stack.enter_context(redirected(*printers))
            if show is not None:
                stack.callback(show.close)
            try:
                return explorer.run(), False
            except KeyboardInterrupt:
                return explorer.result(), True

    def _progress_line(self) -> ProgressLine | None:
        if self._arguments.quiet or self._asked.replay is not None:
            return None
        return ProgressLine(seconds=self._asked.seconds)

    def _show(self, found: Exploration, *, is_interrupted: bool) -> None:
        if is_interrupted:
            print("phalanx: interrupted; this is what was found so far", file=sys.stderr)
        if self._arguments.quiet and found.passed:
            return
        print(visible(found.render()))
        for line in self._closing(found, is_interrupted=is_interrupted):
            print(f"phalanx: {line}")

    def _closing(self, found: Exploration, *, is_interrupted: bool) -> Iterator[str]:
        """What to know besides, for somebody who is new to it."""
        asked = self._asked
        if asked.record is not None:
            name = shlex.quote(asked.record)
            yield f"the run is recorded; phalanx report {name} shows it"
        if asked.replay is not None:
            return
        if found.failures and found.behaviours == 1:
            yield "it fails in every order; --replay shows it with all that it prints"
        if found.failures and asked.store is not None:
            yield f"kept in {visible(asked.store)}: the next exploration tries it first"
        elif not found.complete and found.passed and not is_interrupted:
            yield "this is no proof; --strategy exhaustive explores all orders, if they are few"

    def _replay_line(self, token: Token) -> str:
        return self._command(str(token), token.ranks)

    def _command(self, token: str | None, ranks: int | None = None) -> str:
        """What repeats the run of the token, or all of this."""
        arguments, options = self._arguments, self._options
        words = ["-m"] if arguments.module else []
        words += [arguments.script, *arguments.args]
        size: Mapping[str, str | None] = {"ranks": arguments.ranks}
        if ranks is not None and ranks != options.ranks:
            options = replace(options, ranks=ranks, per_node=None)
            size = {"ranks": str(ranks)}
        elif arguments.nnodes != "1":
            size = {**size, "nnodes": arguments.nnodes}
        more = {} if token is None else {"replay": token}
        return options.command(*words, size=size, door="explore", more=more)


def exit_status(found: Exploration) -> int:
    """3 if anything was found that is more than the program's own error."""
    if found.passed:
        return 0
    return 3 if any(is_verdict(each.kind) for each in found.failures) else 1


def is_verdict(kind: str) -> bool:
    return kind in KINDS


def _printer(ranks: int, outlet: Any) -> FoldingPrinter:
    return FoldingPrinter(ranks, sink=outlet)
