"""Ask runs of this machine what their ranks do: the other side of `look_door.py`.

Used by `phalanx look`. What cannot be asked is a `UsageError` that says why: no such process,
another user's, no run in it. Nothing that a run says is trusted: text is cleaned. Must never
import torch.
"""

from __future__ import annotations

import json
import os
import socket
import time
from dataclasses import dataclass
from typing import Any

from phalanx.engines.look.look_address import (
    BRIEFLY,
    VERSION,
    WITH_STACKS,
    LookAddress,
    find_addresses,
    is_available,
    peer_of,
)
from phalanx.errors import UsageError
from phalanx.report.live.live_rows import LiveRow, plain, rows_from_data
from phalanx.shown.secret_words import fold_secrets

OPENS = 1.0
"""Seconds within which a run that has just begun can be asked."""
ANSWERS = 8.0
MOST_BYTES = 1 << 24
MOST_ANCESTORS = 64
_BETWEEN = 0.05


@dataclass(frozen=True)
class SeenRun:
    """What a run said: its process, the engine, how many ranks, for how long, and its rows."""

    process: int
    command: str
    engine: str
    ranks: int
    seconds: float
    rows: tuple[LiveRow, ...]


def look_at(process: int) -> list[SeenRun]:
    """The runs of a process, or, if it is a rank's, of the one that started it. Blocks until
    they have answered. Raises `UsageError`."""
    _check(process)
    until = time.monotonic() + OPENS
    while not (found := _addresses_of(process)):
        if time.monotonic() > until:
            raise UsageError(_nothing_in(process))
        time.sleep(_BETWEEN)
    seen = [_ask(address, WITH_STACKS) for address in found]
    runs = [run for run in seen if run is not None]
    if not runs:
        raise UsageError(
            f"the run of process {found[0].process} has just ended, or does not answer"
        )
    return runs


def list_runs() -> list[SeenRun]:
    """Those of this user; of all users for root. Without those that do not answer."""
    _check_system()
    seen = []
    for address in find_addresses():
        if os.geteuid() in (0, address.user):
            try:
                seen.append(_ask(address, BRIEFLY))
            except UsageError:
                continue
    return [run for run in seen if run is not None]


def _check_system() -> None:
    if not is_available():
        raise UsageError("phalanx look needs Linux; elsewhere use phalanx run --live")


def _check(process: int) -> None:
    _check_system()
    try:
        os.kill(process, 0)
    except PermissionError:
        pass
    except (OSError, OverflowError):
        raise UsageError(
            f"there is no process {process}; phalanx look without a number lists the runs"
        ) from None
    owner = _owner_of(process)
    if owner is not None and owner != os.geteuid() and os.geteuid() != 0:
        raise UsageError(
            f"process {process} belongs to another user; ask as that user, or as root"
        )


def _owner_of(process: int) -> int | None:
    try:
        return os.stat(f"/proc/{process}").st_uid
    except OSError:
        return None


def _nothing_in(process: int) -> str:
    return (
        f"process {process} runs no ranks of phalanx at present"
        f" ({_command_of(process) or 'its command is unknown'}); "
        "phalanx look without a number lists the runs"
    )


def _addresses_of(process: int) -> list[LookAddress]:
    """The doors of the process, or of the nearest one above it that has any."""
    known = find_addresses()
    for _ in range(MOST_ANCESTORS):
        found = [address for address in known if address.process == process]
        if found or process <= 1:
            return found
        process = _parent_of(process)
    return []


def _parent_of(process: int) -> int:
    try:
        with open(f"/proc/{process}/stat", encoding="utf-8", errors="replace") as file:
            return int(file.read().rpartition(")")[2].split()[1])
    except (OSError, ValueError, IndexError):
        return 0


def _command_of(process: int) -> str:
    try:
        with open(f"/proc/{process}/cmdline", "rb") as file:
            words = file.read(4096).rstrip(b"\0").split(b"\0")
    except OSError:
        return ""
    return plain(" ".join(fold_secrets([word.decode("utf-8", "replace") for word in words])))


def _ask(address: LookAddress, question: bytes) -> SeenRun | None:
    """None if the run has ended meanwhile, or if somebody else has its name."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as connection:
        connection.settimeout(ANSWERS)
        try:
            connection.connect(address.name)
            if peer_of(connection) != (address.process, address.user):
                return None
            connection.sendall(question)
            data = _read_all(connection)
        except TimeoutError:
            raise UsageError(
                f"the run of process {address.process} does not answer within {ANSWERS:g} s: "
                "it is stopped, or a rank holds the interpreter in native code; "
                f"try: py-spy dump --native --pid {address.process}"
            ) from None
        except OSError:
            return None
    return _read(address, data) if data else None


def _read_all(connection: socket.socket) -> bytes:
    until = time.monotonic() + ANSWERS
    data = bytearray()
    while (piece := connection.recv(1 << 16)) and len(data) < MOST_BYTES:
        data += piece
        if time.monotonic() > until:
            raise TimeoutError
    return bytes(data)


def _read(address: LookAddress, data: bytes) -> SeenRun:
    process = address.process
    try:
        said: dict[str, Any] = json.loads(data)
        if said["version"] != VERSION:
            raise UsageError(
                f"process {process} runs another version of phalanx; use its phalanx look"
            )
        return SeenRun(
            process,
            _command_of(process),
            plain(str(said["engine"])),
            int(said["ranks"]),
            float(said["seconds"]),
            tuple(rows_from_data(said["rows"])),
        )
    except UsageError:
        raise
    except (ValueError, TypeError, KeyError, RecursionError):
        raise UsageError(f"process {process} gave an answer that cannot be read") from None
