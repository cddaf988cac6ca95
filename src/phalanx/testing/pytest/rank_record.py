"""The outcome of a rank's part of a test, as values that can be sent from a rank's process.

Made by `part.py` in a rank, judged by `item_run.py` and shown by `item_failure.py` in pytest's
process.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import Any, Literal

Phase = Literal["setup", "call", "teardown"]
End = Literal["unfinished", "passed", "skipped", "failed", "stopped"]


_ADDRESS = re.compile(r"\b0x[0-9a-f]{6,}\b")


@dataclass
class Failure:
    """One error of one rank: pytest's representation of it, made where its frames are."""

    rank: int
    phase: Phase
    when: float
    """Seconds of the system's monotonic clock, which all processes of a machine share."""
    kind: str
    message: str
    shown: Any
    crash: Any = None
    trail: tuple[Any, ...] = ()
    """The lines of the program that led to it, and those of what it was raised from."""
    causes: tuple[str, ...] = ()
    """What it was raised from, a line each."""
    verdict: bool = False
    """Whether it is one of our own reports (a deadlock, ...), shown without a traceback."""
    error: BaseException | None = None
    refused: bool = False
    """Whether the rank could not begin with the test."""

    @property
    def place(self) -> tuple[Any, ...]:
        """Ranks that come to the same place by the same lines, with the same kind of error,
        fail alike, though perhaps with other values."""
        where = (self.crash.path, self.crash.lineno) if self.crash is not None else None
        return (self.phase, self.kind, where, self.trail)

    @property
    def whole(self) -> str:
        """What is wrong, with the explanation of an assertion but without the ranks' own
        variables: ranks with the same text are shown as one."""
        if self.kind == "RankExited":
            text = f"called {self.message}"
        elif self.kind == "RankDied":
            text = self.message
        elif self.crash is not None:
            text = self.crash.message
        else:
            text = f"{self.kind}: {self.message}"
        return _ADDRESS.sub("0x...", "\n".join([text, *self.causes]))

    @property
    def lines(self) -> list[str]:
        return self.whole.strip().splitlines() or [self.kind]

    @property
    def line(self) -> str:
        """The error in one line."""
        return self.lines[0]


@dataclass
class Subtest:
    """One block `with subtests.test(...)` of one rank."""

    message: str | None
    values: dict[str, str]
    end: End
    failure: Failure | None = None
    reason: str = ""


@dataclass
class Record:
    """Everything that pytest should know about one rank of one test."""

    rank: int
    end: End = "unfinished"
    reason: str = ""
    """Why it skipped."""
    skipped_at: tuple[str, int] | None = None
    failures: list[Failure] = field(default_factory=list)
    subtests: list[Subtest] = field(default_factory=list)
    properties: list[tuple[str, Any]] = field(default_factory=list)
    sections: list[tuple[str, str, str]] = field(default_factory=list)
    """Phase, name and text of what the rank has added to the report."""
    for_junit: list[tuple[str, str, Any]] = field(default_factory=list)
    """Fixture, name and value of what the rank had recorded in pytest's XML file."""
    returned: str | None = None
    """The type of what the test function returned, if not None."""
    out: str = ""
    err: str = ""
    log: str = ""
    warnings: list[Any] = field(default_factory=list)
    marks: list[Any] = field(default_factory=list)
    """Those that the rank has put on its node while it ran."""
