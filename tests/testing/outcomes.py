"""Run a file of unittest cases in this process and print how each test ended, as JSON.

The tests of our test classes start this in a process of its own: `python outcomes.py FILE
[Class.test ...]`.
A test that hangs or a thread that is never joined must not keep it from ending.
"""

from __future__ import annotations

import importlib
import json
import sys
import unittest
from pathlib import Path
from typing import Any


class Outcomes(unittest.TestResult):
    """For each test, by class and method: how it ended, and the text with it."""

    def __init__(self) -> None:
        super().__init__()
        self.found: dict[str, tuple[str, str]] = {}

    def _note(self, test: unittest.TestCase, outcome: str, text: str = "") -> None:
        name = ".".join(test.id().split(".")[-2:])
        self.found[name] = (outcome, text)

    def addSuccess(self, test: Any) -> None:  # noqa: N802
        self._note(test, "passed")

    def addError(self, test: Any, err: Any) -> None:  # noqa: N802
        super().addError(test, err)
        self._note(test, "error", self.errors[-1][1])

    def addFailure(self, test: Any, err: Any) -> None:  # noqa: N802
        super().addFailure(test, err)
        self._note(test, "failed", self.failures[-1][1])

    def addSkip(self, test: Any, reason: str) -> None:  # noqa: N802
        self._note(test, "skipped", reason)

    def addExpectedFailure(self, test: Any, err: Any) -> None:  # noqa: N802
        self._note(test, "expected failure")

    def addUnexpectedSuccess(self, test: Any) -> None:  # noqa: N802
        self._note(test, "unexpected success")


def main() -> None:
    file = Path(sys.argv[1]).resolve()
    sys.path.insert(0, str(file.parent))
    module = importlib.import_module(file.stem)
    result = Outcomes()
    loader = unittest.defaultTestLoader
    names = sys.argv[2:]
    tests = (
        loader.loadTestsFromNames(names, module)
        if names
        else loader.loadTestsFromModule(module)
    )
    tests.run(result)
    print("OUTCOMES " + json.dumps(result.found), flush=True)


if __name__ == "__main__":
    main()
