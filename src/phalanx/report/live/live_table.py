"""Rows of a running program as lines for a terminal: with rich where it is installed and
wanted, else plain. Used by `phalanx run --live` and `phalanx look`. Must never wrap a line:
whoever draws counts them."""

from __future__ import annotations

import io
from collections.abc import Sequence
from typing import Any

from phalanx.report.live.live_rows import LiveRow

HEADS = ("ranks", "state", "step", "call", "line", "waits for", "for")
LEAST_CALL, LEAST_LINE = 16, 14
"""Columns that a call and a line keep on a narrow terminal."""
STYLES = {
    "waiting": "yellow",
    "running": "green",
    "failed": "bold red",
    "finished": "dim",
    "sleeping": "cyan",
    "outside": "magenta",
    "lingering": "magenta",
}


def has_rich() -> bool:
    try:
        import rich.table  # noqa: F401
    except ImportError:
        return False
    return True


def table_lines(
    rows: Sequence[LiveRow],
    title: str,
    *,
    width: int,
    most: int | None = None,
    colours: bool = False,
) -> list[str]:
    """The title and the rows, no line wider than `width`. Of more than `most` rows the last
    ones are left out, and a line says how many. `colours` takes rich, if it is there."""
    shown = list(rows if most is None or len(rows) <= most else rows[: max(0, most - 1)])
    rest = len(rows) - len(shown)
    more = [f"... and {rest} more lines"] if rest else []
    cells = fit([HEADS, *map(_cells, shown)], width)
    if colours and has_rich():
        return _with_rich(shown, cells, title, more, width)
    body = ["  ".join(row).rstrip() for row in cells] if shown else []
    return [line[:width] for line in (title, *body, *more)]


def _cells(row: LiveRow) -> tuple[str, ...]:
    return (
        row.who,
        row.state,
        row.steps,
        row.call,
        row.line,
        row.waits_for,
        seconds_text(row.seconds),
    )


def seconds_text(seconds: float) -> str:
    """
    >>> seconds_text(0.2), seconds_text(61.0), seconds_text(7300.0)
    ('0.2 s', '1 min 1 s', '2 h 1 min')
    """
    if seconds < 60:
        return f"{seconds:.1f} s"
    minutes, rest = divmod(int(seconds), 60)
    if minutes < 60:
        return f"{minutes} min {rest} s"
    return f"{minutes // 60} h {minutes % 60} min"


def fit(cells: Sequence[Sequence[str]], width: int) -> list[list[str]]:
    """Cells of equal width in each column. The call, then the line, then the ranks that are
    waited for give way on a narrow terminal; what was cut shows as dots."""
    widths = [max(len(row[at]) for row in cells) for at in range(len(HEADS))]
    excess = sum(widths) + 2 * (len(widths) - 1) - width
    for at, least in ((3, LEAST_CALL), (4, LEAST_LINE), (5, 12), (0, 6)):
        taken = max(0, min(excess, widths[at] - least))
        widths[at] -= taken
        excess -= taken
    return [
        [_cut(row[at], wide, at).ljust(wide) for at, wide in enumerate(widths)] for row in cells
    ]


def _cut(cell: str, width: int, column: int) -> str:
    if len(cell) <= width:
        return cell
    if column == 4:  # of a path, the end says more
        return ".." + cell[len(cell) - width + 2 :]
    return cell[: max(0, width - 2)] + ".."


def _with_rich(
    rows: Sequence[LiveRow],
    cells: Sequence[Sequence[str]],
    title: str,
    more: Sequence[str],
    width: int,
) -> list[str]:
    from rich.console import Console, Group
    from rich.table import Table
    from rich.text import Text

    table = Table(box=None, padding=(0, 2, 0, 0), pad_edge=False, header_style="dim")
    heads, *body = cells
    for head in heads:
        table.add_column(Text(head), no_wrap=True, min_width=len(head), max_width=len(head))
    for row, line in zip(rows, body, strict=True):
        style = STYLES.get(row.state, "")
        texts = [Text(cell, style if at == 1 else "") for at, cell in enumerate(line)]
        table.add_row(*texts)
    parts: list[Any] = [Text(title[:width], "bold"), *([table] if rows else [])]
    parts += [Text(line, "dim") for line in more]
    file = io.StringIO()
    console = Console(file=file, width=width, force_terminal=True, highlight=False)
    console.print(Group(*parts), no_wrap=True, crop=True)
    return file.getvalue().splitlines()


def stack_lines(rows: Sequence[LiveRow]) -> list[str]:
    """Below the table: how ranks came to their lines, innermost last."""
    lines: list[str] = []
    for row in rows:
        if row.stack:
            lines += ["", f"{'rank' if len(row.ranks) == 1 else 'ranks'} {row.who}"]
            lines += [f"  {line}" for line in row.stack]
    return lines
