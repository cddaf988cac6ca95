"""What a strategy must offer. The explorer asks one for each run of the program.

A strategy must be a pure function of its seed and of what it is asked: no clock, no addresses.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from phalanx.explore.trace import Candidate, Choice, Trace


class Strategy(Protocol):
    name: str

    def begin(self) -> bool:
        """A run begins; False if nothing is left to try."""
        ...

    def pick(self, candidates: Sequence[Candidate], usual: int, trace: Trace) -> int:
        """Which of them makes its step next."""
        ...

    def pick_value(self, step: Candidate, values: Sequence[str], trace: Trace) -> int:
        """In which way the step ends; 0 is the usual one."""
        ...

    def made(self, choice: Choice) -> None:
        """The choice was made: it has just become the last one of the trace."""
        ...

    def in_vain(self, index: int) -> None:
        """What the value at this index of the trace promised cannot come. The run goes on as
        with another value, which the trace has now."""
        ...

    def end(self, trace: Trace) -> None:
        """The run has ended."""
        ...
