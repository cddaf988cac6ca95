"""What the command line and the ini file say about tests on ranks, read and checked.

`plugin.py` declares the options. It reads them here when one is given, so that a wrong one is
an error at the start, and otherwise when the first test on ranks is collected.
"""

from __future__ import annotations

import ast
import os
from collections.abc import Mapping
from typing import Any

import pytest

from phalanx.errors import UsageError
from phalanx.explore.tokens import read_token
from phalanx.kinds import check_profile, parse_checks
from phalanx.testing.collection.explore_value import parse_explore
from phalanx.testing.collection.marker import REPORTS, Given, check_engines, check_sizes

_given = pytest.StashKey[Given]()


def given_of(config: pytest.Config) -> Given:
    """Read once per run of pytest. Raise `UsageError` if something is wrong."""
    if _given not in config.stash:
        config.stash[_given] = _read_options(config)
    return config.stash[_given]


def marks_for_fixtures(config: pytest.Config) -> Mapping[str, pytest.Mark]:
    """By fixture: the marker that the ini file gives to each test that uses it."""
    if _for_fixtures not in config.stash:
        lines = config.getini("ranks_for_fixture")
        config.stash[_for_fixtures] = dict(map(_fixture_line, lines))
    return config.stash[_for_fixtures]


_for_fixtures = pytest.StashKey[Mapping[str, pytest.Mark]]()


def _fixture_line(line: str) -> tuple[str, pytest.Mark]:
    """`dist_env: 4, init=False`: a name, and what stands in `ranks(...)`."""
    name, colon, text = line.partition(":")
    name = name.strip()
    try:
        call = ast.parse(f"ranks({text.strip()})", mode="eval").body
        assert isinstance(call, ast.Call)
        args = [ast.literal_eval(each) for each in call.args]
        kwargs = {str(each.arg): ast.literal_eval(each.value) for each in call.keywords}
    except (SyntaxError, ValueError, AssertionError):
        args, kwargs = [], {}
    if not colon or not name.isidentifier() or not args or "None" in kwargs:
        raise UsageError(
            f"ranks_for_fixture = {line}: give the name of a fixture and what stands in the "
            "marker, a line for each, e.g. dist_env: 4, or dist_env: 2, 4, init=False"
        )
    return name, pytest.mark.ranks.with_args(*args, **kwargs).mark


def _read_options(config: pytest.Config) -> Given:
    sizes, engines, options = _parse(config.getoption, "--ranks", "-")
    default_sizes, default_engines, defaults = _parse(config.getini, "ranks", "_")
    marks_for_fixtures(config)
    if config.getoption("ranks_strict"):
        options["strict"] = True
    defaults["strict"] = bool(config.getini("ranks_strict"))
    for name in ("per_rank", "shared"):
        defaults[name] = tuple(config.getini(f"ranks_{name}"))
    text = config.getoption("ranks_record") or config.getini("ranks_record") or ""
    folder, comma, which = text.partition(",")
    if comma and which != "failed":
        raise UsageError(
            f"--ranks-record {text}: give a folder, or a folder and 'failed' for tests that "
            "fail, e.g. --ranks-record recordings,failed"
        )
    record = (os.path.join(config.invocation_params.dir, folder) if folder else "", bool(comma))
    replay = config.getoption("ranks_replay") or ""
    if replay:
        _check_token(replay)
    return Given(
        sizes, engines, options, default_sizes, default_engines, defaults, record, replay
    )


def _check_token(text: str) -> None:
    try:
        read_token(text)
    except UsageError as error:
        raise UsageError(f"--ranks-replay {text}: {str(error).partition(': ')[2]}") from None


def _parse(
    read: Any, prefix: str, joint: str
) -> tuple[tuple[int, ...], tuple[str, ...], dict[str, Any]]:
    """Options and ini settings have the same names but for the joint, and the same values."""
    sizes: tuple[int, ...] = ()
    engines: tuple[str, ...] = ()
    values: dict[str, Any] = {}
    if text := read("ranks"):
        where = f"{prefix} {text}"
        sizes = check_sizes(
            [_number(each, where, "2,4") for each in text.split(",")], where, "2,4"
        )
    if text := read("ranks_engine"):
        engines = check_engines(text.split(","), f"{prefix}{joint}engine {text}")
    if text := read("ranks_backend"):
        values["backend"] = text
    if text := read("ranks_seed"):
        values["seed"] = _number(text, f"{prefix}{joint}seed {text}", "7")
    if text := read("ranks_checks"):
        values["checks"] = text
        parse_checks(text, where=f"{prefix}{joint}checks {text}")
    if text := read("ranks_profile"):
        values["profile"] = text
        check_profile(text, where=f"{prefix}{joint}profile {text}")
    if text := read("ranks_timeout"):
        values["timeout"] = _seconds(text, f"{prefix}{joint}timeout {text}")
    if text := read("ranks_explore"):
        values["explore"] = parse_explore(text, f"{prefix}{joint}explore {text}")
    report = read("ranks_report")
    if report and report not in REPORTS:
        raise UsageError(f"{prefix}{joint}report {report}: choose {', '.join(REPORTS)}")
    return sizes, engines, values


def _number(text: str, where: str, example: str) -> int:
    try:
        return int(text)
    except ValueError:
        raise UsageError(f"{where}: whole numbers are needed, e.g. {example}") from None


def _seconds(text: str, where: str) -> float:
    try:
        return float(text)
    except ValueError:
        raise UsageError(f"{where}: seconds are needed, e.g. 30") from None
