"""What `phalanx explore` shows while it goes on: a bar on a terminal, else lines."""

from __future__ import annotations

import io
from dataclasses import replace

import pytest

from phalanx.cli.exploring.explore_progress import (
    ProgressLine,
    render_counts,
    render_progress,
)
from phalanx.explore.explore_options import SHRINKING
from phalanx.explore.explorer import ExploreProgress


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


class Clock:
    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


def after(schedules: int, seconds: float, *, of: int | None = 100) -> ExploreProgress:
    return ExploreProgress(schedules, of, behaviours=3, failures=1, seconds=seconds)


@pytest.mark.parametrize(
    ("progress", "seconds", "text"),
    [
        (after(50, 2.0), None, "[############............] 50/100 schedules, 25 a second, 3"),
        (after(10, 45.0), 60, "[##################......] 10/100 schedules, 0 a second, 3 b"),
        (after(10, 15.0, of=None), 60, "[######..................] 10 schedules, 1 a second"),
        (after(10, 99.0, of=None), 60, "[########################] 10 schedules, 0 a second"),
        (
            after(1, 0.0),
            None,
            "[........................] 1/100 schedules, 0 a second, 3 be",
        ),
    ],
)
def test_the_bar_fills_by_the_nearer_limit(
    progress: ExploreProgress, seconds: float | None, text: str
) -> None:
    assert render_progress(progress, seconds, 200).startswith(text)


def test_a_bar_is_no_wider_than_the_terminal() -> None:
    assert len(render_progress(after(50, 2.0), None, 40)) == 39
    narrow = render_progress(after(50, 2.0), None, 70)
    assert narrow.startswith("[######......] 50/100 schedules, 25 a second, 3 behaviours, 1 f")
    assert len(narrow) == 69


def test_what_is_made_small_is_told() -> None:
    progress = replace(after(50, 2.0), stage=SHRINKING)
    assert render_counts(progress) == "50/100 schedules, making findings small"


def test_a_terminal_has_one_bar_that_is_wiped_out() -> None:
    sink, clock = Terminal(), Clock()
    show = ProgressLine(sink, clock=clock)
    show(after(1, 1.0))
    clock.now = 0.05
    show(after(2, 1.0))  # too soon to be drawn
    show.close()
    text = sink.getvalue()
    assert text.count("schedules") == 1
    assert "\n" not in text
    assert text.endswith("\r")
    assert text.rstrip("\r").endswith(" ")


def test_elsewhere_there_is_a_line_every_ten_seconds() -> None:
    sink, clock = io.StringIO(), Clock()
    show = ProgressLine(sink, clock=clock)
    for second in range(25):
        clock.now = float(second)
        show(after(second + 1, second + 1.0))
    show.close()
    assert sink.getvalue() == (
        "phalanx: 11/100 schedules, 1 a second, 3 behaviours, 1 finding\n"
        "phalanx: 21/100 schedules, 1 a second, 3 behaviours, 1 finding\n"
    )
