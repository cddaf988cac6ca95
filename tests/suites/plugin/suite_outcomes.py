"""A plugin for pytest: writes how each test ended, one file for each rank, line by line.

`SUITE_OUTCOMES` names the folder. Lines are written when a test ends, so a run that dies leaves
what it has. A fixture stands in for that of pytest-xdist: suites ask it for the number of their
process, and under a launcher that number is the rank.
"""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest


def pytest_configure(config: pytest.Config) -> None:
    # torchrun's ranks are clients of its store. Suites choose ports where their rank 0 serves.
    os.environ.pop("TORCHELASTIC_USE_AGENT_STORE", None)
    config.pluginmanager.register(Outcomes(os.environ.get("RANK", "0")), "suite-outcomes-rank")


class Outcomes:
    """How the tests of one pytest end: the worst of set-up, call and tear-down counts."""

    def __init__(self, rank: str) -> None:
        self.path = Path(os.environ["SUITE_OUTCOMES"]) / f"rank{rank}.jsonl"
        self.worst: dict[str, tuple[str, str]] = {}

    def write(self, **line: Any) -> None:
        with self.path.open("a", encoding="utf-8") as stream:
            stream.write(json.dumps(line) + "\n")

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        outcome, why = report.outcome, ""
        if report.outcome != "passed":
            why = str(getattr(report, "longreprtext", "") or report.longrepr or "")[-2000:]
        before = self.worst.get(report.nodeid, ("passed", ""))
        if RANKING[outcome] > RANKING[before[0]]:
            before = (outcome, why)
        self.worst[report.nodeid] = before
        if report.when == "teardown":
            outcome, why = self.worst.pop(report.nodeid)
            self.write(test=report.nodeid, outcome=outcome, why=why)

    def pytest_collectreport(self, report: pytest.CollectReport) -> None:
        if report.outcome != "passed":
            self.write(
                test=report.nodeid, outcome=report.outcome, why=str(report.longrepr)[-2000:]
            )

    def pytest_sessionfinish(self, exitstatus: int) -> None:
        self.write(ended=int(exitstatus))


# An expected failure counts with the skipped: it says nothing about ranks.
RANKING = {"passed": 0, "skipped": 1, "failed": 2}


@pytest.fixture(scope="session")
def worker_id() -> str:
    return f"gw{os.environ['RANK']}" if "RANK" in os.environ else "master"
