"""Run tests of torch's backend suite one after the other and tell a pipe how each went.

`run.py` starts this, gives it the tests and restarts it after a crash. Arguments: engine,
"gpu" for the tests that ask for GPUs or "cpu", file descriptor of the pipe, then tests, each as
name:seconds with its time limit; without tests it only tells which there are. The number of
ranks and the rest of what the suite wants are in the environment.
"""

from __future__ import annotations

import faulthandler
import json
import os
import sys
import time
import unittest
from typing import Any


def main() -> None:
    engine, gpu, pipe, *tests = sys.argv[1:]
    os.set_inheritable(int(pipe), False)
    faulthandler.enable()  # a crash is rare, so say where the first time
    import suite

    with os.fdopen(int(pipe), "w") as out:
        if not tests:
            tell(out, {"names": suite.names(gpu_tests=gpu == "gpu")})
            return
        case_class = suite.case_class(engine, gpu_tests=gpu == "gpu")
        for name, limit in (test.split(":") for test in tests):
            tell(out, {"begin": name})
            faulthandler.dump_traceback_later(float(limit), exit=True)
            began = time.monotonic()
            status, reason = run_one(case_class(name))
            faulthandler.cancel_dump_traceback_later()
            seconds = round(time.monotonic() - began, 2)
            tell(out, {"end": name, "status": status, "reason": reason, "seconds": seconds})


def tell(out: Any, record: dict[str, Any]) -> None:
    out.write(json.dumps(record) + "\n")
    out.flush()


def run_one(case: unittest.TestCase) -> tuple[str, str]:
    """passed, skipped or failed, and why."""
    result = unittest.TestResult()
    case.run(result)
    if result.skipped:
        return "skipped", result.skipped[0][1]
    bad = result.errors + result.failures
    return ("failed", bad[0][1]) if bad else ("passed", "")


if __name__ == "__main__":
    main()
