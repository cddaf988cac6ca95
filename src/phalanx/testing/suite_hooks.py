"""Hooks of a pytest that is the program of `phalanx run`: it tells the run about its tests.

`plugin.py` registers this module where a run is there to be told: with `-n` in every rank, else
in the one pytest whose tests start ranks. An ordinary pytest never imports it.
"""

from __future__ import annotations

from collections.abc import Generator
from contextlib import suppress
from typing import Any

import pytest

from phalanx.callsite import is_own_file
from phalanx.engines.outcome import WRAPPERS
from phalanx.engines.suite_of_run import Suite
from phalanx.errors import PhalanxError, RankStopped
from phalanx.report.layout import count

MOST_NAMES = 10
"""Of tests that did not run."""


class SuiteHooks:
    """Registered once for each run of pytest that tells its `suite`."""

    def __init__(self, suite: Suite) -> None:
        self._suite = suite
        self._left: list[str] = []
        self._stopped: str | None = None

    def pytest_collection_finish(self, session: pytest.Session) -> None:
        self._left = [item.nodeid for item in session.items]
        self._suite.collect(self._left)

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtest_protocol(self, item: pytest.Item) -> bool | None:
        """Wait for the other ranks. Where the run was stopped, the tests that are left are
        named and not begun."""
        with suppress(RankStopped):
            self._suite.begin_test(item.nodeid)
        self._stopped = self._suite.why_stopped()
        if self._stopped is not None:
            item.session.shouldstop = self._stopped
            return True
        self._left.remove(item.nodeid)
        return None

    @pytest.hookimpl(wrapper=True, trylast=True)
    def pytest_runtest_setup(self) -> Generator[None, Any, Any]:
        return (yield from self._phase())

    @pytest.hookimpl(wrapper=True, trylast=True)
    def pytest_runtest_call(self) -> Generator[None, Any, Any]:
        return (yield from self._phase())

    @pytest.hookimpl(wrapper=True, trylast=True)
    def pytest_runtest_teardown(self) -> Generator[None, Any, Any]:
        return (yield from self._phase())

    def _phase(self) -> Generator[None, Any, Any]:
        """What the run found out meanwhile fails a test that knows nothing of it."""
        passed = False
        try:
            result = yield
            passed = True
        finally:
            error = self._suite.settle(passed=passed)
        if error is not None:
            raise error
        return result

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_makereport(
        self, item: pytest.Item, call: pytest.CallInfo[Any]
    ) -> Generator[None, Any, Any]:
        if call.excinfo is not None and isinstance(call.excinfo.value, PhalanxError):
            shown = call.excinfo.traceback.filter(_is_shown)
            call.excinfo.traceback = shown or call.excinfo.traceback
        report = yield
        if call.excinfo is not None and report.failed:
            error = call.excinfo.value
            if isinstance(error, RankStopped):
                why = self._suite.why_stopped() or "another rank has failed"
                report.longrepr = f"the run was stopped here: {why}"
            self._suite.fail(_line_of(error))
        return report

    def pytest_terminal_summary(self, terminalreporter: Any) -> None:
        if self._stopped is None or not self._left:
            return
        tests = count(len(self._left), "test")
        terminalreporter.section(f"{tests} did not run", sep="=")
        terminalreporter.line(f"The run was stopped: {self._stopped}")
        for name in self._left[:MOST_NAMES]:
            terminalreporter.line(name)
        if len(self._left) > MOST_NAMES:
            terminalreporter.line(f"... and {len(self._left) - MOST_NAMES} more")

    def pytest_unconfigure(self) -> None:
        self._suite.leave()


def _is_shown(entry: Any) -> bool:
    """Of the lines of a traceback: not ours, nor torch's above them."""
    name = str(entry.path)
    return not is_own_file(name) and not name.endswith(WRAPPERS)


def _line_of(error: BaseException) -> str:
    lines = str(error).strip().splitlines()
    name = type(error).__name__
    return f"{name}: {lines[0]}" if lines else name
