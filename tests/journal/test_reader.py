"""Reading: in order of time, by rank, group and kind."""

from __future__ import annotations

import pickle
from typing import Any

import pytest

from phalanx.journal.events import GroupRecord, Met, Posted, RankEnded
from phalanx.journal.reader import Journal
from phalanx.journal.writer import JournalWriter


def written() -> tuple[Journal, GroupRecord, GroupRecord]:
    writer = JournalWriter(2)
    world, part = writer.group("world", (0, 1)), writer.group("group 1", (1,))

    def post(time: float, rank: int, group: GroupRecord, **more: Any) -> None:
        ring = writer.rings[rank]
        ring.calls.append(Posted(time, rank, 0, None, group, "barrier", ring.posted, 0, **more))
        ring.posted += 1

    post(1.0, 1, world, number=0)
    post(4.0, 1, part, number=0)
    post(2.0, 0, world, number=0)
    writer.rings[0].flow.append(Met(3.0, 0, 0, None, world, 0))
    writer.rings[0].flowed += 1
    writer.add(RankEnded(5.0, 1, 0, None, "finished"))
    return writer.reader(), world, part


def test_all_ranks_in_order_of_time() -> None:
    journal, _, _ = written()
    assert [event.time for event in journal] == [1.0, 2.0, 3.0, 4.0, 5.0]
    assert len(journal) == 5
    assert list(journal) == list(journal), "it can be read again"
    assert repr(journal) == "<journal of 2 ranks, 5 events, 0 dropped>"
    assert journal.version == 1


def test_by_rank_group_and_kind() -> None:
    journal, world, part = written()
    assert [event.time for event in journal.filter(rank=1)] == [1.0, 4.0, 5.0]
    assert [event.time for event in journal.filter(group="group 1")] == [4.0]
    assert [event.time for event in journal.filter(group=part)] == [4.0]
    assert [event.time for event in journal.filter(group=world.number)] == [1.0, 2.0, 3.0]
    assert [event.kind for event in journal.filter(kind="met")] == ["met"]
    both = journal.filter(kind=("posted", "rank-ended"), rank=1).filter(group=world)
    assert [event.time for event in both] == [1.0]


def test_what_is_not_there_is_refused() -> None:
    journal, _, _ = written()
    with pytest.raises(ValueError, match="rank=2: this journal has ranks 0 to 1"):
        journal.filter(rank=2)
    with pytest.raises(ValueError, match="kind='post': choose among posted, met"):
        journal.filter(kind="post")


def test_last_calls() -> None:
    journal, world, part = written()
    assert [call.group for call in journal.calls(1)] == [world, part]
    assert [call.group for call in journal.last_calls(1, 1)] == [part]
    assert [call.call for call in journal.last_calls(1, 9)] == [(1, 0), (1, 1)]
    assert journal.has_all_calls()
    assert [event.rank for event in journal.rare(RankEnded)] == [1]


def test_a_filter_travels_with_its_journal() -> None:
    journal, world, part = written()
    for chosen in (
        journal.filter(rank=1),
        journal.filter(kind="posted").filter(group=world),
        journal.filter(group=part.number, rank=1),
    ):
        copy = pickle.loads(pickle.dumps(chosen))
        assert [event.time for event in copy] == [event.time for event in chosen]
        assert (len(copy), copy.dropped) == (len(chosen), 0)


def test_a_group_of_another_world_gets_a_number_of_this_one() -> None:
    former, later = JournalWriter(1), JournalWriter(1)
    former.group("world", (0,))
    group = former.group("group 1", (0,))
    later.keep(group)
    assert later.reader().groups == (group,)
    assert group.number == 0


def test_a_group_has_the_same_number_in_all_runs_of_a_world() -> None:
    former = JournalWriter(1)
    world, gone, kept = (former.group(name, (0,)) for name in ("world", "1", "2"))
    former.end(gone)
    later = JournalWriter(1, after=former)
    for group in (world, kept):
        later.keep(group)
    new = later.group("3", (0,))
    assert [group.number for group in (world, gone, kept, new)] == [0, 1, 2, 3]
    assert later.reader().groups == (world, kept, new)
