"""Messages that a rank waits for and that another, which has ended, did not exchange as often.

Used by the referee for deadlocks, such as a pipeline with another number of microbatches on
each side. It speaks only of messages between the two, each side from one line, all of which the
journal has.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from phalanx.journal.events import GroupRecord, Posted
from phalanx.journal.reader import Journal
from phalanx.matching.uneven.call_sites import key_of
from phalanx.model import Deadlock, Group, LineCount, Op, Uneven

_OTHER = {"send": "recv", "recv": "send"}


def with_uneven_messages(
    deadlock: Deadlock, journal: Journal, records: Mapping[Group, GroupRecord]
) -> Deadlock:
    """The deadlock, with how many messages a rank that waits and one that has ended exchanged,
    if these differ."""
    if deadlock.cause != "finished-peer" or deadlock.uneven or deadlock.hint is not None:
        return deadlock
    if not journal.has_all_calls():
        return deadlock
    for block in deadlock.blocks:
        wait = block.view.wait
        if wait is None or block.view.status != "waiting" or len(block.ranks) != 1:
            continue
        record = records.get(wait.op.group)
        if record is not None and wait.op.peer in deadlock.missed and not wait.near:
            found = _find(wait.op, journal, record)
            if found is not None:
                return replace(deadlock, uneven=found)
    return deadlock


def _find(op: Op, journal: Journal, record: GroupRecord) -> Uneven | None:
    assert op.peer is not None
    if op.name not in _OTHER:
        return None
    mine = _exchanged(journal, op, record, op.rank, op.peer, op.name)
    theirs = _exchanged(journal, op, record, op.peer, op.rank, _OTHER[op.name])
    if not theirs or len(mine) <= len(theirs):
        return None
    counts = (_line_count(mine), _line_count(theirs))
    if counts[0] is None or counts[1] is None:
        return None
    return Uneven(op.group, ((counts[0], counts[1]),), went=(((op.peer,), None),))


def _exchanged(
    journal: Journal, op: Op, record: GroupRecord, rank: int, peer: int, name: str
) -> list[Posted]:
    return [
        call
        for call in journal.calls(rank)
        if call.group is record
        and call.name == name
        and call.tag == op.tag
        and call.peer is not None
        and record.ranks[call.peer] == peer
    ]


def _line_count(calls: list[Posted]) -> LineCount | None:
    sites = [call.site for call in calls]
    first = sites[0]
    if first is None or any(each is None or key_of(each) != key_of(first) for each in sites):
        return None
    return LineCount((calls[0].rank,), first, len(calls))
