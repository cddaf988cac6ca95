"""Faults as data: what goes wrong in a run, and at which point. No torch.

A *plan* is a tuple of faults: the option `faults` of every door. It is written by hand, read
from text (`parse_faults`) or drawn from a seed (`draw_plan`). `str(fault)` is what one writes
in Python, and `parse_faults` reads it back. The engines make the faults happen; here is only
what they are.

>>> from phalanx.faults import call, kill, parse_faults
>>> plan = (kill(rank=2, at=call(17)),)
>>> print(plan[0])
kill(rank=2, at=call(17))
>>> parse_faults("kill(rank=2, at=call(17))") == plan
True
"""

from phalanx.faults.fault_drawing import RunShape, draw_plan, read_kinds
from phalanx.faults.fault_points import (
    CallPoint,
    LinePoint,
    MomentPoint,
    Point,
    StorePoint,
    call,
    line,
    moment,
    store,
)
from phalanx.faults.fault_text import check_plan, faults_text, parse_faults, read_plan
from phalanx.faults.fault_values import (
    FAULTS,
    Corrupt,
    Delay,
    DropStore,
    Fault,
    Kill,
    Partition,
    Plan,
    Raise,
    Stop,
    corrupt,
    delay,
    drop_store,
    kill,
    partition,
    raise_,
    stop,
)

__all__ = [
    "FAULTS",
    "CallPoint",
    "Corrupt",
    "Delay",
    "DropStore",
    "Fault",
    "Kill",
    "LinePoint",
    "MomentPoint",
    "Partition",
    "Plan",
    "Point",
    "Raise",
    "RunShape",
    "Stop",
    "StorePoint",
    "call",
    "check_plan",
    "corrupt",
    "delay",
    "draw_plan",
    "drop_store",
    "faults_text",
    "kill",
    "line",
    "moment",
    "parse_faults",
    "partition",
    "raise_",
    "read_kinds",
    "read_plan",
    "stop",
    "store",
]
