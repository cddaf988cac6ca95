"""The words of the conformance suite: a case, what one rank reports of it, its result.

Everything here is a plain value that pickles, so that a case travels to real processes and
a result into a file. Imports nobody, torch least of all.

- *case*: one thing that a backend must do, for a number of ranks, with a stable readable id
  such as `all_reduce/float32/sum/async/sub@3`. It names a *program* (a function of a family
  module) and what it is called with.
- *report*: how the program went on one rank.
- *result*: the outcome of a case, judged from the reports of all ranks:
  **pass** (right data, or a mistake that gave the error it must give), **refuse** (a clean
  error where the backend is known to refuse), **WRONG** (wrong data, or something written
  outside of the tensor), **fail** (anything else).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

Outcome = Literal["pass", "refuse", "WRONG", "fail"]
OUTCOMES: tuple[Outcome, ...] = ("pass", "refuse", "WRONG", "fail")

Status = Literal["right", "wrong", "error", "unmet"]


@dataclass(frozen=True)
class Case:
    """One thing to do. `raises` names the exception classes one of which must come up: on
    every rank, or (`everywhere=False`) on at least one, while the others must only not hang.

    `alone`: may leave its group broken, so it gets a run and a group of its own.
    `bare`: starts without a default group and leaves none.
    `needs`: what not every backend has: "sparse", "any source", "tags", "monitored_barrier",
    or "gloo" for a case that is about Gloo itself.
    """

    family: str
    operation: str
    variant: tuple[str, ...]
    ranks: int
    program: str
    given: Mapping[str, Any] = field(default_factory=dict, hash=False)
    raises: tuple[str, ...] = ()
    everywhere: bool = True
    alone: bool = False
    bare: bool = False
    needs: str = ""

    @property
    def id(self) -> str:
        return "/".join((self.operation, *self.variant)) + f"@{self.ranks}"

    def column(self, name: str) -> str | None:
        """What the table sorts by: "dtype", "mode" or "group", where the case has it."""
        value = self.given.get(name)
        return None if value is None else str(value)


@dataclass(frozen=True)
class Report:
    """How a case went on one rank. `classes`: the names of the error's class and its bases."""

    status: Status
    text: str = ""
    classes: tuple[str, ...] = ()


@dataclass(frozen=True)
class Result:
    """The outcome of a case on one engine and backend. `rule` names the known refusal."""

    id: str
    family: str
    operation: str
    ranks: int
    outcome: Outcome
    reason: str = ""
    rule: str = ""
    dtype: str | None = None
    mode: str | None = None
    group: str | None = None


@dataclass(frozen=True)
class Setting:
    """Where the cases run. `timeout`: the seconds after which a run in which no rank comes to
    its end is given up."""

    engine: str = "threads"
    backend: str = "gloo"
    device: str = "cpu"
    imports: tuple[str, ...] = ()
    scratch: str = ""
    timeout: float = 30.0


@dataclass(frozen=True)
class Table:
    """All results of one run of the suite."""

    engine: str
    backend: str
    torch: str
    seconds: float
    results: tuple[Result, ...]

    @property
    def succeeded(self) -> bool:
        return all(result.outcome in ("pass", "refuse") for result in self.results)
