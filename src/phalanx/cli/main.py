"""The command line: `phalanx COMMAND ...`. One module per command; this one only chooses.

Exit status: 0 all ranks succeeded; 1 a rank failed (the script's own error); 2 wrong usage;
3 a verdict of ours (an error of the checks, a warning under --strict); 130 interrupted; 141
who reads the output has closed it (`| head`).
"""

from __future__ import annotations

import argparse
import errno
import sys
from collections.abc import Mapping, Sequence
from typing import NoReturn

from phalanx import __version__
from phalanx.cli import conformance, doctor, explain, report_run, run
from phalanx.cli.exploring import explore_command
from phalanx.cli.live import look
from phalanx.cli.streams import end_without_output, open_missing_streams

DESCRIPTION = """\
Run, test and debug torch.distributed programs: any number of ranks in one process,
without a cluster, GPUs or ports.
"""

EPILOG = """\
examples:
  phalanx run -n 4 train.py --lr 0.1     any script that runs under torchrun
  phalanx run -n 8 -m package.train      a module
  phalanx run -n 4 --seed 7 train.py     another order of ranks; 7 replays it
  phalanx explore -n 4 queue.py          in all orders that matter: which of them fail?
  phalanx run --engine torchrun -n 4 train.py    by torch's own launcher, checked
  phalanx conformance                    thousands of small cases on a backend
  phalanx doctor                         what is wrong with this installation or machine
  phalanx report LAST                    look at the last run that failed
  phalanx look 4711                      what the ranks of that process do now
  phalanx explain dumps/                 why did that job on the cluster hang?

exit status: 0 all ranks succeeded; 1 a rank failed; 2 wrong usage;
3 the checks found an error (a wrong call, mismatch, deadlock, ...); 130 interrupted;
141 who reads the output has closed it (| head)
"""

COMMANDS = {
    "run": run,
    "explore": explore_command,
    "conformance": conformance,
    "doctor": doctor,
    "explain": explain,
    "report": report_run,
    "look": look,
}


class Parser(argparse.ArgumentParser):
    """Prints errors in one line, then how to get help. Exit status 2."""

    commands: Mapping[str, argparse.ArgumentParser]
    """The parsers of the commands, by name."""

    def error(self, message: str) -> NoReturn:
        if message == "argument --checks: expected one argument":
            message += ", e.g. --checks mismatch,leak, --checks all,-leak or --checks=-leak"
        self.exit(2, f"phalanx: {message}\ntry: {self.prog} --help\n")


def make_parser() -> Parser:
    """The parser of `phalanx`, with one subparser for each command."""
    parser = Parser(
        prog="phalanx",
        description=DESCRIPTION,
        epilog=EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--version", action="version", version=f"phalanx {__version__}")
    commands = parser.add_subparsers(dest="command", metavar="COMMAND")
    for command in COMMANDS.values():
        command.add_parser(commands)
    parser.commands = commands.choices
    return parser


def main(argv: Sequence[str] | None = None) -> int:
    """The exit status of a command. Without `argv` the process is the command's own."""
    if argv is not None:
        return _command(list(argv), owns_process=False)
    open_missing_streams()
    try:
        status = _command(sys.argv[1:], owns_process=True)
    except SystemExit as end:  # argparse has printed help, or what is wrong
        status = end.code if isinstance(end.code, int) else 0 if end.code is None else 1
    except OSError as error:
        if error.errno not in (errno.ENOSPC, errno.EIO, errno.EPIPE, errno.EFBIG):
            raise
        return end_without_output(error)
    try:
        sys.stdout.flush()
    except OSError as error:
        return end_without_output(error)
    return status


def _command(given: list[str], *, owns_process: bool) -> int:
    parser = make_parser()
    arguments, unknown = parser.parse_known_args(given)
    if not given:
        parser.print_help(sys.stderr)
        return 2
    if arguments.command is None:
        parser.error(f"no command given; choose one of {', '.join(COMMANDS)}")
    if unknown:
        hint = _hint(unknown[0].partition("=")[0], arguments.command, parser.commands)
        arguments.parser.error(f"unknown option: {' '.join(unknown)}{hint}")
    arguments.owns_process = owns_process
    return int(arguments.handler(arguments))


def _hint(option: str, command: str, commands: Mapping[str, argparse.ArgumentParser]) -> str:
    """Where to write it, which commands have an option of that name, or which one of this
    command is meant."""
    known = {name: set(parser._option_string_actions) for name, parser in commands.items()}
    if option in known[command]:
        return f"; write it after {command!r}"
    others = [f"phalanx {name}" for name in known if option in known[name]]
    if others:
        return f" (an option of {', '.join(others)})"
    import difflib  # takes a while

    close = difflib.get_close_matches(option, known[command], 1)
    return f"; did you mean {close[0]}?" if close else ""


if __name__ == "__main__":
    sys.exit(main())
