"""What is said of restarts."""

from __future__ import annotations

from phalanx.model import Restart, Site
from phalanx.report.closing import render_restart, render_restarts

WHY = "rank 2 raised ValueError: lost batch"
AT = Site("train.py", 31, "main")


def test_a_restart_is_told_when_it_happens() -> None:
    assert render_restart(Restart(1, 3, WHY, AT, 1)) == (
        "phalanx: restart 1 of at most 3: the rank starts again"
    )
    assert render_restart(Restart(2, 3, WHY, AT, 2, fewer=True)) == (
        "phalanx: restart 2 of at most 3: 2 ranks start again, the others are gone"
    )


def test_all_are_told_at_the_end() -> None:
    assert render_restarts([]) == ""
    assert render_restarts([Restart(1, 3, WHY, AT, 4)]) == (
        "phalanx: 1 restart of at most 3, because rank 2 raised ValueError: lost batch "
        "(train.py:31)"
    )
    assert render_restarts(
        [Restart(1, 3, WHY, AT, 4), Restart(2, 3, "rank 0 died", None, 2, fewer=True)]
    ) == (
        "phalanx: 2 restarts of at most 3, because\n"
        "  1. rank 2 raised ValueError: lost batch (train.py:31)\n"
        "  2. rank 0 died; 2 ranks went on"
    )
