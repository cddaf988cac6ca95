"""A fault in one line: what happened by it in a run, or what a plan says will happen."""

from __future__ import annotations

from phalanx.faults.fault_points import CallPoint, LinePoint, MomentPoint, Point, StorePoint
from phalanx.faults.fault_values import (
    Corrupt,
    Delay,
    DropStore,
    Fault,
    Kill,
    Partition,
    Raise,
    Stop,
)
from phalanx.model import rank_list


def say_what_happened(fault: Fault, place: str = "") -> str:
    """In the words of reports; `place` is the program's line, where the rank was.

    >>> from phalanx.faults import parse_faults
    >>> say_what_happened(parse_faults("kill(rank=2, at=call(17))")[0], "train.py:40")
    'rank 2 was killed at its call 17, train.py:40'
    """
    return _say(fault, place, happened=True)


def say_what_happens(fault: Fault, place: str = "") -> str:
    """In the words of a story.

    >>> from phalanx.faults import parse_faults
    >>> say_what_happens(parse_faults("drop_store(rank=0, at=store(3))")[0])
    'the store loses its server for good when rank 0 is at its store operation 3'
    """
    return _say(fault, place, happened=False)


def _say(fault: Fault, place: str, *, happened: bool) -> str:
    known = not place or isinstance(fault.point, LinePoint)
    return _what(fault, happened) + _where(fault.point) + ("" if known else f", {place}")


def _what(fault: Fault, happened: bool) -> str:
    was = "was" if happened else "is"
    if isinstance(fault, Kill):
        return f"rank {fault.rank} {was} killed"
    if isinstance(fault, Delay):
        return f"rank {fault.rank} {was} delayed by {fault.seconds:g} s"
    if isinstance(fault, Stop):
        return f"rank {fault.rank} {was} stopped for {fault.seconds:g} s"
    if isinstance(fault, Raise):
        return f"{fault.error} {was} raised in rank {fault.rank}"
    if isinstance(fault, Corrupt):
        bits, were = f"{fault.bits} bits", "were" if happened else "are"
        if fault.bits == 1:
            bits, were = "1 bit", was
        return f"{bits} of the {fault.part} of rank {fault.rank} {were} flipped"
    if isinstance(fault, Partition):
        start, end = fault.during
        until = "on for good" if end is None else f"to {end:g} s"
        sides = f"{rank_list(fault.one)} and {rank_list(fault.other)}"
        passes = "passed" if happened else "passes"
        return f"nothing {passes} between {sides} from {start:g} s {until}"
    assert isinstance(fault, DropStore)
    how_long = "for good" if fault.seconds is None else f"for {fault.seconds:g} s"
    who = "" if fault.rank is None else f" when rank {fault.rank} {was}"
    return f"the store {'lost' if happened else 'loses'} its server {how_long}{who}"


def _where(point: Point | None) -> str:
    if isinstance(point, CallPoint):
        return f" at its call {point.n}"
    if isinstance(point, StorePoint):
        return f" at its store operation {point.n}"
    if isinstance(point, MomentPoint):
        return f" after {point.seconds:g} s"
    if isinstance(point, LinePoint):
        return f" at {point.place}" + (f", time {point.n}" if point.n > 1 else "")
    return ""
