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
LONGEST = 1 << 16
"""Bytes of a first line."""
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
    """A process is in `init_process_group`, as this rank of a world that meets at `place`.
    `pids` are the process and those that started it, without the script."""

    rank: int
    size: int
    place: str
    pids: tuple[int, ...] = ()


@dataclass(frozen=True)
class ScriptEnd:
    """The script has ended; `text` is what was not printed yet. Of the processes `looked_at` it
    has read an exit code that is not 0."""

    how: How
    text: str = ""
    looked_at: tuple[int, ...] = ()


@dataclass(frozen=True)
class PhaseOver:
    """The script is pytest, and a phase of a test has ended. Answered by `WorldErrors`."""

    passed: bool
    looked_at: tuple[int, ...] = ()


@dataclass(frozen=True)
class WorldErrors:
    """Reports about worlds that the test does not know of: the name of each error, its text."""

    errors: tuple[tuple[str, str], ...] = ()


@dataclass(frozen=True)
class RefereeAddress:
    """Where the referee of a world listens."""

    port: int
    token: str


Hello = Joins | ScriptEnd | PhaseOver


def listen(address: str) -> socket.socket:
    end = socket.socket(socket.AF_UNIX)
    end.bind("\0" + address)
    end.listen(128)
    return end


def connect(base: SpawnBase, message: Hello) -> socket.socket:
    """A connection to the launcher, after the first line. OSError if it is gone."""
    end = socket.socket(socket.AF_UNIX)
    end.settimeout(PATIENCE)
    end.connect("\0" + base.address)
    line = {"token": base.token, "kind": type(message).__name__, "body": asdict(message)}
    end.sendall(json.dumps(line).encode() + b"\n")
    return end


def read_hello(line: bytes, token: str) -> Hello | None:
    """What a first line says; None if it cannot be read, or does not know the token."""
    with suppress(ValueError, TypeError, KeyError, AttributeError, RecursionError):
        said: Any = json.loads(line)
        if not hmac.compare_digest(str(said["token"]).encode(), token.encode()):
            return None
        kind, body = said["kind"], said["body"]
        if kind == ScriptEnd.__name__:
            return ScriptEnd(body["how"], str(body["text"]), _numbers(body["looked_at"]))
        if kind == PhaseOver.__name__:
            return PhaseOver(bool(body["passed"]), _numbers(body["looked_at"]))
        rank, size, place = int(body["rank"]), int(body["size"]), str(body["place"])
        return Joins(rank, size, place, _numbers(body["pids"]))
    return None


def _numbers(given: Any) -> tuple[int, ...]:
    return tuple(map(int, given))


def send_line(end: socket.socket, message: RefereeAddress | WorldErrors) -> None:
    with suppress(OSError):  # it has ended meanwhile
        end.sendall(json.dumps(asdict(message)).encode() + b"\n")


def read_referee(end: socket.socket) -> RefereeAddress:
    """The launcher's answer. OSError if it is gone."""
    return RefereeAddress(**_read_line(end))


def read_errors(end: socket.socket) -> WorldErrors:
    """The same to a test that is over."""
    return WorldErrors(
        tuple((str(name), str(text)) for name, text in _read_line(end)["errors"])
    )


def _read_line(end: socket.socket) -> dict[str, Any]:
    data = b""
    while not data.endswith(b"\n"):
        more = end.recv(LONGEST)
        if not more:
            raise ConnectionResetError("the launcher has ended")
        data += more
    line: dict[str, Any] = json.loads(data)
    return line
