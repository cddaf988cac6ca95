"""An order in which calls may have happened, from what each rank did by itself."""

from __future__ import annotations

from typing import Any

from phalanx.journal.causal_order import in_causal_order
from phalanx.journal.events import GroupRecord, Met, Posted
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
