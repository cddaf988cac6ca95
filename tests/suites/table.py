"""The table in docs/suites.md: what was run, and how it ended on both sides.

The page is written by hand but for the table, which stands between two comments. A suite that
was not run keeps its row.
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from tests.suites.declared import Suite
from tests.suites.outcomes import Ran, compare

BEGIN = "<!-- the table: written by tests/suites/run.py -->"
END = "<!-- end of the table -->"
HEAD = (
    "suite",
    "sources",
    "with",
    "real processes",
    "Phalanx",
    "tests that differ",
    "time of both",
)


def render_row(suite: Suite, real: Ran, here: Ran) -> str:
    """One line of the table; counts are passed/failed/skipped, as each rank has them."""
    differing = list(compare(suite, real, here))
    unexplained = [test for test, _, reason in differing if not reason]
    told = (
        f"{len(differing)}, {len(unexplained)} unexplained" if unexplained else len(differing)
    )
    command = " ".join(suite.command(suite.ways[1])[: 4 if not suite.ranks else 6])
    cells = [suite.name, real.sources, f"`{command}`", _counts(real), _counts(here), str(told)]
    return f"| {' | '.join([*cells, f'{real.seconds:.0f} s, {here.seconds:.0f} s'])} |"


def _counts(ran: Ran) -> str:
    text = " and ".join(ran.counts)
    return f"{text}, **ended after its limit**" if ran.status is None else text


def write_table(page: Path, rows: Iterable[tuple[Suite, list[Ran | None]]]) -> None:
    """Put the rows into the page; rows of suites that are no longer declared go."""
    before, _, rest = page.read_text().partition(BEGIN)
    old, found, after = rest.partition(END)
    if not found:
        raise ValueError(f"{page} has no place for the table: {BEGIN} ... {END}")
    lines = {
        line.split(" | ")[0][2:]: line for line in old.splitlines() if line.startswith("| ")
    }
    body = []
    for suite, (real, here) in rows:
        if real is not None and here is not None:
            body.append(render_row(suite, real, here))
        elif suite.name in lines:
            body.append(lines[suite.name])
    head = ["| " + " | ".join(HEAD) + " |", "|---" * len(HEAD) + "|"]
    page.write_text("\n".join([before + BEGIN, *head, *body, END]) + after)
