"""What an exploration was asked for: how many schedules, which strategy, which faults.

Used by `phalanx.explore`, by the command line and by the pytest plugin, so that all three
refuse the same values with the same words. Must never import torch: a wrong command line ends
here.
"""

from __future__ import annotations

import math
import os
from collections.abc import Iterable
from dataclasses import dataclass
from difflib import get_close_matches
from typing import Any

from phalanx.errors import UsageError
from phalanx.faults import Fault, Plan, parse_faults, read_kinds, read_plan

STRATEGIES = ("pos", "pct", "random", "exhaustive")
COMPARED = ("values", "output", "parameters")
"""What must be equal in all orders, unless the user leaves it out."""
STRATEGY = "pos"
SCHEDULES = 200
"""How many are explored where nobody says how many or how long."""
EXPLORING, SHRINKING = "exploring", "shrinking"
"""What an exploration does at the moment: it looks for failures, or makes them small."""
EXHAUSTIVE_SCHEDULES = 10_000
"""Where all are to be explored: a search that has not ended by then rarely does."""


@dataclass(frozen=True, kw_only=True)
class ExploreOptions:
    """Raises `UsageError` for what cannot work.

    >>> ExploreOptions(schedules=500, strategy="pct").schedules
    500
    """

    schedules: int | None = None
    """How many runs at most; None: as `most_schedules` says."""
    seconds: float | None = None
    """No schedule begins after so many seconds."""
    strategy: str = STRATEGY
    seed: int = 0
    """Of the strategy, and of the faults that are drawn."""
    faults: tuple[Any, ...] = ()
    """Kinds of faults to draw, by name, or a plan of faults that every run has."""
    compare: tuple[str, ...] = COMPARED
    """What must be equal in all orders."""
    same_result: bool = False
    """Whether a run with faults must end with the result of the run without."""
    store: str | None = ".phalanx"
    """The folder that keeps failures; None: none are kept."""
    replay: str | None = None
    """The token of the one run to repeat."""
    record: str | None = None
    """The file for what ranks do in the run that is repeated."""

    def __post_init__(self) -> None:
        if self.schedules is not None and not (
            _is_whole(self.schedules) and self.schedules > 0
        ):
            raise UsageError(
                f"schedules={self.schedules!r}: give how many schedules to try as a whole "
                "number from 1, e.g. schedules=200"
            )
        if self.seconds is not None and not _is_time(self.seconds):
            raise UsageError(
                f"seconds={self.seconds!r}: give how many seconds to go on as a number above "
                "0, e.g. seconds=60, or None for no limit"
            )
        if self.strategy not in STRATEGIES:
            listed = ", ".join(map(repr, STRATEGIES))
            raise UsageError(f"strategy={self.strategy!r}: choose one of {listed}")
        if not _is_whole(self.seed) or self.seed < 0:
            raise UsageError(f"seed={self.seed!r}: a seed is a whole number from 0 on")
        _check_names("compare", self.compare, COMPARED, example="compare='values,output'")
        self._check_faults()
        if not isinstance(self.same_result, bool):
            raise UsageError(f"same_result={self.same_result!r}: give True or False")
        if self.replay is not None and not _is_text(self.replay):
            raise UsageError(
                f"replay={self.replay!r}: give the token that a failure's report ends with"
            )
        if self.store is not None and not _is_text(self.store):
            raise UsageError(
                f"store={self.store!r}: give the folder that keeps failures, e.g. "
                "store='.phalanx', or None to keep none"
            )
        self._check_record()

    def _check_faults(self) -> None:
        kinds = [each for each in self.faults if isinstance(each, str)]
        if kinds:
            read_kinds(kinds)
        if kinds and len(kinds) < len(self.faults):
            raise UsageError(
                f"faults={self.faults!r}: give kinds of faults to draw, e.g. "
                "faults='kill,delay', or faults that every run has, and not both"
            )
        read_plan(self.plan)

    def _check_record(self) -> None:
        if self.record is None:
            return
        if not _is_text(self.record):
            raise UsageError(
                f"record={self.record!r}: give the name of a file, e.g. record='run.jsonl.gz'"
            )
        if self.replay is None:
            raise UsageError(
                f"record={self.record!r}: one run is recorded, and this explores many; give "
                "the token of the one, e.g. replay='4-12.1-a7f3'"
            )

    @property
    def plan(self) -> Plan:
        """The faults that every run has."""
        return tuple(each for each in self.faults if not isinstance(each, str))

    @property
    def fault_kinds(self) -> tuple[str, ...]:
        """The kinds of faults that are drawn for each run."""
        return tuple(each for each in self.faults if isinstance(each, str))

    @property
    def most_schedules(self) -> int | None:
        """How many runs at most; None: as many as fit into the seconds."""
        if self.schedules is not None or self.seconds is not None:
            return self.schedules
        return EXHAUSTIVE_SCHEDULES if self.strategy == "exhaustive" else SCHEDULES

    @classmethod
    def of(cls, **given: Any) -> ExploreOptions:
        """From what a user gave: lists, names with commas between them, paths."""
        if "compare" in given:
            given["compare"] = _names("compare", given["compare"])
        if "faults" in given:
            given["faults"] = _faults(given["faults"])
        for name in ("store", "record"):
            if isinstance(given.get(name), os.PathLike):
                given[name] = os.fspath(given[name])
        return cls(**given)


def _faults(given: Any) -> tuple[Any, ...]:
    if isinstance(given, str) and "(" in given:
        return parse_faults(given)
    return (given,) if isinstance(given, Fault) else _names("faults", given)


def _names(name: str, given: Any) -> tuple[Any, ...]:
    if isinstance(given, str):
        words = tuple(word.strip() for word in given.split(","))
        return () if words in (("",), ("none",)) else words
    if isinstance(given, Iterable):
        return tuple(given)
    raise UsageError(f"{name}={given!r}: give a list, or names with commas between them")


def _check_names(name: str, given: Iterable[Any], known: tuple[str, ...], example: str) -> None:
    for each in given:
        if each not in known:
            near = get_close_matches(str(each), known, 1)
            hint = f"; did you mean {near[0]!r}?" if near else ""
            raise UsageError(
                f"{name}={each!r}: there are {', '.join(map(repr, known))}{hint}; "
                f"write e.g. {example}"
            )


def _is_text(given: Any) -> bool:
    return isinstance(given, str) and bool(given)


def _is_whole(given: Any) -> bool:
    return isinstance(given, int) and not isinstance(given, bool)


def _is_time(given: Any) -> bool:
    is_number = isinstance(given, (int, float)) and not isinstance(given, bool)
    return is_number and math.isfinite(given) and given > 0
