"""What a rank in a process of its own and the program that started it say to each other, on
processes and under torchrun. Each message travels as one pickle over the rank's control socket.
"""

from __future__ import annotations

import signal
from dataclasses import dataclass

from phalanx.backend.evidence.model_names import Facts
from phalanx.model import Finding, Handling, Site

DUMP_SIGNAL: int = signal.SIGRTMAX - 1 if hasattr(signal, "SIGRTMAX") else signal.SIGUSR2
"""Makes a rank write its stack to standard error, for one that does not answer `Where`."""


@dataclass(frozen=True)
class Where:
    """Say where you are. Answered by a thread of the rank's own."""

    number: int


@dataclass(frozen=True)
class Position:
    """Where a rank's main thread is, innermost line last; `call` is torch's call it is in,
    `handling` the error that it is handling."""

    rank: int
    number: int
    stack: tuple[Site, ...]
    call: str | None = None
    handling: Handling | None = None


@dataclass(frozen=True)
class HowFar:
    """When did you last begin or end a call? Answered by a thread of the rank's own."""


@dataclass(frozen=True)
class Progress:
    """The answer, in monotonic time; 0 before the first call."""

    rank: int
    moved_at: float


@dataclass(frozen=True)
class Raised:
    """The call raised. `error` is its pickle where it has one; `when` is monotonic time;
    `call` is torch's call it came out of; `stopped` says that it came up while the rank was
    being stopped, or is that stopping itself. `invalid` tells what was wrong with the rank's
    own call, if that is what it failed by, `facts` what it knows of its models."""

    rank: int
    kind: str
    message: str
    trace: str
    when: float
    error: bytes | None = None
    site: Site | None = None
    call: str | None = None
    loading: bool = False
    stopped: bool = False
    invalid: Finding | None = None
    facts: Facts | None = None


@dataclass(frozen=True)
class Asking:
    """The rank asks at the terminal, or does so no longer."""

    rank: int
    begins: bool
