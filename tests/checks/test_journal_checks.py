"""Checks at the end of a run are functions of the journal: here it is written by hand."""

from __future__ import annotations

from typing import Any

import pytest

from phalanx.callsite import Mark
from phalanx.checks.group_lifecycle import find_lifecycle_mismatches, find_outsider_calls
from phalanx.checks.leak import FEW, find_leaked_groups
from phalanx.checks.order.crossed_order import find_crossed_order
from phalanx.checks.rank_space import find_rank_spaces
from phalanx.journal.events import GroupDestroyed, GroupMade, GroupRecord, Noted, Posted
from phalanx.journal.writer import JournalWriter
from phalanx.model import Group, Op, Site


class Host:
    profile: str | None = None


class Book:
    """A journal of some ranks, and what they do."""

    def __init__(self, ranks: int = 2) -> None:
        self.writer = JournalWriter(ranks)
        self.time = 0.0
        self.world = self.group("world", default=True)

    def group(self, name: str, **more: Any) -> GroupRecord:
        ranks = tuple(range(len(self.writer.rings)))
        made = self.writer.group(name, ranks)
        for rank in ranks:
            self.writer.add(GroupMade(self.now(), rank, 0, line(1), made, rank, **more))
        return made

    def now(self) -> float:
        self.time += 1.0
        return self.time

    def call(self, rank: int, number: int, group: GroupRecord | None = None) -> None:
        ring, record = self.writer.rings[rank], group or self.world
        event = (self.now(), rank, 0, line(2), record, "barrier", ring.posted, rank, number)
        ring.calls.append(Posted(*event))
        ring.posted += 1

    def destroy(self, rank: int, group: GroupRecord, calls: int = 0, at: int = 3) -> None:
        default = group is self.world
        self.writer.add(
            GroupDestroyed(
                self.now(), rank, 0, line(at), group, default, self.world, calls=calls
            )
        )

    def note(
        self, rank: int, about: str, what: Any, at: Mark | None = None, **more: Any
    ) -> None:
        self.writer.rings[rank].note(Noted(self.now(), rank, 0, at, about, what, **more))

    def find(self, check: Any, profile: str | None = None) -> list[Any]:
        host = Host()
        host.profile = profile
        return list(check(self.writer.reader(), host))


def line(number: int) -> Any:
    return Site("train.py", number, "main")


def test_groups_destroyed_in_opposite_orders() -> None:
    book = Book()
    one, two = book.group("group 1"), book.group("group 2")
    for rank, groups in ((0, (one, two)), (1, (two, one))):
        for group in groups:
            book.destroy(rank, group)
    (found,) = book.find(find_lifecycle_mismatches)
    assert found.headline == (
        'ranks 0 and 1 destroyed "group 1" and "group 2" in opposite orders'
    )


def test_what_goes_with_the_world_has_no_order() -> None:
    book = Book()
    one, two = book.group("group 1"), book.group("group 2")
    for rank, groups in ((0, (one, two)), (1, (two, one))):
        for group in (*groups, book.world):
            book.destroy(rank, group, at=7)
    assert book.find(find_lifecycle_mismatches) == []


def test_a_group_that_a_member_keeps_though_all_went_on() -> None:
    book = Book()
    group = book.group("group 1")
    book.destroy(0, group, calls=1)
    for rank in (0, 1):
        book.call(rank, 0)
    assert book.find(find_lifecycle_mismatches) == []
    for rank in (0, 1):
        book.call(rank, 1)
    (found,) = book.find(find_lifecycle_mismatches)
    assert found.ranks == (1,)
    book.writer.rings[1].rare.clear()
    assert book.find(find_lifecycle_mismatches) == [], "what rank 1 did is forgotten"


def test_many_groups_that_all_destroy() -> None:
    book = Book(ranks=4)
    for _ in range(40):
        group = book.group("group 1")
        for rank in range(4):
            book.destroy(rank, group)
    assert book.find(find_lifecycle_mismatches) == []


@pytest.mark.parametrize("profile", [None, "nccl"])
def test_a_world_that_some_leave(profile: str | None) -> None:
    book = Book()
    assert len(book.find(find_leaked_groups, profile)) == (profile == "nccl")
    book.destroy(0, book.world)
    (found,) = book.find(find_leaked_groups, profile)
    assert found.ranks == (1,)
    book.destroy(1, book.world)
    assert book.find(find_leaked_groups, profile) == []


def test_a_line_whose_groups_are_lost() -> None:
    book = Book()
    book.note(0, "leak", ((0, 1), 5, FEW, True, False, "gloo"), line(4))
    (found,) = book.find(find_leaked_groups)
    assert found.headline.startswith("train.py:4 made a group of the same ranks 5 times")


def test_calls_of_those_outside() -> None:
    book = Book(ranks=4)
    for rank in (3, 2):
        op = Op(rank, "barrier", Group("world", ()), site=line(5))
        book.note(rank, "invalid-call", op, line(5))
    (found,) = book.find(find_outsider_calls)
    assert found.ranks == (2, 3) and found.blocks[0].op.group.ranks == (0, 1, 2, 3)


def loop(word: str) -> tuple[Any, ...]:
    return ((mark(), (word,), (("name", word),), False, ("name",)),)


def mark() -> Mark:
    return (mark.__code__, 0)


@pytest.mark.parametrize("crossed", [False, True])
def test_words_that_ranks_go_through_in_other_orders(crossed: bool) -> None:
    book = Book()
    for rank in (0, 1):
        words = ["w", "b"] if rank or not crossed else ["b", "w"]
        for number, word in enumerate(words):
            what = (number, ("all_reduce", 0, None), loop(word), None)
            book.note(rank, "crossed-order", what, mark(), group=book.world)
    assert len(book.find(find_crossed_order)) == crossed


def test_orders_are_compared_where_all_have_notes() -> None:
    book = Book()
    for rank, numbers in ((0, (2, 3)), (1, (0, 1, 2, 3))):
        for number in numbers:
            what = (number, ("all_reduce", 0, None), loop("wxyz"[number]), None)
            book.note(rank, "crossed-order", what, mark(), group=book.world)
    assert book.find(find_crossed_order) == []


def test_one_root_in_two_spaces() -> None:
    book = Book(ranks=4)
    group = book.writer.group("group 1", (1, 2, 3))
    for rank in group.ranks:
        for space, name, at in (("group", "broadcast", 5), ("world", "reduce", 6)):
            op = Op(rank, name, group.as_group(), 0, site=line(at))
            book.note(rank, "rank-space", (space, 1, op), None, group=group)
    (found,) = book.find(find_rank_spaces)
    assert [block.ranks for block in found.blocks] == [(1, 2, 3), (1, 2, 3)]
