"""What was begun and never answered: one finding per collective, one per line of messages."""

from __future__ import annotations

from phalanx.checks.unmatched_message import find_leftovers
from phalanx.model import Group, Op, Site, Wait

WORLD = Group("world", (0, 1, 2, 3))
HERE, THERE = Site("a.py", 1, "f"), Site("a.py", 2, "f")


def send(rank: int, peer: int, site: Site = HERE, tag: int = 0) -> Wait:
    return Wait(Op(rank, "send", WORLD, peer=peer, tag=tag, site=site), (peer,))


def test_nothing_open_is_no_finding() -> None:
    assert find_leftovers([]) == ()


def test_a_collective_is_one_finding_whoever_called_it() -> None:
    waits = [Wait(Op(r, "all_reduce", WORLD, 3, site=HERE), (2, 3)) for r in (1, 0)]
    (found,) = find_leftovers(waits)
    assert (found.kind, found.severity) == ("unwaited-work", "warning")
    assert (found.ranks, found.needs) == ((0, 1), (2, 3))
    assert [block.ranks for block in found.blocks] == [(0, 1)]


def test_two_collectives_are_two_findings() -> None:
    waits = [Wait(Op(0, "all_reduce", WORLD, number), (1,)) for number in (3, 4)]
    assert len(find_leftovers(waits)) == 2


def test_messages_of_one_line_are_one_finding_with_a_block_for_each_peer() -> None:
    (found,) = find_leftovers([send(0, 1), send(1, 2), send(2, 1)])
    assert (found.kind, found.ranks, found.needs) == ("unmatched-message", (0, 1, 2), (1, 2))
    assert [(block.ranks, block.op.peer) for block in found.blocks] == [((0, 2), 1), ((1,), 2)]


def test_messages_of_other_lines_or_tags_stand_apart() -> None:
    assert len(find_leftovers([send(0, 1), send(0, 1, THERE), send(0, 1, tag=5)])) == 3


def test_the_order_does_not_depend_on_the_order_given() -> None:
    waits = [send(3, 1, THERE), send(0, 1), Wait(Op(1, "barrier", WORLD, 0), (0, 2, 3))]
    assert find_leftovers(waits) == find_leftovers(waits[::-1])
