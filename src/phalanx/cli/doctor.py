"""`phalanx doctor`: what somebody with a problem is asked for first.

Collects the facts, finds what is wrong, prints both. The rest is in `machine_facts.py`,
`report/health.py` and `report/health_text.py`.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
from typing import Any

RANKS = 8

DESCRIPTION = """\
Say what is wrong with this installation and machine, and what a report of a problem should
have: versions, torch's backends, GPUs, limits, and which names Phalanx replaces, when and why.
"""

EPILOG = """\
examples:
  phalanx doctor                 everything in short; paste it into an issue
  phalanx doctor -n 64           will 64 ranks run here?
  phalanx doctor --patches       all names that are replaced, with the reasons
  phalanx doctor --json          the same for programs

exit status: 0 nothing is wrong; 1 something is (notes do not count); 2 wrong usage
"""


def add_parser(commands: Any) -> None:
    parser = commands.add_parser(
        "doctor",
        help="what is wrong here? versions, backends, GPUs, limits, patched names",
        description=DESCRIPTION,
        epilog=EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    parser.add_argument(
        "-n",
        "--ranks",
        type=_number_of_ranks,
        default=RANKS,
        metavar="RANKS",
        help=f"judge the limits for so many ranks (default: {RANKS})",
    )
    parser.add_argument(
        "--patches", action="store_true", help="list all names that are replaced, and why"
    )
    parser.add_argument("--json", action="store_true", help="print it as JSON")
    parser.set_defaults(handler=main, parser=parser)


def _number_of_ranks(text: str) -> int:
    if not text.isdigit() or not int(text):
        raise argparse.ArgumentTypeError(f"{text!r} is no number of ranks: give 1 or more")
    return int(text)


def main(arguments: argparse.Namespace) -> int:
    from phalanx.cli.machine_facts import collect  # other commands need none of this
    from phalanx.report.health import WRONG, as_data, find_hints
    from phalanx.report.health_text import render_health

    health = collect(arguments.ranks)
    hints = find_hints(health)
    if arguments.json:
        text = json.dumps(as_data(health, hints), indent=2) + "\n"
    else:
        text = render_health(health, hints, patches=arguments.patches)
    try:
        sys.stdout.write(text)
        sys.stdout.flush()
    except BrokenPipeError:  # `| head` has seen enough; nor may Python complain at its end
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    return int(any(hint.level == WRONG for hint in hints))
