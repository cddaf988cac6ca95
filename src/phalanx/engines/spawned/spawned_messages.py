"""What the launcher and the processes of a script that starts its ranks say to each other.

Each connection begins with one line of JSON that proves who is there; the launcher answers one
that joins a world with a line that says where its referee is. Used by `spawning_launcher.py` at
one end, by `spawned_script.py` and `spawned_rank.py` at the other.
"""

from __future__ import annotations

import hmac
import json
import os
import socket
from contextlib import suppress
from dataclasses import asdict, dataclass
from typing import Any, Literal

from phalanx.kinds import is_on, parse_checks

VARIABLE = "PHALANX_SPAWNED"
LONGEST = 4096
PATIENCE = 30.0
"""Seconds for an answer of the launcher, which never blocks."""

How = Literal["end", "exit", "error", "ranks"]
"""How the script ended: at its end, by `sys.exit`, by an error of its own, or by torch's error
about a rank."""


@dataclass(frozen=True)
class SpawnBase:
    """Where the launcher listens, and what is checked. The script has it from its environment,
    and the processes that it starts from the script."""

    address: str
    token: str
    checks: str

    @property
    def checked(self) -> bool:
        return is_on(self.checks)

    @property
    def kinds(self) -> frozenset[str]:
        return parse_checks(self.checks)

    def export(self) -> str:
        return json.dumps(asdict(self))


def read_base() -> SpawnBase:
    """In the script's process. What it starts by other means has no business with it."""
    return SpawnBase(**json.loads(os.environ.pop(VARIABLE)))


@dataclass(frozen=True)
class Joins:
    """A process is in `init_process_group`, as this rank of a world that meets at `place`."""

    rank: int
    size: int
    place: str


@dataclass(frozen=True)
class ScriptEnd:
    """The script has ended; `text` is what was not printed yet."""

    how: How
    text: str = ""


@dataclass(frozen=True)
class RefereeAddress:
    """Where the referee of a world listens."""

    port: int
    token: str


def listen(address: str) -> socket.socket:
    end = socket.socket(socket.AF_UNIX)
    end.bind("\0" + address)
    end.listen(128)
    return end


def connect(base: SpawnBase, message: Joins | ScriptEnd) -> socket.socket:
    """A connection to the launcher, after the first line. OSError if it is gone."""
    end = socket.socket(socket.AF_UNIX)
    end.settimeout(PATIENCE)
    end.connect("\0" + base.address)
    line = {"token": base.token, "kind": type(message).__name__, "body": asdict(message)}
    end.sendall(json.dumps(line).encode() + b"\n")
    return end


def read_hello(line: bytes, token: str) -> Joins | ScriptEnd | None:
    """What a first line says; None if it cannot be read, or does not know the token."""
    with suppress(ValueError, TypeError, KeyError, AttributeError, RecursionError):
        said: Any = json.loads(line)
        if not hmac.compare_digest(str(said["token"]).encode(), token.encode()):
            return None
        if said["kind"] == ScriptEnd.__name__:
            return ScriptEnd(how=said["body"]["how"], text=str(said["body"]["text"]))
        body = said["body"]
        return Joins(int(body["rank"]), int(body["size"]), str(body["place"]))
    return None


def send_line(end: socket.socket, message: RefereeAddress) -> None:
    with suppress(OSError):  # it has ended meanwhile
        end.sendall(json.dumps(asdict(message)).encode() + b"\n")


def read_referee(end: socket.socket) -> RefereeAddress:
    """The launcher's answer. OSError if it is gone."""
    data = b""
    while not data.endswith(b"\n"):
        more = end.recv(LONGEST)
        if not more:
            raise ConnectionResetError("the launcher has ended")
        data += more
    return RefereeAddress(**json.loads(data))
