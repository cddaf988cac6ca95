"""Looks at those who wait: who is steady, when a set is judged, and that it is said once."""

from __future__ import annotations

from collections.abc import Mapping

from phalanx.matching.partial_look import SETTLED, PartialLook, Standing, WaitPosition
from phalanx.matching.waitgraph import Node

HERE = object()
A, B, FREE = "a", "b", "free"


class Ranks:
    """Two that wait for each other while a third works; `asked` counts judgements."""

    def __init__(self, *, unseen: bool = False, blocked: str = A) -> None:
        self.unseen = unseen
        self.blocked = blocked
        self.asked = 0
        self.looks: PartialLook[str] = PartialLook()

    def stand(self, steady: Mapping[str, WaitPosition]) -> Standing[str]:
        self.asked += 1
        nodes = [
            Node(0, needs=(1,), free=A not in steady),
            Node(1, needs=(0,), free=B not in steady),
            Node(2, free=True),
        ]
        return Standing((A, B, FREE), nodes, frozenset({self.blocked}), self.unseen)

    def look(self, a: int, b: int, *, ended: int = 0, now: float = 0.0) -> set[str]:
        seen = {A: (a, HERE), B: (b, HERE)}
        return set(self.looks.look(seen, ended, now, self.stand))


def test_a_set_is_found_at_the_second_look_and_said_once() -> None:
    ranks = Ranks()
    assert ranks.look(1, 1) == set()
    assert ranks.look(1, 1) == {A, B}
    assert ranks.look(1, 1) == set() and ranks.asked == 1


def test_whoever_has_moved_meanwhile_is_free() -> None:
    ranks = Ranks()
    ranks.look(1, 1)
    assert ranks.look(1, 2) == set()
    assert ranks.look(1, 2) == {A, B}


def test_another_object_is_another_position() -> None:
    ranks = Ranks()
    ranks.look(1, 1)
    moved = {A: (1, object()), B: (1, HERE)}
    assert ranks.looks.look(moved, 0, 0.0, ranks.stand) == {}


def test_the_same_set_is_judged_again_when_somebody_has_ended() -> None:
    ranks = Ranks(blocked=FREE)
    ranks.look(1, 1)
    assert ranks.look(1, 1) == set() == ranks.look(1, 1) and ranks.asked == 1
    ranks.look(1, 1, ended=1)
    assert ranks.asked == 2


def test_what_rests_on_threads_out_of_sight_has_to_settle() -> None:
    ranks = Ranks(unseen=True)
    ranks.look(1, 1)
    assert ranks.look(1, 1, now=1.0) == set()
    assert ranks.look(1, 1, now=1.0 + SETTLED / 2) == set()
    assert ranks.look(1, 1, now=1.0 + SETTLED) == {A, B}


def test_nothing_is_lost_where_the_host_cannot_say() -> None:
    ranks = Ranks()
    ranks.look(1, 1)
    assert ranks.looks.look({A: (1, HERE), B: (1, HERE)}, 0, 0.0, lambda steady: None) == {}
    assert ranks.look(1, 1) == {A, B}
