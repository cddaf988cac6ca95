"""Reads that come too early and counts that prove something: values made by hand."""

from __future__ import annotations

from typing import Any

from phalanx.checks.early_read import Change, EarlyReads, Read
from phalanx.checks.store_race import MOST_KEYS, StoreWatch
from phalanx.journal.events import StoreRead, StoreWritten
from phalanx.matching.happens_before import MOST_ADDED, Addition, Count, Ordering
from phalanx.model import Finding, Group, Op, Site

WORLD = Group("world", (0, 1, 2))
WRITES, READS = Site("progress.py", 4, "report"), Site("progress.py", 9, "collect")


def change(rank: int, number: int, name: str = "set") -> Change:
    return Change(Op(rank, name, WORLD, key="k", site=WRITES), number)


def read(rank: int, number: int, use: str = "used") -> Read:
    return Read(Op(rank, "get", WORLD, key="k", site=READS), number, use)


def found(reads: EarlyReads, last: int = 0) -> Finding | None:
    return reads.finding(lambda rank, op: last)


def test_a_read_before_a_change_that_nothing_orders() -> None:
    for known, is_race in (({}, True), ({0: 1}, False)):
        reads = EarlyReads()
        reads.read(read(0, 1), {})
        reads.change(change(1, 1), known)
        assert (found(reads) is not None) == is_race


def test_a_read_behind_a_change_that_nothing_orders() -> None:
    for known, is_race in (({}, True), ({1: 1}, False)):
        reads = EarlyReads()
        reads.change(change(1, 1), {})
        reads.read(read(0, 1), known)
        assert (found(reads) is not None) == is_race


def test_what_becomes_of_the_value_decides() -> None:
    for use, last, is_race in (
        ("used", 0, True),
        ("computed", 0, False),
        ("computed", 3, True),
        ("computed", 9, False),
        ("shown", 3, False),
        ("dropped", 3, False),
        ("polled", 3, False),
        ("", 3, False),
    ):
        reads = EarlyReads()
        reads.change(change(1, 1), {})
        reads.read(read(0, 5, use), {})
        assert (found(reads, last) is not None) == is_race, (use, last)


def test_who_reads_again_and_again_watches_unless_it_adds_as_well() -> None:
    for name, own, is_race in (("set", 0, False), ("add", 0, False), ("add", 2, True)):
        reads = EarlyReads()
        reads.change(change(1, 1, name), {})
        for number in (3, 4):
            reads.read(read(0, number), {})
        assert (found(reads, own) is not None) == is_race, (name, own)


def test_a_group_that_one_has_made_may_have_waited_for_the_other() -> None:
    for made, is_race in ((1, False), (2, True), (3, False)):
        reads = EarlyReads()
        reads.change(Change(change(1, 1).op, 1, made), {})
        reads.read(Read(read(0, 1).op, 1, "used", 2), {})
        assert (found(reads) is not None) == is_race


def test_keys_that_several_ranks_set_are_another_matter() -> None:
    reads = EarlyReads()
    reads.read(read(0, 1), {})
    reads.change(change(1, 1), {})
    reads.change(change(2, 1), {})
    assert found(reads) is None


def test_the_finding_says_what_to_do() -> None:
    reads = EarlyReads()
    reads.change(change(1, 1, "add"), {})
    reads.read(read(0, 1), {})
    finding = found(reads)
    assert finding is not None and finding.ranks == (0, 1)
    assert finding.headline == (
        'rank 0 may read "k" (progress.py:9) before rank 1 adds to it (progress.py:4): '
        "nothing orders the two"
    )
    assert finding.hint is not None and "put a barrier between progress.py:4" in finding.hint


# -- counts ------------------------------------------------------------------------------------


def count_of(*ranks: int, amount: int = 1) -> Count:
    count = Count()
    numbers = dict.fromkeys(ranks, 0)
    for rank in ranks:
        numbers[rank] += 1
        count.add(Addition(rank, numbers[rank], amount, {rank: numbers[rank]}))
    return count


def test_a_full_count_tells_of_everybody() -> None:
    assert count_of(0, 1, 2).needed(3) == {0: 1, 1: 1, 2: 1}
    assert count_of(0, 1, 2, amount=10).needed(21) == {0: 1, 1: 1, 2: 1}


def test_a_count_that_others_can_have_made_up_tells_of_nobody() -> None:
    assert count_of(0, 1, 2).needed(2) == {}
    assert count_of(0, 1, 0, 1).needed(2) == {}
    assert count_of(0, 1, 0, 1).needed(3) == {0: 1, 1: 1}
    assert count_of(0, 1).needed(0) == {}


def test_who_knew_of_an_add_does_not_count_without_it() -> None:
    count = Count()
    count.add(Addition(0, 1, 1, {0: 1}))
    count.add(Addition(1, 1, 1, {0: 1, 1: 1}))
    assert count.needed(1) == {0: 1}


def test_counts_that_go_down_or_are_long_tell_of_everybody() -> None:
    down = count_of(0, 1)
    down.add(Addition(2, 1, -1, {2: 1}))
    assert not down.is_plain and down.needed(1) == {0: 1, 1: 1, 2: 1}
    long = count_of(*[0, 1] * MOST_ADDED)
    assert not long.is_plain and long.needed(1) == {0: MOST_ADDED, 1: MOST_ADDED}


# -- whole runs --------------------------------------------------------------------------------


def watched(*events: tuple[Any, ...], key: str = "k") -> list[str]:
    """(rank, "get" or "add" or "set" or "wait", key, more) in order; what is found at the
    end."""
    watch = StoreWatch(3, Ordering(3))
    told: list[Finding] = []
    for time, (rank, name, key, more) in enumerate(events):
        line = Site("store.py", {"set": 1, "add": 2, "get": 3, "wait": 4}[name], "main")
        kind: Any = StoreRead if name in ("get", "wait") else StoreWritten
        told += watch.add(kind(float(time), rank, 0, line, 0, name, key, key, **more))
    return [each.headline for each in (*told, *watch.findings())]


def barrier(rank: int, name: str, limit: int) -> list[tuple[Any, ...]]:
    add = (rank, "add", name, {"amount": 1, "proves": 0, "use": "dropped"})
    return [add, (rank, "get", name, {"proves": limit, "use": "polled"})]


def rounds(names: list[str], limits: list[int]) -> list[str]:
    """Rank 0 sets a plan in front of each barrier but the last, rank 1 reads it behind."""
    events: list[tuple[Any, ...]] = []
    for step, (name, limit) in enumerate(zip(names, limits, strict=True)):
        if step % 2 == 0:
            events.append((0, "set", "plan", {"digest": step}))
        adds, gets = zip(*(barrier(rank, name, limit) for rank in (0, 1)), strict=True)
        events += [*adds, *gets]
        if step % 2 == 0:
            events.append((1, "get", "plan", {"use": "shown"}))
    return watched(*events)


def test_a_barrier_orders_if_its_count_needs_all() -> None:
    assert rounds(["a", "b", "c", "d"], [2, 2, 2, 2]) == []
    assert rounds(["a", "a", "a", "a"], [2, 4, 6, 8]) == []


def test_a_barrier_that_is_passed_by_old_adds_orders_nothing() -> None:
    (text,) = rounds(["a", "a", "a", "a"], [2, 2, 2, 2])
    assert text.startswith('rank 1 may read "plan"')


def test_a_wait_proves_the_first_write_only() -> None:
    first = [(0, "set", "go", {"digest": 1}), (1, "wait", "go", {})]
    assert watched(*first) == []
    again = watched(*first, *first)
    assert len(again) == 1 and 'may read "go"' in again[0]


def test_keys_beyond_those_that_are_followed_still_order() -> None:
    many = [(2, "set", f"k{n}", {"digest": n}) for n in range(MOST_KEYS - 1)]
    turn = [
        (0, "set", "plan", {"digest": 1}),
        *((0, "set", f"go {n}", {"digest": 1}) for n in range(2)),
        (1, "get", "go 1", {"use": "shown"}),
        (1, "get", "plan", {"use": "shown"}),
        (1, "set", "done", {"digest": 1}),
        (0, "get", "done", {"use": "shown"}),
        (0, "set", "plan", {"digest": 2}),
        (0, "set", "go 2", {"digest": 1}),
        (1, "get", "go 2", {"use": "shown"}),
        (1, "get", "plan", {"use": "shown"}),
    ]
    assert watched(*many, *turn) == []
