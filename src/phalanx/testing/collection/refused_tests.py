"""Tests that have a marker of ours and cannot run on ranks fail in setup, with the reason."""

from __future__ import annotations

import inspect
import unittest
from typing import Any

import pytest

from phalanx.testing.collection.expected_findings import EXPECT, SILENCE
from phalanx.testing.collection.marker import Ranks, is_ranks_marker
from phalanx.testing.collection.rank_parameters import conflict_of
from phalanx.testing.pytest_compat.hypothesis_examples import drawn_of


def refuse_on_ranks(item: Any, way: Ranks) -> None:
    """For a test that is to run on ranks."""
    if inspect.iscoroutinefunction(item.obj) or inspect.isasyncgenfunction(item.obj):
        pytest.fail(
            "an async test cannot run on ranks: torch.distributed blocks, and would block the "
            "event loop; write an ordinary function, with asyncio.run(...) inside if need be",
            pytrace=False,
        )
    if way.explore is not None and drawn_of(item.obj) is not None:
        pytest.fail(
            "a test that Hypothesis gives values cannot be explored: each value would be an "
            "exploration of its own, and no token could name one. Call phalanx.explore in the "
            "test, or give the values by pytest.mark.parametrize",
            pytrace=False,
        )
    if way.engine != "threads" and item.config.getoption("trace"):
        pytest.fail(
            "--trace stops at the first line of a test, in a debugger; ranks that are "
            "processes have no terminal for it; run the test with --ranks-engine threads",
            pytrace=False,
        )


def refuse_lost_marker(item: Any) -> None:
    """For any other test: pytest would leave its marker out without a word, as it does not
    parametrise tests of unittest's classes."""
    if conflict := conflict_of(item):
        pytest.fail(conflict, pytrace=False)
    if isinstance(item, pytest.DoctestItem):
        return
    mark = next((each for each in item.iter_markers() if is_ranks_marker(each)), None)
    if mark is None:
        _refuse_without_ranks(item)
    elif not is_rank_class(getattr(item, "cls", None)):  # these have their own way to say it
        pytest.fail(
            f"@pytest.mark.{mark.name} has no effect on {item.nodeid}: {_why(item)}",
            pytrace=False,
        )


def _refuse_without_ranks(item: Any) -> None:
    for own in getattr(getattr(item, "obj", None), "pytestmark", ()):
        if own.name in (EXPECT, SILENCE):
            pytest.fail(
                f"@pytest.mark.{own.name} is about tests on ranks; put "
                f"@pytest.mark.ranks(N) on {item.nodeid} as well",
                pytrace=False,
            )


def _why(item: Any) -> str:
    of_unittest = issubclass(getattr(item, "cls", None) or object, unittest.TestCase)
    if isinstance(item, pytest.Function) and not of_unittest:
        return (
            "it came after the test was collected. Put it on the function, the class, the "
            "module (pytestmark) or a parameter (pytest.param), or add it in the hook "
            "pytest_generate_tests, pytest_itemcollected or pytest_collection_modifyitems"
        )
    return (
        "pytest cannot run this kind of test on ranks. Write a function or a plain class, or "
        "derive from phalanx.testing.MultiThreadedTestCase"
    )


def is_rank_class(cls: type | None) -> bool:
    """Whether it is a test class for ranks, of `phalanx.testing`."""
    bases = getattr(cls, "__mro__", ())
    return any(base.__module__.startswith("phalanx.testing") for base in bases)
