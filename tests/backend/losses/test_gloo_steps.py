"""The steps of Gloo's algorithms fit together: without faults every member is through."""

from __future__ import annotations

import pytest

from phalanx.backend.losses.gloo_steps import RECV, SEND, Step, steps_of, steps_with_all
from phalanx.backend.losses.stepped_collective import DONE, FAILED, GOING, SteppedCollective

SIZES = (2, 3, 4, 5, 8)
ROOTED = ("broadcast", "reduce", "gather", "scatter")
OTHERS = ("all_reduce", "all_gather", "all_to_all", "barrier", "monitored_barrier")


def played(size: int, steps: list[list[Step]]) -> SteppedCollective:
    found = SteppedCollective(lambda member, peer: None, lambda one, other: False)
    for member, each in enumerate(steps[:size]):
        found.add(member, each)
        found.run()
    return found


def steps_for(
    name: str, size: int, root: int | None, count: int
) -> list[list[tuple[str, str, int]]]:
    return [
        steps_of(name, member, size, root=root, count=count, width=4) for member in range(size)
    ]


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("name", [*ROOTED, *OTHERS])
@pytest.mark.parametrize("count", [1, 4, 1000])
def test_all_members_are_through_when_all_have_come(name: str, size: int, count: int) -> None:
    for root in range(size) if name in ROOTED else [None]:
        found = played(size, steps_for(name, size, root, count))
        assert [each.state for each in found.members.values()] == [DONE] * size


@pytest.mark.parametrize("name", ["all_reduce", "all_gather", "barrier", "all_to_all"])
def test_nobody_is_through_before_all_have_come(name: str) -> None:
    found = played(3, steps_for(name, 4, None, 16))
    assert [each.state for each in found.members.values()] == [GOING] * 3


def test_who_needs_a_closed_peer_directly_fails_and_the_others_wait() -> None:
    closed = {(1, 2): "gone", (3, 2): "gone", (0, 2): "gone"}
    found = SteppedCollective(lambda *ends: closed.get(ends), lambda one, other: False)
    for member in (0, 1, 3):
        found.add(member, steps_for("all_reduce", 4, None, 16)[member])
        found.run()
    states = {member: each.state for member, each in found.members.items()}
    assert states == {0: GOING, 1: FAILED, 3: FAILED}
    assert found.members[1].why == "gone"


def test_what_a_cut_holds_up_goes_on_when_it_has_healed() -> None:
    cut = {frozenset((0, 1))}
    found = SteppedCollective(lambda *ends: None, lambda *ends: frozenset(ends) in cut)
    for member in (0, 1):
        found.add(member, steps_for("barrier", 2, None, 0)[member])
    found.run()
    assert [each.state for each in found.members.values()] == [GOING, GOING]
    cut.clear()
    found.run()
    assert [each.state for each in found.members.values()] == [DONE, DONE]


def test_one_rank_alone_has_nothing_to_do() -> None:
    assert steps_of("all_reduce", 0, 1, root=None, count=4, width=4) == []


def test_nccl_needs_everybody() -> None:
    peers = {peer for verb, _, peer in steps_with_all(1, 4) if verb in (SEND, RECV)}
    assert peers == {0, 2, 3}
