"""The driver of the upstream suite can say no: it notices tests that fail, hang or pass against
expectation, and finds the words for it."""

from __future__ import annotations

import importlib
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

HERE = Path(__file__).parent
MODULES = ("known", "table", "run")


@pytest.fixture
def driver(monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """The driver's modules; they are a script's and not importable otherwise."""
    monkeypatch.syspath_prepend(HERE)
    yield SimpleNamespace(**{name: importlib.import_module(name) for name in MODULES})
    for name in MODULES:
        sys.modules.pop(name, None)


def expect(driver: Any, monkeypatch: pytest.MonkeyPatch, told: str | None) -> None:
    monkeypatch.setattr(driver.known, "expected_status", lambda *args, **kwargs: told)


@pytest.mark.parametrize(
    ("gloo", "told", "fine"),
    [
        ("passed", "passed", True),
        ("passed", "failed: it is broken", False),
        ("passed", "skipped: needs 8 ranks", False),
        ("skipped: needs 8 ranks", "passed", False),
        ("failed: needs streams", "failed: needs streams", True),
        ("failed: needs streams", "failed: it is broken", False),
        (None, "passed", True),
        (None, "timed out", False),
    ],
)
def test_gloo_is_the_referee(
    driver: Any, monkeypatch: pytest.MonkeyPatch, gloo: str | None, told: str, fine: bool
) -> None:
    expect(driver, monkeypatch, gloo)
    assert driver.known.is_as_expected("test_a", 3, told, gpu_tests=False) is fine


def test_a_known_difference_must_be_one(driver: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    expect(driver, monkeypatch, "passed")
    monkeypatch.setattr(driver.known, "DIFFERENCES", {"test_a": "because"})
    assert driver.known.is_as_expected("test_a", 3, "failed: so", gpu_tests=False)
    assert not driver.known.is_as_expected("test_a", 3, "passed", gpu_tests=False)


def test_the_error_of_a_rank_says_more_than_our_report(driver: Any) -> None:
    reason = """Traceback (most recent call last):
  File "a.py", line 1, in <module>
ValueError: three is no crowd

The above exception was the direct cause of the following exception:

phalanx.errors.RankFailedError: ranks 0-2 raised ValueError: three is ...

  replay    phalanx.run(body, ranks=3)
"""
    assert driver.run.gist(reason) == "ValueError: three is no crowd"
    assert driver.run.gist("Fatal Python error\n\nsignal SIGSEGV\n") == "signal SIGSEGV"


def test_a_name_in_full_selects_one_test(driver: Any) -> None:
    names = ["test_reduce", "test_reduce_max", "test_gather"]
    assert driver.run.chosen(names, ["test_reduce"]) == ["test_reduce"]
    assert driver.run.chosen(names, ["reduce"]) == ["test_reduce", "test_reduce_max"]
    assert driver.run.chosen(names, []) == names


def test_the_page_lists_a_difference(driver: Any) -> None:
    gloo = {"test_a": {"3": "passed"}, "test_b": {"3": "skipped: needs 8 ranks"}}
    own = {"test_a": {"3": "failed: no"}, "test_b": {"3": "skipped: needs 8 ranks"}}
    page = driver.table.render_page(
        "torch 9", (gloo, own), ({}, {}), differences={}, left_out={}
    )
    assert "| `a` | pass | | | FAIL | | | no |" in page
    assert "- needs 8 ranks: `b`" in page
    assert "- `a`: not explained" in page
    assert "| Phalanx threads | 0 of 1 |" in page


@pytest.mark.slow
def test_a_test_that_hangs_costs_only_itself() -> None:
    """Both are too slow for this limit, so the second shows that there was a second worker."""
    options = ["--ranks", "3", "--seconds", "0.05"]
    options += ["--select", "test_barrier", "--select", "test_get_rank"]
    done = subprocess.run(
        [sys.executable, str(HERE / "run.py"), *options],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=55,
    )
    assert done.returncode == 1, done.stdout
    assert "3 ranks: 2 timed out" in done.stdout
