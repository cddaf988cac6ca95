"""The table of a running program: never wider than the terminal, with rich or without."""

from __future__ import annotations

import re
import sys

import pytest

from phalanx.report.live.live_rows import LiveRow
from phalanx.report.live.live_table import stack_lines, table_lines

ROWS = [
    LiveRow((0, 1, 2), "waiting", 8, 8, "all_reduce(op=SUM) #7", "train.py:41", "rank 3", 4.2),
    LiveRow((3,), "running", 7, 7, "after all_reduce(op=SUM) #6", "[bold]x.py:37"),
]


def test_plain() -> None:
    assert table_lines(ROWS, "phalanx: 4 ranks", width=100) == [
        "phalanx: 4 ranks",
        "ranks  state    step  call                         line           waits for  for",
        "0-2    waiting  8     all_reduce(op=SUM) #7        train.py:41    rank 3     4.2 s",
        "3      running  7     after all_reduce(op=SUM) #6  [bold]x.py:37             0.0 s",
    ]


@pytest.mark.parametrize("width", [40, 60, 80, 200])
@pytest.mark.parametrize("colours", [False, True])
def test_no_line_is_wider_than_the_terminal(width: int, colours: bool) -> None:
    long = LiveRow((0,), "waiting", 1, 1, "c" * 300, "folder/" * 20 + "a.py:1", "r" * 90)
    for line in table_lines([*ROWS, long], "t" * 300, width=width, colours=colours):
        assert len(re.sub(r"\x1b\[[\d;]*m", "", line)) <= width


def test_with_rich_the_text_is_the_same_and_no_markup() -> None:
    pytest.importorskip("rich")
    coloured = table_lines(ROWS, "title", width=100, colours=True)
    bare = [re.sub(r"\x1b\[[\d;]*m", "", line).rstrip() for line in coloured]
    assert bare == table_lines(ROWS, "title", width=100)


def test_without_rich_it_is_plain(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "rich.table", None)
    plain = table_lines(ROWS, "title", width=100)
    assert table_lines(ROWS, "title", width=100, colours=True) == plain


def test_more_rows_than_fit() -> None:
    rows = [LiveRow((rank,), "running", 0, 0) for rank in range(10)]
    lines = table_lines(rows, "title", width=80, most=4)
    assert len(lines) == 1 + 1 + 3 + 1
    assert lines[-1] == "... and 7 more lines"


def test_stacks() -> None:
    row = LiveRow((0, 1), "waiting", 1, 1, stack=("a.py:1 in f", "a.py:9 in g"))
    assert stack_lines([row, ROWS[0]]) == ["", "ranks 0, 1", "  a.py:1 in f", "  a.py:9 in g"]
