"""Run programs that use libraries with torchrun and with `phalanx run`, and compare.

    python -m tests.libraries.run [--select TEXT] [--write docs/libraries.md] [-v] [--list]
                                  [--only phalanx|torchrun]

Needs the libraries (`make test-libraries` sets them up). The exit status is 0 if every program
ends with `phalanx run` as it does with torchrun, with the same results, but for those declared
to fail. `--select` takes part of a title, as `--list` shows it.
"""

from __future__ import annotations

import argparse
import sys
from importlib.metadata import version
from pathlib import Path

from tests.libraries.compare import find_difference
from tests.libraries.declared import PROGRAMS
from tests.libraries.launch import run_with_phalanx, run_with_torchrun
from tests.libraries.model import Program, Ran, Row
from tests.libraries.table import write_table


def main() -> int:
    options = parse()
    chosen = [program for program in PROGRAMS if is_chosen(program, options.select)]
    if not chosen:
        print(f"no program has {' or '.join(options.select)} in its title; --list shows all")
        return 2
    if options.list:
        print("\n".join(f"{program.library}: {program.title}" for program in chosen))
        return 0
    if options.only:
        return run_alone(chosen, options.only)
    rows, wrong = [], []
    for program in chosen:
        row = run_both(program)
        rows.append(row)
        problem = find_problem(row)
        print(line_of(row), flush=True)
        if problem:
            wrong.append(f"{program.title}: {problem}")
        if options.verbose or problem:
            print(row.torchrun.text, row.phalanx.text, sep="\n=== phalanx run\n", flush=True)
        if options.write:  # at once: a run of all of them takes long and may be interrupted
            write_table(options.write, [row], PROGRAMS)
    print(f"{len(rows) - len(wrong)} of {len(rows)} programs as they should be")
    print("".join(f"wrong: {line}\n" for line in wrong), end="")
    return 1 if wrong else 0


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--select", action="append", default=[], metavar="TEXT")
    parser.add_argument("--write", type=Path, metavar="PAGE", help="put the table into it")
    parser.add_argument("--only", choices=("phalanx", "torchrun"), help="show, compare nothing")
    parser.add_argument("--list", action="store_true", help="only show what there is")
    parser.add_argument("-v", "--verbose", action="store_true", help="show all output")
    return parser.parse_args()


def is_chosen(program: Program, wanted: list[str]) -> bool:
    return not wanted or any(text in f"{program.library}: {program.title}" for text in wanted)


def run_alone(programs: list[Program], launcher: str) -> int:
    """Run with one of the two and show everything."""
    run = run_with_phalanx if launcher == "phalanx" else run_with_torchrun
    failed = False
    for program in programs:
        ran = run(program)
        print(ran.text, f"{program.title}: {ran.status}, {ran.seconds:.1f} s", sep="\n")
        failed |= ran.status != "passed"
    return int(failed)


def run_both(program: Program) -> Row:
    expected = run_with_torchrun(program)
    got = run_with_phalanx(program)
    difference = find_difference(program, expected, got)
    return Row(program, version(program.library), expected, got, difference)


def find_problem(row: Row) -> str:
    """What is not as declared; an empty text if all is well."""
    program = row.program
    if program.fails_with_torchrun:
        return _unexpected(row.torchrun.status, "torchrun", "fails_with_torchrun")
    if row.torchrun.status != "passed":
        return f"{row.torchrun.status} with torchrun{_last_words(row.torchrun)}"
    if program.fails_here:
        return _unexpected(row.verdict, "phalanx run", "fails_here")
    if row.phalanx.status != "passed":
        return f"{row.phalanx.status} with phalanx run{_last_words(row.phalanx)}"
    return row.difference


def _unexpected(status: str, where: str, field: str) -> str:
    return f"passes with {where} now: take {field} away" if status == "passed" else ""


def _last_words(ran: Ran) -> str:
    lines = [line for line in ran.text.splitlines() if "Error" in line]
    return f": {lines[-1].strip()}" if lines else ""


def line_of(row: Row) -> str:
    words = f"{row.program.library}: {row.program.title}"
    times = f"{row.torchrun.seconds:.1f} s, {row.phalanx.seconds:.1f} s"
    return f"{words}: torchrun {row.torchrun.status}, phalanx {row.verdict} ({times})"


if __name__ == "__main__":
    sys.exit(main())
