"""What the program and a rank of the processes engine say to each other, as frozen values.

What the ranks of every remote engine say is in `engines/remote/control_messages.py`. Each
message travels as one pickle over the rank's socket. Must never hold what the user's pickles
hold: those travel as bytes inside.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from phalanx.engines.processes.inherited_settings import NOTHING, Inherited
from phalanx.engines.serialization.serialization import Serialized
from phalanx.faults import Plan
from phalanx.options import Options


@dataclass(frozen=True)
class Start:
    """The first message: who the rank is and where it finds things."""

    rank: int
    options: Options
    environ: dict[str, str]
    folder: str
    argv: tuple[str, ...]
    search_path: tuple[str, ...]
    imports: tuple[str, ...]
    store_port: int
    serves_store: bool = True
    """Whether rank 0 serves the store; else the program does."""
    has_fast_path: bool = False
    gpu: int | None = None
    """The device that is the rank's own when its group is made for it."""
    input: dict[str, str] = field(default_factory=dict)
    """Where standard input is, as `terminal.py` says it."""


@dataclass(frozen=True)
class CallRequest:
    """Call a function: the serialized holds (function, arguments, keyword arguments). `fresh`:
    begin as a rank that has just been started. `bare`: whether there is a group or not.
    `lingers`: threads that it starts may go on when it has returned. `inherited`: what ranks
    that begin have from the program. `faults`: what goes wrong in this call."""

    number: int
    serialized: Serialized
    fresh: bool = False
    bare: bool = False
    lingers: bool = False
    inherited: Inherited = NOTHING
    faults: Plan = ()


@dataclass(frozen=True)
class Interrupt:
    """Ctrl-C: interrupt the program as the terminal would."""


@dataclass(frozen=True)
class Heard:
    """Whether the program hears of the interrupt. One that waits in native code says later that
    it does."""

    rank: int
    hears: bool = True


@dataclass(frozen=True)
class End:
    """Leave the groups and end."""


@dataclass(frozen=True)
class Returned:
    """The call's value; `loaded` names modules worth loading before ranks are forked. A rank
    that is `worn` should be replaced: too much of earlier calls lies about in it."""

    rank: int
    serialized: Serialized
    loaded: tuple[str, ...] = ()
    worn: bool = False


@dataclass(frozen=True)
class Unsendable:
    """The call returned something that cannot travel; `text` says what and what to do."""

    rank: int
    text: str


@dataclass(frozen=True)
class Note:
    """What the caller is to know should this rank never come to its end."""

    rank: int
    data: bytes
