"""`phalanx explain`: why a job hung, from what its ranks left behind.

Reads, decides and prints; all of it is in `phalanx/explain/`.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
from typing import Any

from phalanx.errors import UsageError

DESCRIPTION = """\
Say why a job hung or died, from what its ranks left behind: dumps of torch's Flight Recorder
(pickle or JSON, NCCL or Gloo), files of phalanx.blackbox, recordings of --record, and beside
them what py-spy printed. Files are not trusted: nothing in them is carried out.
"""

EPILOG = """\
examples:
  phalanx explain /tmp/dumps              all files of a folder
  phalanx explain nccl_trace_rank_*       these files
  phalanx explain --json /tmp/dumps       for programs

exit status: 0 nothing wrong found; 1 a verdict; 2 wrong usage, or files that cannot be read
"""


def add_parser(commands: Any) -> None:
    parser = commands.add_parser(
        "explain",
        help="why did a real job hang? from Flight Recorder dumps, black boxes, recordings",
        description=DESCRIPTION,
        epilog=EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    parser.add_argument("paths", nargs="+", metavar="PATH", help="files, or folders of files")
    parser.add_argument("--json", action="store_true", help="print it as JSON")
    parser.set_defaults(handler=main, parser=parser)


def main(arguments: argparse.Namespace) -> int:
    from phalanx.explain.dump_files import read_dumps  # other commands need none of this
    from phalanx.explain.explanation import explain
    from phalanx.explain.explanation_text import as_data, printable, render_explanation

    try:
        answer = explain(read_dumps(arguments.paths))
    except UsageError as error:
        sys.stderr.write(printable(f"phalanx: {error}\n"))
        return 2
    except Exception as error:  # a dump is not trusted, and a traceback explains nothing
        what = f"{type(error).__name__}: {str(error)[:200]}"
        where = ", ".join(arguments.paths[:4])
        sys.stderr.write(printable(f"phalanx: {where}: cannot be explained ({what})\n"))
        return 2
    data = json.dumps(as_data(answer), indent=2) if arguments.json else ""
    text = data or render_explanation(answer)
    try:
        sys.stdout.write(text + "\n")
        sys.stdout.flush()
    except BrokenPipeError:  # `| head` has seen enough; nor may Python complain at its end
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    return int(answer.found)
