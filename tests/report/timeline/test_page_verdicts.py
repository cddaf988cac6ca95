"""Verdicts of a recording, as the page has them."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import pytest

from phalanx.model import (
    Deadlock,
    Group,
    Mismatch,
    Op,
    OpBlock,
    RankView,
    Site,
    ViewBlock,
    Wait,
)
from phalanx.report.timeline.page_verdicts import page_verdicts
from tests.report.timeline.made_up import posted, table_of_lines, words

WORLD = Group("world", (0, 1))
LINE = Site("train.py", 10, "step")


def plain(verdict: Any) -> dict[str, Any]:
    return {"type": type(verdict).__name__, **dataclasses.asdict(verdict)}


def verdicts(tmp_path: Path, given: Any) -> list[dict[str, Any]]:
    lines = [posted(rank, [10, 20, 30], tensors=[0, 0, rank]) for rank in range(2)]
    end = {"end": {"status": "failed", "verdicts": given}}
    return page_verdicts(table_of_lines(tmp_path, 2, [*words(), *lines, end]))


def test_the_two_sides_of_a_mismatch_find_their_calls(tmp_path: Path) -> None:
    sides = [Op(rank, "all_reduce", WORLD, 2, site=LINE) for rank in (0, 1)]
    blocks = (OpBlock((0,), sides[0]), OpBlock((1,), sides[1], odd=True))
    mismatch = Mismatch("mismatch", "error", (1,), WORLD, 2, blocks, ("shape",))
    (found,) = verdicts(tmp_path, [plain(mismatch)])
    assert found["differs"] == ["shape"]
    assert [(b["ranks"], b["odd"], b["calls"]) for b in found["blocks"]] == [
        ([0], False, [[0, 2]]),
        ([1], True, [[1, 2]]),
    ]


def test_a_deadlock_says_who_needs_whom(tmp_path: Path) -> None:
    def block(rank: int) -> ViewBlock:
        wait = Wait(Op(rank, "all_reduce", WORLD, 2, site=LINE), needs=(1 - rank,))
        return ViewBlock((rank,), RankView(rank, "waiting", wait))

    blocks = (block(0), block(1))
    deadlock = Deadlock("deadlock", "error", (), "cycle", (0, 1), blocks, blocked=2, total=2)
    (found,) = verdicts(tmp_path, [plain(deadlock)])
    assert found["cycle"] == [0, 1]
    assert [(b["needs"], b["calls"], b["site"]) for b in found["blocks"]] == [
        ([1], [[0, 2]], "train.py:10"),
        ([0], [[1, 2]], "train.py:10"),
    ]


@pytest.mark.parametrize(
    "given",
    [
        None,
        "text",
        [None, 3, "text"],
        [{"kind": 5, "ranks": "all", "cycle": [None, 99, -1], "blocks": {"a": 1}}],
        [{"blocks": [{"ranks": [0, 7], "view": [], "op": {"name": ["x"], "site": 3}}]}],
        [{"blocks": [{"ranks": None, "view": {"wait": {"needs": 3, "op": "recv"}}}] * 1000}],
        [{"blocks": [{"ranks": [0], "op": {"name": "all_reduce", "number": [2]}}]}],
        [{}] * 1000,
    ],
)
def test_whatever_a_verdict_holds_the_page_gets_what_it_expects(
    tmp_path: Path, given: Any
) -> None:
    for found in verdicts(tmp_path, given):
        assert isinstance(found["kind"], str)
        assert all(0 <= rank < 2 for rank in [*found["ranks"], *found["cycle"]])
        assert len(found["blocks"]) <= 64
        for block in found["blocks"]:
            assert all(0 <= rank < 2 for rank in [*block["ranks"], *block["needs"]])
