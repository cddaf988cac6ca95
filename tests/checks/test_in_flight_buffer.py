"""What a finding says about a tensor that was touched in flight."""

from __future__ import annotations

import pytest

from phalanx.checks.in_flight_buffer import How, Touch, find_in_flight
from phalanx.model import Group, Op, Site

WORLD = Group("world", (0, 1))
CALL, LINE = Site("a.py", 3, "f"), Site("a.py", 4, "f")
FLYING = Op(1, "all_reduce", WORLD, 0, reduce_op="SUM", site=CALL)
OTHER = Op(1, "broadcast", WORLD, 1, root=0, site=LINE)


@pytest.mark.parametrize(
    ("how", "words"),
    [
        ("read", "read the result of"),
        ("written", "wrote to the tensor of"),
        ("replaced", "resized or freed the tensor of"),
    ],
)
def test_both_lines_are_named(how: How, words: str) -> None:
    found = find_in_flight(Touch(how, FLYING, by="add_", site=LINE))
    assert (found.kind, found.severity, found.ranks) == ("in-flight-buffer", "error", (1,))
    assert found.headline == f"rank 1 {words} all_reduce (a.py:3) before it had waited for it"
    assert [block.op.site for block in found.blocks] == [CALL, LINE]


def test_another_operation() -> None:
    found = find_in_flight(Touch("used", FLYING, other=OTHER))
    used = "rank 1 used one tensor in all_reduce (a.py:3) and broadcast (a.py:4) at once"
    assert found.headline == used
    assert [block.op for block in found.blocks] == [FLYING, OTHER]


def test_a_change_seen_afterwards_says_between_which_lines() -> None:
    found = find_in_flight(Touch("changed", FLYING, site=LINE))
    assert [block.op for block in found.blocks] == [FLYING]
    assert found.facts == (("seen", "the memory was written to between a.py:3 and a.py:4"),)
