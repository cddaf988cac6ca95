"""What has happened by a fault, in the words of reports."""

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
    """One line; `place` is the program's, where the rank was.

    >>> from phalanx.faults import parse_faults
    >>> say_what_happened(parse_faults("kill(rank=2, at=call(17))")[0], "train.py:40")
    'rank 2 was killed at its call 17, train.py:40'
    """
    where = _where(fault.point)
    at_line = isinstance(fault.point, LinePoint)
    return _what(fault) + where + (f", {place}" if place and not at_line else "")


def _what(fault: Fault) -> str:
    if isinstance(fault, Kill):
        return f"rank {fault.rank} was killed"
    if isinstance(fault, Delay):
        return f"rank {fault.rank} was delayed by {fault.seconds:g} s"
    if isinstance(fault, Stop):
        return f"rank {fault.rank} was stopped for {fault.seconds:g} s"
    if isinstance(fault, Raise):
        return f"{fault.error} was raised in rank {fault.rank}"
    if isinstance(fault, Corrupt):
        bits = "1 bit" if fault.bits == 1 else f"{fault.bits} bits"
        return f"{bits} of the {fault.part} of rank {fault.rank} flipped"
    if isinstance(fault, Partition):
        start, end = fault.during
        until = "" if end is None else f" to {end:g} s"
        sides = f"{rank_list(fault.one)} and {rank_list(fault.other)}"
        return f"nothing passed between {sides} from {start:g} s{until}"
    assert isinstance(fault, DropStore)
    how_long = "" if fault.seconds is None else f" for {fault.seconds:g} s"
    return f"the store lost its server{how_long}"


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
