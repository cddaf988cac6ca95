"""What the launcher and the processes below it on its machine say to each other.

Used by `torchrun_launcher.py` at one end, by `agent.py` and `torchrun_rank.py` at the other.
They find the launcher by an address in the environment. A connection begins with one line of
JSON that proves who is there; on those for control, messages follow as
`serialization.socket_wire` sends them.
"""

from __future__ import annotations

import json
import os
import socket
from dataclasses import asdict, dataclass, field
from typing import Any, Literal, get_args

from phalanx.kinds import is_on, parse_checks

VARIABLE = "PHALANX_TORCHRUN"

Stream = Literal["control", "out", "err", "agent", "referee"]


@dataclass(frozen=True)
class Base:
    """Where the launcher listens, and what it wants done; travels in the environment."""

    address: str
    token: str
    logs: str
    """A folder for what torch's launcher would leave behind. Whoever ends last removes it."""
    checks: str = "all"
    """As in `Options`."""
    own_output: bool = True
    key: str = ""
    """What the user gave to all machines; empty for nothing."""
    timed: bool = False
    """Whether the run ends when ranks stand still."""
    meeting: str = ""
    """Names the meeting of the machines that these ranks came out of. Machines count restarts
    each for itself, and not those because a machine came or went. Empty where it is unknown.
    """

    @property
    def checked(self) -> bool:
        return is_on(self.checks)

    @property
    def kinds(self) -> frozenset[str]:
        return parse_checks(self.checks)

    def export(self) -> str:
        return json.dumps(asdict(self))


def read_base() -> Base:
    """In a process below the launcher. What the program starts has no business with it."""
    return Base(**json.loads(os.environ.pop(VARIABLE)))


@dataclass(frozen=True)
class Hello:
    """The first line of a connection: who, and what for."""

    token: str
    stream: Stream
    pid: int
    rank: int = -1
    ranks: int = 0
    local_rank: int = 0
    local_ranks: int = 1
    generation: int = 0
    meeting: str = ""


def read_hello(line: bytes) -> Hello | None:
    """None for whatever is none: strangers can call, too."""
    try:
        given: dict[str, Any] = json.loads(line)
        hello = Hello(**given)
    except (ValueError, TypeError, RecursionError):
        return None
    texts = {"token", "stream", "meeting"}
    is_whole = all(type(v) is (str if k in texts else int) for k, v in vars(hello).items())
    return hello if is_whole and hello.stream in get_args(Stream) else None


def connect(base: Base, hello: Hello) -> socket.socket:
    """A connection to the launcher, after the first line."""
    end = socket.socket(socket.AF_UNIX)
    end.connect(_path(base.address))
    end.sendall(json.dumps(asdict(hello)).encode() + b"\n")
    return end


def listen(address: str) -> socket.socket:
    end = socket.socket(socket.AF_UNIX)
    end.bind(_path(address))
    end.listen(128)
    return end


def _path(address: str) -> str:
    """Addresses that begin with @ are names in no folder: nothing is left of them."""
    return "\0" + address[1:] if address.startswith("@") else address


@dataclass(frozen=True)
class OpenReferee:
    """From ranks of rank 0's machine: the checks of this world are wanted, over a connection of
    the stream `referee`. Ranks of other machines reach them at `host`, an address of this
    machine, or empty for all of them; None if there are no other machines."""

    host: str | None
    ranks: int


@dataclass(frozen=True)
class RefereeIsOpen:
    """The answer, with what ranks of other machines may read."""

    offer: str


@dataclass(frozen=True)
class Unchecked:
    """The rank runs without checks, and why."""

    rank: int
    reason: str


@dataclass(frozen=True)
class Done:
    """The script came to its end; whether it went about it as a distributed program."""

    rank: int
    initialised: bool


@dataclass(frozen=True)
class Found:
    """A check ended the rank: the name of the error and the report."""

    rank: int
    name: str
    text: str


@dataclass(frozen=True)
class Stopped:
    """The rank was stopped because another one had failed."""

    rank: int


@dataclass(frozen=True)
class Exits:
    """From the agent: the exit codes of ranks that failed."""

    codes: dict[int, int] = field(default_factory=dict)
