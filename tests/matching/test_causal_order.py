"""An order in which calls may have happened, from what each rank did by itself."""

from __future__ import annotations

from typing import Any

from phalanx.journal.causal_order import in_causal_order
from phalanx.journal.events import GroupRecord, Met, Posted, StoreRead, StoreWritten
from phalanx.journal.reader import ClockOffset
from phalanx.journal.writer import JournalWriter

WORLD = GroupRecord(0, "world", (0, 1, 2))


def journal_of(*programs: list[dict[str, Any]], sources: dict[tuple[int, int], int]) -> Any:
    writer = JournalWriter(len(programs), in_order=False)
    for rank, program in enumerate(programs):
        ring = writer.rings[rank]
        for serial, call in enumerate(program):
            ring.calls.append(
                Posted(0.0, rank, 0, None, WORLD, **call, serial=serial, member=rank)
            )
            ring.posted += 1
        for (receiver, serial), source in sources.items():
            if receiver == rank:
                met = Met(0.0, rank, 0, None, WORLD, None, ((rank, serial),), source)
                ring.flow.append(met)
    return writer.reader()


def send(to: int) -> dict[str, Any]:
    return {"name": "send", "peer": to, "tag": 0}


ANY = {"name": "recv", "peer": None, "tag": 0}
BARRIER = {"name": "barrier", "number": 0}


def test_a_message_comes_before_what_its_receiver_does_next() -> None:
    journal = journal_of([ANY, BARRIER], [send(0), BARRIER], [BARRIER], sources={(0, 0): 1})
    events = in_causal_order(journal)
    assert events is not None
    kinds = [(event.kind, event.rank) for event in events]
    sent, met = kinds.index(("posted", 1)), kinds.index(("met", 0))
    assert sent < met < len(kinds) - 1
    assert events[met].calls == ((1, 0), (0, 0))
    assert isinstance(events[-1], Met) and events[-1].number == 0


def test_a_program_that_cannot_be_gone_through_is_left_alone() -> None:
    assert in_causal_order(journal_of([BARRIER], [BARRIER], [BARRIER], sources={})) is None
    stuck = journal_of([ANY, BARRIER], [send(0)], [BARRIER], sources={(0, 0): 1})
    assert in_causal_order(stuck) is None
    assert in_causal_order(journal_of([ANY], [send(0)], [], sources={})) is None


def used(*uses: tuple[float, int, str], calls: tuple[tuple[float, int], ...] = ()) -> Any:
    """The journal of two ranks: uses of one key, by time, rank and name; barriers."""
    writer = JournalWriter(2, in_order=False)
    world = GroupRecord(0, "world", (0, 1))
    for time, rank, name in uses:
        head = (time, rank, 0, None, "store", name, "key", "key")
        made = StoreWritten(*head, 1) if name == "set" else StoreRead(*head)
        writer.rings[rank].flow.append(made)
        writer.rings[rank].flowed += 1
    for time, rank in calls:
        ring = writer.rings[rank]
        ring.calls.append(
            Posted(time, rank, 0, None, world, "barrier", serial=0, member=rank, number=0)
        )
        ring.posted += 1
    return writer.reader()


def shown(events: Any) -> list[tuple[str, int]]:
    return [(event.kind, event.rank) for event in events]


def test_uses_of_a_key_come_in_the_order_of_their_times() -> None:
    journal = used((3.0, 0, "set"), (1.0, 0, "set"), (2.0, 1, "get"))
    events = in_causal_order(journal)
    assert shown(events) == [("store-written", 0), ("store-read", 1), ("store-written", 0)]


def test_uses_of_stores_are_ordered_with_the_calls_of_their_rank() -> None:
    journal = used((3.0, 0, "set"), (4.0, 1, "get"), calls=((2.0, 0), (1.0, 1)))
    events = shown(in_causal_order(journal))
    assert events[-2:] == [("store-written", 0), ("store-read", 1)]
    assert ("met", 1) in events[:3]


def test_stores_say_nothing_where_clocks_differ_or_threads_use_them() -> None:
    journal = used((1.0, 0, "set"), (2.0, 1, "get"))
    journal.clocks = {1: ClockOffset(0.1, 0.01)}
    assert in_causal_order(journal) is None
    journal = used((1.0, 0, "set"))
    ring = journal._rings[0]
    ring.flow[0] = ring.flow[0]._replace(thread=7)
    assert in_causal_order(journal) is None


def test_stores_say_nothing_where_some_of_it_is_forgotten() -> None:
    journal = used((1.0, 0, "set"), (2.0, 1, "get"))
    journal._rings[0].flowed += 1
    assert journal.store_uses() is None and in_causal_order(journal) is None
