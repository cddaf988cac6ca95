"""What a test asks for with `@pytest.mark.ranks(...)`, and what options and ini files add.

Used by the pytest plugin at collection. Pure values and checks: knows neither torch nor pytest.
"""

from __future__ import annotations

import functools
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from phalanx.errors import UsageError
from phalanx.explore.explore_options import ExploreOptions
from phalanx.kinds import EXPLORE_KINDS, KINDS, is_on, parse_checks
from phalanx.options import (
    EXPLORE_DEFAULTS,
    FUNCTION_ENGINES,
    FUNCTION_OPTIONS,
    THREADS_ONLY,
    Options,
    check_function_options,
)
from phalanx.testing.collection.expected_findings import EXPECT, SILENCE, Reasons, reasons_in
from phalanx.testing.collection.explore_value import explore_options, read_explore

REPORTS = ("all", "first", "concise")
PARAMETER = "_phalanx_ranks"
"""The name under which an item's `Ranks` are among its parameters."""

DEFAULT_LIMIT = 300.0
"""Seconds a whole test may take, so that no test hangs pytest."""

KEYWORDS = (*FUNCTION_OPTIONS[1:], "explore", "per_rank", "shared")


@dataclass(frozen=True, kw_only=True)
class Ranks(Options):
    """How one test item runs: what stands behind an id such as `[ranks=4]`."""

    limit: float | None = DEFAULT_LIMIT
    explore: ExploreOptions | None = None
    """What the exploration is asked for, or the run that is repeated; None: one run."""
    per_rank: frozenset[str] = frozenset()
    shared: frozenset[str] = frozenset()
    expected: Reasons = ()
    silenced: Reasons = ()

    @property
    def size(self) -> int:
        return self.ranks

    @property
    def effective_checks(self) -> str:
        """What is looked for: also what is expected, whatever else was chosen."""
        if not self.expected and not self.silenced:
            return self.checks
        return _effective_checks(self.checks, self.expected, self.silenced)


@functools.cache
def _effective_checks(checks: str, expected: Reasons, silenced: Reasons) -> str:
    if not is_on(checks) and not expected:
        return checks
    chosen = parse_checks(checks) - {kind for kind, _ in silenced}
    return ",".join(sorted(chosen | {kind for kind, _ in expected if kind in KINDS}))


@dataclass(frozen=True)
class Plan:
    """All the ways one test is to be run, in order, with their ids."""

    ways: tuple[Ranks, ...]
    ids: tuple[str, ...]


@dataclass(frozen=True)
class Given:
    """What the command line says (`options`) and what the ini file says (`defaults`), by the
    names of the marker's keywords; `sizes` and `engines` of either."""

    sizes: tuple[int, ...] = ()
    engines: tuple[str, ...] = ()
    options: Mapping[str, Any] = field(default_factory=dict)
    default_sizes: tuple[int, ...] = ()
    default_engines: tuple[str, ...] = ()
    defaults: Mapping[str, Any] = field(default_factory=dict)
    record: tuple[str, bool] = ("", False)
    """The folder for recordings, and whether only those of tests that fail stay there."""
    replay: str = ""
    """The token of a run that is to be repeated."""


def is_ranks_marker(mark: Any) -> bool:
    return mark.name in ("ranks", "world_size")


def is_about_ranks(mark: Any) -> bool:
    """Whether it says how a test on ranks is run, or what comes of it."""
    return is_ranks_marker(mark) or mark.name in (EXPECT, SILENCE)


def find_conflict(markers: Iterable[Any], given: Given) -> str | None:
    """What two markers say differently that are equally close, as those on parameters are. An
    option decides all the same."""
    decided = {"sizes": bool(given.sizes), "engine": bool(given.engines)}
    decided.update(dict.fromkeys(given.options, True))
    said: dict[str, tuple[Any, Any]] = {}
    for mark in filter(is_ranks_marker, markers):
        sizes = {"sizes": check_sizes(mark.args, _text(mark))} if mark.args else {}
        for name, value in {**sizes, **mark.kwargs}.items():
            other, before = said.setdefault(name, (value, mark))
            if other != value and not decided.get(name):
                return (
                    f"markers on its parameters disagree: {_text(before)} and {_text(mark)}; "
                    "leave one out"
                )
    return None


def _text(mark: Any) -> str:
    said = [
        *map(repr, mark.args),
        *(f"{name}={value!r}" for name, value in mark.kwargs.items()),
    ]
    return f"{mark.name}({', '.join(said)})"


def find_plan(markers: Sequence[Any], given: Given) -> Plan | None:
    """How to run a test with these markers, closest first; None for an ordinary test.

    Each setting comes from the closest marker that has it, so a class can say how many ranks
    and a test in it which seed.
    """
    own = [mark for mark in markers if is_ranks_marker(mark)]
    if not own:
        return None
    for mark in own:
        _check_keywords(mark)
    sizes = given.sizes or _first_sizes(own) or given.default_sizes
    if not sizes:
        raise UsageError(
            "ranks() says no number of ranks; write @pytest.mark.ranks(4), or give a default "
            "with --ranks 4 or `ranks = 4` in the ini file"
        )
    asked = _closest(own)
    asked_engines = _engines(asked.pop("engine", None))
    engines = given.engines or asked_engines or given.default_engines
    only_processes = not given.engines and asked_engines == ("processes",)
    ways = [
        _way(size, engine, asked, given, is_asked=only_processes)
        for size in sizes
        for engine in (engines or ("threads",))
    ]
    expected, silenced = reasons_in(markers, EXPECT), reasons_in(markers, SILENCE)
    ways = [replace(way, expected=_findable(expected, way), silenced=silenced) for way in ways]
    several = len({way.engine for way in ways}) > 1
    ids = [f"ranks={way.size}-{way.engine}" if several else f"ranks={way.size}" for way in ways]
    return Plan(tuple(ways), tuple(ids))


def _findable(expected: Reasons, way: Ranks) -> Reasons:
    """What only an exploration finds is expected of nothing else."""
    if way.explore is not None:
        return expected
    return tuple(each for each in expected if each[0] not in EXPLORE_KINDS)


def _check_keywords(mark: Any) -> None:
    allowed = KEYWORDS if mark.name == "ranks" else ()
    for name in mark.kwargs:
        if name not in allowed:
            listed = ", ".join(allowed) or "none"
            raise UsageError(f"{mark.name}({name}=...): unknown keyword; allowed: {listed}")


def _first_sizes(markers: Iterable[Any]) -> tuple[int, ...]:
    for mark in markers:
        if mark.args:
            return check_sizes(mark.args, _text(mark))
        if mark.name == "world_size":
            raise UsageError("world_size() says no number; write @pytest.mark.world_size(4)")
    return ()


def check_sizes(
    given: Sequence[Any], where: str, example: str = "ranks(2, 4)"
) -> tuple[int, ...]:
    """Whole numbers above 0, given one by one or as one list; each once."""
    if len(given) == 1 and isinstance(given[0], (list, tuple, range, set, frozenset)):
        given = sorted(given[0]) if isinstance(given[0], (set, frozenset)) else list(given[0])
    for size in given:
        if isinstance(size, bool) or not isinstance(size, int) or size < 1:
            raise UsageError(
                f"{where}: give numbers of ranks, whole numbers from 1, e.g. {example}"
            )
    if len(set(given)) != len(given):
        raise UsageError(f"{where}: a number of ranks is there twice; give each once")
    return tuple(given)


def _closest(markers: Iterable[Any]) -> dict[str, Any]:
    asked: dict[str, Any] = {}
    for mark in markers:
        for name, value in mark.kwargs.items():
            if value is not None:
                asked.setdefault(name, value)
    return asked


def _engines(given: Any) -> tuple[str, ...]:
    if given is None:
        return ()
    where = f"engine={given!r}"
    return check_engines(given.split(",") if isinstance(given, str) else given, where)


def check_engines(given: Any, where: str) -> tuple[str, ...]:
    try:
        names = tuple(name.strip() for name in given)
    except (TypeError, AttributeError):
        names = ()
    if not names or not set(names) <= set(FUNCTION_ENGINES):
        engines = " or ".join(FUNCTION_ENGINES)
        raise UsageError(f"{where}: choose {engines}, or both with a comma between them")
    return tuple(dict.fromkeys(names))


def _way(
    size: int, engine: str, asked: Mapping[str, Any], given: Given, *, is_asked: bool
) -> Ranks:
    values = {**given.defaults, **asked, **given.options}
    if engine == "processes":
        _drop_what_only_threads_have(values, asked if is_asked else {})
    timeout = values.get("timeout", DEFAULT_LIMIT)
    if isinstance(timeout, bool) or not isinstance(timeout, (int, float)) or timeout < 0:
        raise UsageError(
            f"timeout={timeout!r}: give seconds for the whole test, 0 for no limit"
        )
    strict, init = values.get("strict", False), values.get("init", True)
    if not isinstance(strict, bool):
        raise UsageError(f"strict={strict!r}: True or False")
    if not isinstance(init, bool):
        raise UsageError(
            f"init={init!r}: True, or False for a test that starts its group itself"
        )
    explore = _explore(engine, values, asked, given, is_asked=is_asked)
    given_options = {name: values[name] for name in FUNCTION_OPTIONS if name in values}
    given_options.update(
        ranks=size, engine=engine, timeout=None, isolate=_packages(values.get("isolate", ()))
    )
    check_function_options(given_options)
    return Ranks(
        **given_options,
        limit=float(timeout) or None,
        explore=explore,
        per_rank=_names("per_rank", values.get("per_rank", ())),
        shared=_names("shared", values.get("shared", ())),
    )


def _explore(
    engine: str,
    values: dict[str, Any],
    asked: Mapping[str, Any],
    given: Given,
    *,
    is_asked: bool,
) -> ExploreOptions | None:
    """What the exploration is asked for, if there is one. Then the clock is virtual, unless
    somebody says which it is, and the seed is that of the exploration."""
    said = [read_explore(asked["explore"])] if "explore" in asked else []
    if engine == "processes":
        if is_asked and said and said[0] is not None:
            raise UsageError(
                f"explore={asked['explore']!r}: ranks that are explored are threads; leave it "
                "out, or use engine='threads'"
            )
        return None
    weak = [given.defaults["explore"]] if "explore" in given.defaults else []
    strong = [given.options["explore"]] if "explore" in given.options else []
    seed, faults = values.get("seed", 0), values.get("faults", ())
    explore = explore_options(
        *weak, *said, *strong, seed=seed, faults=faults, replay=given.replay
    )
    if explore is not None:
        values["seed"], values["faults"] = 0, ()  # the exploration has them
        for name, value in EXPLORE_DEFAULTS.items():
            values.setdefault(name, value)
        if isinstance(values.get("record"), str):
            raise UsageError(
                f"record={values['record']!r}: one run is recorded, and this explores many; "
                "repeat one with --ranks-replay, and record it with --ranks-record"
            )
    return explore


def _drop_what_only_threads_have(values: dict[str, Any], asked: Mapping[str, Any]) -> None:
    """A seed is for the engine that can have one. One in a marker that asks for processes is a
    mistake, and told as such."""
    for name in THREADS_ONLY:
        if name not in asked:
            values.pop(name, None)


def _packages(given: Any) -> Any:
    """What is wrong with others than these is told by the rules of `phalanx.run`."""
    return tuple(given) if isinstance(given, (list, set, frozenset)) else given


def _names(keyword: str, given: Any) -> frozenset[str]:
    names = (given,) if isinstance(given, str) else given
    if not isinstance(names, (list, tuple, set, frozenset)) or not all(
        isinstance(name, str) and name.isidentifier() for name in names
    ):
        raise UsageError(
            f"{keyword}={given!r}: give names of fixtures, e.g. {keyword}=('model', 'data')"
        )
    return frozenset(names)
