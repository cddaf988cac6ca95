"""`python -m phalanx.blackbox [OPTIONS] script.py ...`, or `torchrun -m phalanx.blackbox ...`:
run a program with a black box, without a change to it."""

from __future__ import annotations

import argparse
import os
import runpy
import sys

from phalanx import blackbox


def main(given: list[str]) -> None:
    parser = argparse.ArgumentParser(
        prog="python -m phalanx.blackbox",
        description="Run a program with a black box: see phalanx.blackbox.install.",
        allow_abbrev=False,
    )
    parser.add_argument("--folder", help="where files go (default: phalanx-blackbox)")
    parser.add_argument("--hang", type=float, help="seconds that count as a hang (default: 60)")
    parser.add_argument("-m", "--module", action="store_true", help="PROGRAM is a module")
    parser.add_argument("program", metavar="PROGRAM")
    parser.add_argument("arguments", nargs=argparse.REMAINDER)
    options = parser.parse_args(given)
    blackbox.install(options.folder, hang=options.hang)
    sys.argv = [options.program, *options.arguments]
    if options.module:
        runpy.run_module(options.program, run_name="__main__", alter_sys=True)
        return
    sys.path[0] = os.path.dirname(os.path.abspath(options.program))
    runpy.run_path(options.program, run_name="__main__")


if __name__ == "__main__":
    main(sys.argv[1:])
