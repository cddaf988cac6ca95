"""The table in docs/libraries.md: what was run, and what came of it.

The page is written by hand but for the table, which stands between two comments. A run of some
programs replaces their rows and leaves the others.
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from tests.libraries.model import Program, Row

BEGIN = "<!-- the table: written by `make test-libraries` -->"
END = "<!-- end of the table -->"
HEAD = ("library", "version", "`phalanx run ...`", "torchrun", "`phalanx run`", "time of both")


def render_row(row: Row) -> str:
    """One line of the table."""
    program = row.program
    times = f"{row.torchrun.seconds:.1f} s, {row.phalanx.seconds:.1f} s"
    with_torchrun = _mark(row.torchrun.status, program.fails_with_torchrun)
    cells = [program.library, row.version, f"`{program.title}`", with_torchrun]
    return "| " + " | ".join([*cells, _mark(row.verdict, program.fails_here), times]) + " |"


def _mark(status: str, reason: str = "") -> str:
    if status == "passed":
        return "yes"
    return f"**{status}**: {reason}" if reason else f"**{status}**"


def write_table(page: Path, rows: Iterable[Row], programs: Iterable[Program]) -> None:
    """Put the rows into the page; rows of programs that are no longer declared go."""
    text = page.read_text()
    before, _, rest = text.partition(BEGIN)
    old, found, after = rest.partition(END)
    if not found:
        raise ValueError(f"{page} has no place for the table: {BEGIN} ... {END}")
    lines = {_title(line): line for line in old.splitlines() if line.startswith("| ")}
    lines |= {f"`{row.program.title}`": render_row(row) for row in rows}
    titles = [f"`{program.title}`" for program in programs]
    body = [lines[title] for title in titles if title in lines]
    head = ["| " + " | ".join(HEAD) + " |", "|---" * len(HEAD) + "|"]
    page.write_text("\n".join([before + BEGIN, *head, *body, END]) + after)


def _title(line: str) -> str:
    return line.split(" | ")[2]
